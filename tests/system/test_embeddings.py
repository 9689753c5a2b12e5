"""Vectors on real servers: the same bits alone, beside others, from the cache, over a pipeline and after a death."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np
import openai
import pytest

import blockwright
from blockwright.tests import embedders
from blockwright.tests.claims import claim
from blockwright.tests.system.client import Client
from blockwright.tests.system.conftest import slow
from blockwright.tests.system.server import Server
from blockwright.tests.waiting import PATIENCE, until

pytestmark = pytest.mark.system
PATH = "/v1/embeddings"
TEXTS = ["", *(f"text number {i}, " * (1 + 3 * i) for i in range(8))][1:]


@pytest.fixture(scope="module")
def folders(checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two embedders, an adapter over one, a reranker, and the model that all are made from."""
    root, base = tmp_path_factory.mktemp("embedders"), checkpoint("qwen3")
    made = {
        "last": embedders.make_embedder(base, root / "last", "lasttoken", bare=True, prompts={"query": "find: "}),
        "mean": embedders.make_embedder(base, root / "mean", ["mean", "weightedmean"]),
        "judge": embedders.make_reranker(base, root / "judge"),
        "base": base,
    }
    adapter = embedders.make_adapter(made["mean"], root / "adapted")
    return made | {"adapted": adapter}


async def vectors(cluster: blockwright.Cluster, model: str, texts: list[str]) -> list[str]:
    """Their vectors in base64, in one request."""
    found = await cluster.post(PATH, {"model": model, "input": texts, "encoding_format": "base64"})
    return [entry["embedding"] for entry in found["data"]]


async def begun(client: Client) -> bool:
    """A worker that will die has begun texts and not ended all."""
    worker = (await client.workers())["w0"]
    return worker["queue"]["running"] > 0 and worker["memory"]["kv"] > 0


def numbers(vector: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(vector), "<f4").astype(np.float64)


@pytest.fixture
async def cluster(folders: dict[str, Path]) -> AsyncIterator[blockwright.Cluster]:
    apps = {name: str(path) for name, path in folders.items() if name != "last"}
    small = {"memory": "64MiB", "threads": 1, "silence": PATIENCE, "max_rows": 16, "sweep_tokens": 64, "chunk_size": 16}
    async with blockwright.Cluster(
        str(folders["last"]), apps={"last2": str(folders["last"]), **apps}, bases={"adapted": "mean"}, port=0, **small
    ) as started:
        yield started


@claim("Served vectors equal transformers', for an embedder and for a LoRA over it", of="embeddings")
async def test_vectors_scores_and_adapters(cluster: blockwright.Cluster, folders: dict[str, Path]) -> None:
    """One cluster for all of it; the second time, prefixes are found."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folders["base"])
    bare = embedders.base_model(folders["last"])
    tuned = embedders.adapted_model(folders["mean"], folders["adapted"])
    ids = [tokenizer(text)["input_ids"] for text in TEXTS]
    judged = {
        "last2": (bare, ["lasttoken"]),
        "mean": (bare, ["mean", "weightedmean"]),
        "adapted": (tuned, ["mean", "weightedmean"]),
    }
    for name, (model, modes) in judged.items():
        first = await vectors(cluster, name, TEXTS)
        for vector, tokens in zip(first, ids, strict=True):
            want = embedders.pooled(embedders.states(model, tokens), modes)
            assert np.abs(numbers(vector) - want).max() < 1e-5, name
            assert abs(float(numbers(vector) @ want) / np.linalg.norm(numbers(vector)) - 1) < 1e-9
        assert [(await vectors(cluster, name, [text]))[0] for text in TEXTS] == first, "alone, and from the cache"
    assert numbers((await vectors(cluster, "mean", TEXTS[:1]))[0]).shape == (128,)
    answer = await cluster.post(PATH, {"model": "last2", "input": TEXTS[-1]})
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 100
    answer = await cluster.post("/v1/rerank", {"model": "judge", "query": "which", "documents": TEXTS[:3]})
    prompts = [f"judge all\nq which\nd {text}\nsay" for text in TEXTS[:3]]
    want = [
        embedders.verdict(folders["base"], tokenizer(one, add_special_tokens=False)["input_ids"], 5, 9) for one in prompts
    ]
    found = {one["index"]: one["relevance_score"] for one in answer["results"]}
    assert [found[i] for i in range(3)] == pytest.approx(want, abs=1e-5)
    answer = await cluster.post("/v1/score", {"model": "mean", "text_1": TEXTS[0], "text_2": TEXTS[:2]})
    assert answer["data"][0]["score"] == pytest.approx(1.0)
    assert await cluster.embed(TEXTS[0], model="mean") == tuple(numbers((await vectors(cluster, "mean", TEXTS[:1]))[0]))

    def as_openai() -> None:
        client = openai.OpenAI(base_url=f"{cluster.url}/v1", api_key="none")
        plain = client.embeddings.create(model="mean", input=TEXTS[:2], encoding_format="float", dimensions=32)
        usual = client.embeddings.create(model="mean", input=TEXTS[:2], dimensions=32)
        assert [one.embedding for one in plain.data] == [one.embedding for one in usual.data]
        assert (len(plain.data[1].embedding), plain.usage.total_tokens) == (32, sum(map(len, ids[:2])))
        for kind in ("base", "judge"):
            with pytest.raises(openai.BadRequestError, match="gives no vectors"):
                client.embeddings.create(model=kind, input="x")

    await asyncio.to_thread(as_openai)


@pytest.mark.parametrize("name", [pytest.param("last", marks=pytest.mark.nightly), "mean"])
@claim("A request for vectors survives kill -9 of its worker with the same bits", of="embeddings")
async def test_kill_9_in_the_middle(serve: Callable[..., Server], folders: dict[str, Path], name: str) -> None:
    server = serve(folders[name], chunk_size=16).whole()
    async with Client(server) as client:
        await client.ready()
        calm = await client.embed(TEXTS)
        salted = {"cache_salt": "other"}  # nothing is found in the cache
        with slow(server, after=-10_000):
            asked = asyncio.create_task(client.embed(TEXTS, **salted))
            await until(lambda: begun(client))
            await client.kill("w0")
        assert await asked == calm
        _, lines = await client.get("/v1/requests?limit=100")
        assert max(line["attempt"] for line in lines["data"]) > 1, "none was computed again"
        await client.ready()


@claim("A vector over a pipeline has the bits of a single worker", of="embeddings")
async def test_over_a_pipeline(serve: Callable[..., Server], folders: dict[str, Path]) -> None:
    found = []
    for settings in ({"workers": 1}, {"pipeline": 2, "chunk_size": 24}):
        server = serve(folders["mean"], **settings).whole()
        async with Client(server) as client:
            await client.ready()
            found.append(await client.embed(TEXTS))
            assert await client.embed(TEXTS[-1:]) == found[-1][-1:]
    assert found[0] == found[1]
