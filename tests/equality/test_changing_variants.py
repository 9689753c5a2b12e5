"""Variants while models come and go: of several donors, and of a donor that is removed, comes back or drains."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from aiohttp import ClientSession
from safetensors.torch import load_file

from blockwright.tests.checkpoints import make_checkpoint, with_tensors
from blockwright.tests.claims import claim
from blockwright.tests.equality.served import Served, serve
from blockwright.tests.equality.test_variants import LENGTH, NEW, PROMPTS, stored_pair
from blockwright.tests.system.server import Server
from blockwright.tests.waiting import until
from blockwright.zoo.add import add
from blockwright.zoo.equivalence.records import store_equivalences
from blockwright.zoo.zoo import Zoo

LONG = 60  # tokens of an answer during which its donor goes
LAYERS = {"b": 1, "c": 2}  # donor -> layer whose feed-forward block differs


def zoo_of(tmp_path: Path) -> Path:
    """Return the folder of a zoo with model a and its donors b and c."""
    a = make_checkpoint(tmp_path / "a", intermediate_size=1024, num_hidden_layers=3)
    root, generator = tmp_path / "zoo", torch.Generator().manual_seed(1)
    add(root, str(a), "a")
    for name, layer in LAYERS.items():
        own = {k: v for k, v in load_file(a / "model.safetensors").items() if k.startswith(f"model.layers.{layer}.mlp.")}
        changed = {k: v + 0.3 * torch.randn(v.shape, generator=generator) * v.std() for k, v in own.items()}
        add(root, str(with_tensors(a, tmp_path / name, changed)), name)
    pairs = [stored_pair(root, "a", name, 2 * layer + 2) for name, layer in LAYERS.items()]
    store_equivalences(root, [*pairs, stored_pair(root, "c", "a", 2 * LAYERS["c"] + 2)])
    return root


def memory_for_one(root: Path) -> int:
    """Return bytes that hold one model with a few sequences, and not two."""
    zoo = Zoo(root)
    tensors = [zoo.tensors(zoo.chain(name)) for name in "ab"]
    one = sum(tensor.nbytes for tensor in tensors[0].values())
    both = sum(tensor.nbytes for tensor in (tensors[0] | tensors[1]).values())
    return (one + both) // 2 + (1 << 18)


async def homes(server: Served) -> dict[str, list[str]]:
    """Return the workers of each model and variant."""
    found: dict[str, list[str]] = {}
    for route in (await server.cluster())["routes"]:
        found.setdefault(route["application"], []).append(route["home"])
    return found


async def change(server: Served, method: str, where: str, **body: Any) -> None:
    async with server.session.request(method, f"{server.url}{where}", json=body or None) as answer:
        assert answer.status in (200, 201, 202), await answer.text()


async def variants(server: Served, count: int = 2, model: str = "a") -> dict[str, list[int]]:
    """Ask for several choices, which begin at once; return the tokens of each chain."""
    body = {"model": model, "prompt": list(PROMPTS[0]), "max_tokens": NEW, "temperature": 0, "n": count}
    body |= {"ignore_eos": True, "return_token_ids": True}
    async with server.session.post(f"{server.url}/v1/completions", json=body) as answer:
        content = await answer.json()
        assert answer.status == 200, content
    answers: dict[str, list[int]] = {}
    for chain, choice in zip((await server.story(content["id"]))["chains"], content["choices"], strict=True):
        tokens = choice["token_ids"]
        assert answers.setdefault(chain["used"], tokens) == tokens, "each chain gives one answer, whatever runs beside it"
    return answers


async def alone(server: Served, name: str, new: int = NEW, *more: int) -> list[int]:
    """Return the answer of a model's own chain to the prompt and ``more`` tokens."""
    tokens: list[int] = (await server.complete([*PROMPTS[0], *more], new, name, adaptive=False))["token_ids"]
    return tokens


async def streamed(server: Served, begun: asyncio.Event, count: int = 2) -> list[list[int]]:
    """Stream long answers of a, of which variants begin half; return their tokens. ``begun``: set once all have some."""
    body = {"model": "a", "prompt": list(PROMPTS[0]), "max_tokens": LONG, "temperature": 0, "ignore_eos": True}
    body |= {"stream": True, "return_token_ids": True, "n": count}
    tokens: list[list[int]] = [[] for _ in range(count)]
    async with server.session.post(f"{server.url}/v1/completions", json=body) as answer:
        async for line in answer.content:
            for choice in json.loads(line[6:])["choices"] if line.startswith(b"data: {") else ():
                tokens[choice["index"]] += choice.get("token_ids") or ()
            if all(tokens):
                begun.set()
    return tokens


