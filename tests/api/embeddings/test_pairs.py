"""``POST /v1/rerank`` and ``/v1/score``: a reranker's verdict, or the similarity of an embedder's vectors."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from blockwright.actors.gateway.port import Generation
from blockwright.api.embeddings.pairs import similarity, verdict
from blockwright.gpu.weights.embedder import SIMILARITIES, Reranker
from blockwright.policies.plan.pooling import Pooling
from blockwright.tests import embedders
from blockwright.tests.api.fake_port import make_folder, vector_given
from blockwright.tests.claims import claim

from .test_embeddings import post


@pytest.fixture(scope="session")
def reranker(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("reranker") / "tiny"
    return embedders.make_reranker(folder, target, 5, 9, prompts={"which": "which"}, default_prompt_name="which")


@pytest.fixture(scope="session")
def similar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_folder(tmp_path_factory.mktemp("similar") / "tiny")
    pooling = {"embedding_dimension": 8, "pooling_mode": "lasttoken"}
    return embedders.write_modules(folder, "pooling", pooling=pooling, prompts={"query": "q", "passage": "p"})


def last(generation: Generation) -> Any:
    """Logits of yes and no: yes is the token of the document, behind which "\\nsay" has four."""
    return vector_given([generation.prompt[-5] / 10, 6.0])


@claim(
    "A reranker scores a pair by the softmax over its yes and no, in the prompt of its own chat template", of="embeddings"
)
async def test_a_reranker_ranks(serve: Any, reranker: Path, codec: Any) -> None:
    client, port = await serve(last, folder=reranker)
    texts = ["b", "d", "c"]
    status, body = await post(client, {"query": "what", "documents": [texts[0], {"text": texts[1]}, texts[2]]}, "/v1/rerank")
    assert status == 200
    prompts = [f"judge which\nq what\nd {text}\nsay" for text in texts]
    assert [stream.generation.prompt for stream in port.streams] == [codec.encode(one, special=False) for one in prompts]
    assert port.streams[0].generation.sampling.pooling == Pooling(tokens=[5, 9])
    assert [result["index"] for result in body["results"]] == [1, 2, 0]
    assert [result["document"]["text"] for result in body["results"]] == ["d", "c", "b"]
    want = [1 / (1 + math.exp(6.0 - stream.generation.prompt[-5] / 10)) for stream in port.streams]
    found = {result["index"]: result["relevance_score"] for result in body["results"]}
    assert [found[i] for i in range(3)] == pytest.approx(want, abs=1e-6)
    assert (body["method"], body["model"]) == ("verdict", "tiny")
    assert body["usage"]["total_tokens"] == sum(len(stream.generation.prompt) for stream in port.streams)
    more = {"query": "what", "documents": texts, "top_n": 1, "return_documents": False, "instruction": "how"}
    for path in ("/v2/rerank", "/rerank"):
        status, body = await post(client, more, path)
        assert [set(result) for result in body["results"]] == [{"index", "relevance_score"}]
        assert port.streams[-1].generation.prompt == codec.encode("judge how\nq what\nd c\nsay", special=False)


async def test_a_reranker_scores_pairs(serve: Any, reranker: Path) -> None:
    client, port = await serve(last, folder=reranker)
    status, body = await post(client, {"text_1": ["x", "y"], "text_2": ["a", "b"]}, "/v1/score")
    assert (status, len(port.streams), body["method"]) == (200, 2, "verdict")
    assert [(one["object"], one["index"]) for one in body["data"]] == [("score", 0), ("score", 1)]
    status, body = await post(client, {"text_1": "x", "text_2": ["a", "b"]}, "/score")
    assert (status, len(port.streams), len(body["data"])) == (200, 4, 2)
    status, body = await post(client, {"text_1": "x", "text_2": "a", "truncate_prompt_tokens": 5}, "/v1/score")
    assert (status, body["error"]["param"]) == (400, "truncate_prompt_tokens")
    status, body = await post(client, {"input": "a"})
    assert (status, body["error"]["code"]) == (400, "unsupported_model")
    assert "tiny is a reranker and gives no vectors; use POST /v1/rerank or /v1/score" in body["error"]["message"]


async def test_the_prompt_of_the_model_card(serve: Any, folder: Path, tmp_path: Path) -> None:
    """The chat template prints no pairs, and config.json names yes and no by their texts."""
    target = embedders.make_reranker(folder, tmp_path / "plain", template="")
    (target / "modules.json").unlink()
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | {"classifier_from_token": ["n", "y"]}))
    client, port = await serve(last, folder=target)
    body = {"query": "what", "documents": ["a"]}
    status, answer = await post(client, body, "/v1/rerank")
    assert (status, answer["error"]["code"]) == (400, "no_chat_template")
    tokenizer = json.loads((target / "tokenizer.json").read_text())
    tokenizer["added_tokens"][0]["content"] = "<|im_start|>"
    tokenizer["model"]["vocab"]["<|im_start|>"] = tokenizer["model"]["vocab"].pop("<unk>")
    (target / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = json.loads((target / "tokenizer_config.json").read_text())
    (target / "tokenizer_config.json").write_text(json.dumps(settings | {"unk_token": None}))
    port.infos[0] = type(port.infos[0])("tiny", str(target), 512, 9, True, rooms=(9999,))
    status, answer = await post(client, body, "/v1/rerank")
    assert status == 200, answer
    vocabulary = tokenizer["model"]["vocab"]
    assert port.streams[0].generation.sampling.pooling == Pooling(tokens=[vocabulary["y"], vocabulary["n"]])
    text = (await (await client.post("/detokenize", json={"tokens": port.streams[0].generation.prompt})).json())["prompt"]
    assert text.startswith(
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the"
    )
    assert "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n<Query>: what\n" in text
    assert text.endswith("<Document>: a<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")


@claim("An embedder ranks and scores by the similarity that its files name, and the answer names it", of="embeddings")
async def test_an_embedder_ranks_by_similarity(serve: Any, similar: Path, codec: Any) -> None:
    vectors = {"qx": [1.0, 0.0], "pa": [0.0, 2.0], "pb": [3.0, 3.0], "pc": [4.0, 0.0]}
    known = {tuple(codec.encode(text, special=True)): vector for text, vector in vectors.items()}
    client, port = await serve(lambda generation: vector_given(known[tuple(generation.prompt)]), folder=similar)
    status, body = await post(client, {"query": "x", "documents": ["a", "b", "c"]}, "/v1/rerank")
    assert (status, body["method"], len(port.streams)) == (200, "cosine", 4)
    assert [one["index"] for one in body["results"]] == [2, 1, 0]
    assert [one["relevance_score"] for one in body["results"]] == pytest.approx([1.0, 0.5**0.5, 0.0])
    status, body = await post(client, {"text_1": "x", "text_2": ["a", "c"]}, "/v1/score")
    assert [one["score"] for one in body["data"]] == pytest.approx([0.0, 1.0])
    status, body = await post(client, {"query": "x", "documents": ["a"], "instruction": "how"}, "/v1/rerank")
    assert (status, body["error"]["param"]) == (400, "instruction")


@pytest.mark.parametrize(
    ("path", "body", "param", "said"),
    [
        ("/v1/rerank", {"documents": ["a"]}, "query", "query is missing"),
        ("/v1/rerank", {"query": "a"}, "documents", "documents is missing"),
        ("/v1/rerank", {"query": "a", "documents": []}, "documents", "give a list of at least one text"),
        ("/v1/rerank", {"query": "a", "documents": "b"}, "documents", "give a list of at least one text"),
        ("/v1/rerank", {"query": "a", "documents": ["b", 3]}, "documents[1]", "give a string, or an object with text"),
        (
            "/v1/rerank",
            {"query": "a", "documents": [{"title": "b"}]},
            "documents[0]",
            "give a string, or an object with text",
        ),
        ("/v1/rerank", {"query": "a", "documents": [{"text": "b", "title": "c"}]}, "documents[0].title", "would be ignored"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "top_n": 0}, "top_n", "give an integer from 1"),
        ("/v1/rerank", {"query": "a", "documents": ["b"] * 2049}, "documents", "2,049 documents"),
        ("/v1/rerank", {"query": "a", "documents": ["x" * 70]}, "documents", "has 71 tokens"),
        ("/v1/rerank", {"query": "x" * 70, "documents": ["a"]}, "query", "has 71 tokens"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "top_k": 1}, "top_k", "it is called top_n here"),
        ("/v1/score", {"text_1": "a"}, "text_2", "text_2 is missing"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["c"]}, "text_1", "text_1 has 2 texts and text_2 1"),
        ("/v1/score", {"text_1": "a", "text_2": ["c"], "n": 2}, "n", "no token is drawn"),
        ("/v1/score", {"queries": "a", "documents": ["c"]}, "queries", "it is called text_1 here"),
    ],
)
async def test_bad_pairs(serve: Any, similar: Path, path: str, body: dict[str, Any], param: str, said: str) -> None:
    client, port = await serve(last, folder=similar)
    status, answer = await post(client, body, path)
    assert (status, answer["error"]["param"]) == (400, param)
    assert said in answer["error"]["message"]
    assert not port.streams


async def test_a_model_that_generates_scores_no_pairs(serve: Any) -> None:
    client, _ = await serve(last)
    status, body = await post(client, {"query": "a", "documents": ["b"]}, "/v1/rerank")
    assert (status, body["error"]["code"]) == (400, "unsupported_model")
    assert "classifier_from_token" in body["error"]["message"]


def test_similarities() -> None:
    one, other = [3.0, 4.0], [6.0, 8.0]
    found = {name: similarity(name)(one, other) for name in SIMILARITIES}
    assert found == pytest.approx({"cosine": 1.0, "dot": 50.0, "euclidean": -5.0, "manhattan": -7.0})
    assert similarity("cosine")([0.0, 0.0], other) == 0.0


def test_verdicts_of_large_logits() -> None:
    judge = Reranker(yes=1, no=2)
    assert verdict(judge, [1000.0, 0.0]) == 1.0
    assert verdict(judge, [-1000.0, 0.0]) == pytest.approx(0.0)
    assert verdict(judge, [-20.0, 0.0]) == pytest.approx(math.exp(-20), rel=1e-6)
    assert verdict(Reranker(yes=1, no=2, sigmoid=False), [3.0, 1.0]) == 2.0
    assert verdict(Reranker(yes=1), [0.0]) == 0.5
