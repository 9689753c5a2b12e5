"""A whole server that loads a model on demand while a variant serves the request that asked for it, bit for bit."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from blockwright.actors.worker.block_loader import BlockLoader
from blockwright.api.commands.explain import chain_lines
from blockwright.gpu.executor import Executor
from blockwright.tests.checkpoints import make_checkpoint, with_tensors
from blockwright.tests.claims import claim
from blockwright.tests.equality.served import Served, serve
from blockwright.tests.equality.test_variants import PROMPTS, ask, bytes_of, stored_pair, values
from blockwright.tests.waiting import until
from blockwright.zoo.add import add
from blockwright.zoo.equivalence.records import store_equivalences

LAYERS = {"b": (1,), "c": (1, 2)}  # model -> layers whose feed-forward blocks are its own
BLOCK = 4  # place of the block of b that may stand in for a's
LENGTH, LONG = 320, 280  # tokens of a sequence, and of an answer that outlives the load
SLOWER = 0.02  # seconds


def zoo_of(tmp_path: Path) -> Path:
    """Return the folder of a zoo with model a, its donor b, and c, which is in the way."""
    a = make_checkpoint(tmp_path / "a", intermediate_size=1024, num_hidden_layers=3)
    root, generator = tmp_path / "zoo", torch.Generator().manual_seed(1)
    add(root, str(a), "a")
    for name, layers in LAYERS.items():
        places = tuple(f"model.layers.{layer}.mlp." for layer in layers)
        own = {k: v for k, v in load_file(a / "model.safetensors").items() if k.startswith(places)}
        changed = {k: v + 0.3 * torch.randn(v.shape, generator=generator) * v.std() for k, v in own.items()}
        add(root, str(with_tensors(a, tmp_path / name, changed)), name)
    store_equivalences(root, [stored_pair(root, "a", "b", BLOCK)])
    return root


class Gate:
    """A gate before the blocks that are loaded for a model."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, model: str) -> None:
        self.model = model
        self.open, self.asked = asyncio.Event(), asyncio.Event()
        self.open.set()
        load = BlockLoader.load

        async def gated(loader: BlockLoader, block: Any, memory: Any) -> Any:
            if block.holder == self.model and not self.open.is_set():
                self.asked.set()
                await self.open.wait()
            return await load(loader, block, memory)

        monkeypatch.setattr(BlockLoader, "load", gated)


def hold_back(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let each sweep take that much longer, so that an answer outlives a load on any machine."""
    submit = Executor.submit

    def slow(executor: Executor, plan: Any) -> Any:
        time.sleep(seconds)
        return submit(executor, plan)

    monkeypatch.setattr(Executor, "submit", slow)


async def homes(server: Served) -> set[str]:
    """Return the models and variants that have a route."""
    return {route["application"] for route in (await server.cluster())["routes"]}


async def begin(server: Served, tmp_path: Path) -> None:
    """Have b and c loaded and a on demand; b was used last."""
    await until(lambda: served(server, "a~1"), "the variant has a route")
    for model in "cb":
        await ask(server, PROMPTS[0], model)
    assert "a" not in await homes(server)


async def served(server: Served, *names: str) -> bool:
    return {*names} <= await homes(server)


@claim("A request begins on a variant while its model is loaded on demand, and each token is its chain's", of="adaptive")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_the_first_token_comes_before_the_load_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    root, gate = zoo_of(tmp_path), Gate(monkeypatch, "a")
    folders = {name: root / "chains" / name for name in "bca"}
    memory = (bytes_of(root, "b", "c") + bytes_of(root, "a", "b", "c")) // 2 + (1 << 18)  # room for two of them
    options: dict[str, Any] = {"memory": memory, "max_model_len": LENGTH, "chunk_size": 16}
    sampling = {"temperature": temperature, "seed": 5, "max_tokens": LONG}
    async with serve(folders, adaptive={"a": "equal"}, **options) as server:
        await begin(server, tmp_path)
        gate.open.clear()
        with monkeypatch.context() as slow:
            hold_back(slow, SLOWER)
            asked = asyncio.create_task(ask(server, PROMPTS[0], request_id="r", **sampling))
            await gate.asked.wait()
            (record,) = server.running.port.book.parts.active.values()  # type: ignore[union-attr]
            await until(lambda: record.progress.emitted > 2, "tokens come while the model is away")
            assert "a" not in await homes(server)
            gate.open.set()
            _, choice = await asked
        story = await server.story("r")
        (switch,) = story["switches"]
        assert (switch["source"], switch["target"]) == ("a~1", "a")
        assert switch["why"].startswith("its model has been loaded: an estimate of ")
        (began,) = [one["why"] for one in story["events"] if one["event"] == "chain" and one["used"] == "a~1"]
        assert began.startswith("its model is being loaded on demand")
        assert chain_lines(story["chains"]) == [f"  chain: a, its own: {switch['why']}"]
        ids, position = choice["token_ids"], switch["position"]
        assert 2 < position < LONG
        for begin_at, end, model in ((0, position, "b"), (position, LONG, "a")):
            fields = {**sampling, "adaptive": False, "cache_salt": "alone", "max_tokens": LONG - begin_at}
            alone = (await ask(server, (*PROMPTS[0], *ids[:begin_at]), model, **fields))[1]
            assert alone["token_ids"][: end - begin_at] == ids[begin_at:end], model
            assert values(alone)[: end - begin_at] == values(choice)[begin_at:end]


@claim("A request whose variant gives way for the load of its model waits for that and loses no token", of="adaptive")
async def test_where_the_donor_gives_way_the_request_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, gate = zoo_of(tmp_path), Gate(monkeypatch, "a")
    folders = {name: root / "chains" / name for name in "ba"}
    memory = (bytes_of(root, "b") + bytes_of(root, "a", "b")) // 2 + (1 << 18)
    options: dict[str, Any] = {"memory": memory, "max_model_len": LENGTH, "chunk_size": 16}
    async with serve(folders, adaptive={"a": "equal"}, **options) as server:
        await until(lambda: served(server, "a~1"), "the variant has a route")
        gate.open.clear()
        asked = asyncio.create_task(ask(server, PROMPTS[0], request_id="r", max_tokens=LONG))
        await gate.asked.wait()
        gate.open.set()
        _, choice = await asked
        story, ids = await server.story("r"), choice["token_ids"]
        borders = [(one["position"], one["target"]) for one in story["switches"]]
        assert not borders or borders[-1][1] == "a"
        position = borders[-1][0] if borders else 0
        fields = {"adaptive": False, "cache_salt": "alone", "max_tokens": LONG - position}
        alone = (await ask(server, (*PROMPTS[0], *ids[:position]), "a", **fields))[1]
        assert alone["token_ids"] == ids[position:]
        assert values(alone) == values(choice)[position:]
        assert await until(lambda: served(server, "a")), "and its donor is on demand now"