async def follows(server: Served, tokens: list[int], other: list[int]) -> None:
    """Check a long answer: it begins as the ``other`` chain's, and from some token on it is what a's own chain says."""
    kept = next((n for n, pair in enumerate(zip(tokens, other, strict=True)) if pair[0] != pair[1]), LONG)
    assert len(tokens) == LONG
    while kept >= 0 and tokens[kept:] != (await alone(server, "a", LONG - kept, *tokens[:kept]) if kept < LONG else []):
        kept -= 1  # both chains may say the same for a while
    assert kept >= 0, "a's own chain says something else after each part of the other's answer"


@claim("Each of several donors gives a variant, and each answers as its chain alone", of="adaptive")
async def test_several_donors(tmp_path: Path) -> None:
    root = zoo_of(tmp_path)
    folders = {name: root / "chains" / name for name in "abc"}
    options: dict[str, Any] = {"memory": memory_for_one(root), "max_model_len": LENGTH, "chunk_size": 16}
    async with serve(folders, workers=3, adaptive={"a": "equal"}, **options) as server:
        own = {name: await alone(server, name) for name in "abc"}
        where, answers = await homes(server), await variants(server, 3)
    donors = {variant: next(name for name in "bc" if where[name] == where[variant]) for variant in ("a~1", "a~2")}
    assert sorted(donors.values()) == ["b", "c"]
    assert answers == {"a": own["a"], **{variant: own[donor] for variant, donor in donors.items()}}


@asynccontextmanager
async def processes(root: Path) -> AsyncIterator[Served]:
    """A server in processes of its own, with a and b on a worker each, to which models can be added."""
    words = ["--app", f"b={root}/chains/b"]
    modes = {f"adaptive.{name}": "equal" for name in "acx"}
    options = {"app_roots": root.parent, "memory": memory_for_one(root), "max_model_len": LENGTH, **modes}
    server = Server(root / "chains" / "a", workers=2, arguments=words, **options).whole()
    try:
        async with ClientSession() as session:
            yield Served(None, server.url, session)  # type: ignore[arg-type]
    finally:
        server.stop()


@claim("Variants follow the models that are added and removed while the server runs", of="adaptive")
@pytest.mark.system
async def test_a_donor_goes_while_its_variant_serves_and_another_one_comes(tmp_path: Path) -> None:
    root = zoo_of(tmp_path)
    async with processes(root) as server:
        await until(lambda: has(server, "a~1"))
        own = {name: await alone(server, name) for name in "ab"}
        assert await variants(server) == {"a": own["a"], "a~1": own["b"]}
        long, begun = await alone(server, "b", LONG), asyncio.Event()
        stream = asyncio.create_task(streamed(server, begun))
        await begun.wait()
        await change(server, "DELETE", "/admin/apps/b")
        for tokens in await stream:
            await follows(server, tokens, long)
        assert await variants(server) == {"a": own["a"]}, "nothing is left of it"
        body = {"name": "x", "path": str(tmp_path / "b")}
        async with server.session.post(f"{server.url}/admin/apps", json=body) as answer:
            refused = (await answer.json())["error"]["message"]
        assert refused.startswith(
            "adaptive.x is equal, but x is no application of a zoo, which has the equivalences; add it"
        )
        await change(server, "POST", "/admin/apps", name="c", path=str(root / "chains" / "c"))
        own["c"] = await alone(server, "c")
        await until(lambda: has(server, "a~2", "c~1"))
        assert await variants(server) == {"a": own["a"], "a~2": own["c"]}
        assert await variants(server, model="c") == {"c": own["c"], "c~1": own["a"]}, "one that was added has variants, too"
        await change(server, "DELETE", "/admin/apps/c")
        await change(server, "POST", "/admin/apps", name="b", path=str(root / "chains" / "b"))
        await until(lambda: has(server, "a~3"))
        assert await variants(server) == {"a": own["a"], "a~3": own["b"]}, "it is there again, under a name of its own"


async def has(server: Served, *names: str) -> bool:
    return {*names} <= (await homes(server)).keys()


@claim("A variant moves off a worker that drains, and its requests stay on its chain", of="adaptive")
async def test_a_variant_leaves_a_worker_that_drains(tmp_path: Path) -> None:
    root = zoo_of(tmp_path)
    folders = {name: root / "chains" / name for name in "ab"}
    options: dict[str, Any] = {"memory": memory_for_one(root), "max_model_len": LENGTH, "chunk_size": 16}
    async with serve(folders, workers=4, adaptive={"a": "equal"}, **options) as server:
        own = {name: await alone(server, name, LONG) for name in "ab"}
        leaving, staying = (await homes(server))["a~1"]
        begun = asyncio.Event()
        stream = asyncio.create_task(streamed(server, begun, 4))
        await begun.wait()
        await change(server, "POST", f"/admin/workers/{leaving}/drain")
        assert sorted(await stream) == sorted([own["a"], own["a"], own["b"], own["b"]])
        states = {worker["id"]: worker["state"] for worker in (await server.cluster())["workers"]}
        assert (states[leaving], states[staying]) == ("draining", "ready")
        assert await variants(server, 4) == {"a": own["a"][:NEW], "a~1": own["b"][:NEW]}
