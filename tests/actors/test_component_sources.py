"""Cold workers with real tensors, device threads and sockets: what no folder has comes by its hash from elsewhere."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blockwright.actors.block.actor import ANSWER
from blockwright.actors.worker import raw_tensors
from blockwright.actors.worker.messages import BlockLoaded, ParametersWanted, RawWanted
from blockwright.gpu.errors import CheckpointError
from blockwright.policies.control.loads import LoadBlock, ModelFiles, SourcesWanted
from blockwright.policies.model.chain import Block, Chain
from blockwright.runtime.base.errors import RemoteError
from blockwright.tests.actors.worker_rig import Rig
from blockwright.tests.adapters import make_adapter
from blockwright.tests.claims import claim
from blockwright.tests.gpu.reference import greedy, prompt_of
from blockwright.tests.zoo.served_folder import ServedFolder, served_folder
from blockwright.transport.link import Slot
from blockwright.zoo.add import add
from blockwright.zoo.source import open_source
from blockwright.zoo.verify import verify

NEW = 12
PROMPT = list(prompt_of(23, seed=5))
EMPTY = LoadBlock(ModelFiles(b"", ""), 0, 0, [], "a", length=512, layers=8)
CHAIN = Chain("a", (Block(()),), 512)


class Hosts:
    """Workers that see only their own stores, one that has the checkpoint, and an origin."""

    def __init__(self, path: Path, folder: Path, origin: ServedFolder) -> None:
        self.path, self.folder = path, folder
        self.origin = origin
        self.rigs: dict[str, Rig] = {}
        folder.mkdir(exist_ok=True)
        os.chmod(folder, 0o700)

    async def start(self, name: str, *, has: bool = False, store: str = "own", origin: bool = True, **more: Any) -> Rig:
        """has: the checkpoint is in a folder of its machine. store: of which worker; empty: none."""
        values = {"backend": "torch", "memory": 4 << 20, "directory": self.folder} | more
        kept = str(self.folder / f"store {name if store == 'own' else store}") if store else ""
        values |= {"store": kept, "origin": self.origin.address if origin else ""}
        rig = await Rig.start([self.path] if has else [], name=name, **values)
        for other in self.rigs.values():
            rig.node.peering.greet(other.node.id, other.node.endpoint)
            other.node.peering.greet(rig.node.id, rig.node.endpoint)
        self.rigs[name] = rig
        return rig

    async def stop(self, *names: str) -> None:
        for name in names or [*self.rigs]:
            await self.rigs.pop(name).stop()

    def block(self, sources: list[str] | None, path: Path | None = None, base: Path | None = None) -> LoadBlock:
        """The load of the whole model, in a folder that is nowhere."""
        specs = open_source(path or self.path, base or "").specs(16, "float32")
        ids, deltas = [s.component.shared for s in specs], [s.component.delta for s in specs]
        files = replace(EMPTY.checkpoint, folder=str(self.folder / "nowhere"))
        return replace(
            EMPTY, checkpoint=files, last=len(ids), ids=ids, deltas=deltas, hashes=[s.hashes for s in specs], sources=sources
        )

    async def load(self, name: str, sources: list[str] | None) -> BlockLoaded | SourcesWanted:
        rig = self.rigs[name]
        found: Any = await rig.ref.load(self.block(sources), returns=ANSWER, timeout=60)
        return found  # type: ignore[no-any-return]

    async def tokens(self, name: str) -> list[int]:
        rig = self.rigs[name]
        specs = open_source(self.path).specs(16, "float32")
        rig.chains["a"] = replace(CHAIN, blocks=(replace(CHAIN.blocks[0], components=tuple(s.component for s in specs)),))
        await rig.publish()
        return await rig.generate("r", PROMPT, NEW)

    async def counters(self, name: str) -> dict[str, float]:
        return (await self.rigs[name].ref.status()).counters


@pytest.fixture
async def hosts(checkpoint: Callable[..., Path], tmp_path: Path) -> AsyncIterator[Hosts]:
    add(tmp_path / "zoo", str(checkpoint("llama")), "m")
    with served_folder(tmp_path / "zoo") as origin:
        made = Hosts(checkpoint("llama"), tmp_path, origin)
        yield made
        await made.stop()


def expected(path: Path) -> list[int]:
    return list(greedy(path, tuple(PROMPT), NEW))


def damage(store: Path) -> Path:
    """Flip a bit of the largest tensor that lies there."""
    file = max(store.glob("tensors/*/*"), key=lambda path: path.stat().st_size)
    file.write_bytes(file.read_bytes()[:-1] + bytes([file.read_bytes()[-1] ^ 1]))
    return file


@claim(
    "Four cold workers without a checkpoint take one model's bytes from the origin, and answer like transformers",
    of="serving",
)
async def test_four_cold_workers_take_one_model_from_the_origin(hosts: Hosts) -> None:
    for n in range(4):
        await hosts.start(f"w{n}")
    lacks = await hosts.load("w0", None)
    assert isinstance(lacks, SourcesWanted)
    assert lacks.components == hosts.block(None).ids
    assert isinstance(await hosts.load("w0", []), BlockLoaded)
    assert all(isinstance(one, BlockLoaded) for one in await asyncio.gather(*(hosts.load(f"w{n}", ["w0"]) for n in (1, 2))))
    assert isinstance(await hosts.load("w3", ["w1", "w2"]), BlockLoaded)
    assert hosts.origin.sent <= 1.1 * hosts.origin.tensor_bytes
    assert hosts.origin.connections < len(hosts.origin.asked) == len({*hosts.origin.asked})
    for n in range(4):
        assert await hosts.tokens(f"w{n}") == expected(hosts.path)
        assert verify(hosts.folder / f"store w{n}").nbytes == hosts.origin.tensor_bytes
        counters = await hosts.counters(f"w{n}")
        assert (counters["origin_parameter_bytes"] > 0) == (n == 0)
        assert counters["staged_parameter_bytes"] == 0
    given = [(await hosts.counters(f"w{n}"))["sent_parameter_bytes"] for n in range(4)]
    whole = (await hosts.counters("w3"))["fetched_parameter_bytes"]
    assert given == [2 * whole, whole, 0, 0], "the second of two sources is not needed"


async def test_a_store_needs_nobody_at_the_next_start(hosts: Hosts) -> None:
    await hosts.start("w0")
    await hosts.load("w0", [])
    await hosts.stop()
    asked = len(hosts.origin.asked)
    await hosts.start("w0")
    assert isinstance(await hosts.load("w0", None), BlockLoaded), "nothing is missing, so no source is asked for"
    assert await hosts.tokens("w0") == expected(hosts.path)
    counters = await hosts.counters("w0")
    assert counters["stored_parameter_bytes"] == sum(ref.nbytes for ref in open_source(hosts.path).hashes())
    assert (len(hosts.origin.asked), counters["fetched_parameter_bytes"]) == (asked, 0)


@pytest.mark.parametrize("store", ["", "own"])
async def test_a_worker_with_the_checkpoint_gives_it_and_without_stores_packed(
    hosts: Hosts, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = await hosts.start("w0", has=True), await hosts.start("w1", store=store, origin=False)
    raw = list[RawWanted]()
    send = first.worker._sources.raw.send
    monkeypatch.setattr(first.worker._sources.raw, "send", lambda wanted: (raw.append(wanted), send(wanted)))
    loaded = await hosts.load("w1", ["w0"])
    assert isinstance(loaded, BlockLoaded)
    assert bool(raw) == bool(store)
    assert bool(loaded.fetched) != bool(store)
    assert await hosts.tokens("w1") == expected(hosts.path)
    assert hosts.origin.sent == 0


@claim("Workers whose packed forms differ give each other raw tensors", of="serving")
async def test_where_forms_differ_raw_tensors_travel(hosts: Hosts) -> None:
    await hosts.start("w0", has=True, backend="native")
    await hosts.start("w1", store="", origin=False, backend="torch")
    loaded = await hosts.load("w1", ["w0"])
    assert isinstance(loaded, BlockLoaded)
    assert loaded.fetched < loaded.new_bytes, "the packed forms of matrices differ"
    assert await hosts.tokens("w1") == expected(hosts.path)
    counters = await hosts.counters("w1")
    assert (counters["origin_parameter_bytes"], counters["staged_parameter_bytes"]) == (0, 0)


async def test_what_has_no_file_any_more_comes_packed_also_into_a_worker_with_a_store(hosts: Hosts, tmp_path: Path) -> None:
    path, hosts.path = hosts.path, Path(shutil.copytree(hosts.path, tmp_path / "moved"))
    await hosts.start("w0", has=True)
    hosts.path = path
    shutil.rmtree(tmp_path / "moved")
    await hosts.start("w1")
    assert isinstance(await hosts.load("w1", ["w0"]), BlockLoaded)
    assert hosts.origin.sent == 0
    assert await hosts.tokens("w1") == expected(hosts.path)


@claim("A source that is killed in the middle costs no more than what it still owed", of="faults")
async def test_what_a_dead_source_still_owed_comes_from_the_next(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_tensors, "batch_bytes", lambda memory: 4096)
    first, _ = await hosts.start("w0", has=True), await hosts.start("w1")
    send, coming = first.worker._sources.raw.send, hosts.rigs["w1"].worker._sources.raw
    given = [0]

    def dies(wanted: RawWanted) -> None:
        given[0] += 1
        if given[0] < 40:
            send(wanted)
        else:
            coming.lost("w0")

    monkeypatch.setattr(first.worker._sources.raw, "send", dies)
    monkeypatch.setattr(hosts.rigs["w1"].worker._parameters, "fetch", _nothing_packed(hosts.rigs["w1"]))
    assert isinstance(await hosts.load("w1", ["w0"]), BlockLoaded)
    counters = await hosts.counters("w1")
    raw = sum(ref.nbytes for ref in open_source(hosts.path).hashes())
    documents = sum(path.stat().st_size for path in (hosts.folder / "zoo" / "components").iterdir())
    came = counters["fetched_parameter_bytes"] + counters["origin_parameter_bytes"]
    assert 0 < counters["fetched_parameter_bytes"] < raw <= came <= raw + documents
    assert any(wanted for _, wanted in hosts.origin.asked if wanted not in ("", "bytes=128-")), "the rest of a tensor"
    assert await hosts.tokens("w1") == expected(hosts.path)


def _nothing_packed(rig: Rig) -> Callable[..., Any]:
    fetch = rig.worker._parameters.fetch
    return lambda source, wanted: fetch("nobody", wanted)


async def test_an_origin_whose_connection_breaks_is_asked_for_the_rest(hosts: Hosts) -> None:
    file = max(hosts.origin.root.glob("tensors/*/*"), key=lambda path: path.stat().st_size)
    name = str(file.relative_to(hosts.origin.root))
    hosts.origin.cut[name] = [5000, 6000]
    await hosts.start("w0")
    assert isinstance(await hosts.load("w0", []), BlockLoaded)
    header = file.stat().st_size - max(ref.nbytes for ref in open_source(hosts.path).hashes())
    assert [wanted for asked, wanted in hosts.origin.asked if asked == name] == [
        f"bytes={header}-", f"bytes={header + 5000}-", f"bytes={header + 11000}-",
    ]  # fmt: skip
    assert await hosts.tokens("w0") == expected(hosts.path)


@claim("A flipped bit is found wherever it comes from, and the tensor is fetched from elsewhere", of="faults")
@pytest.mark.parametrize("where", ["the store", "a worker", "a worker and the origin"])
async def test_a_flipped_bit(hosts: Hosts, where: str) -> None:
    await hosts.start("w0")
    await hosts.load("w0", [])
    file = damage(hosts.folder / "store w0")
    sources = ["w0"]
    if where == "the store":
        await hosts.stop()
        await hosts.start("w1", store="w0")
        assert isinstance(await hosts.load("w1", None), BlockLoaded), "the origin is asked by itself"
    else:
        await hosts.start("w1", store="")
        if where == "a worker and the origin":
            hosts.origin.flip.add(str(file.relative_to(hosts.folder / "store w0")))
            await hosts.start("w2", has=True)
            sources = ["w0", "w2"]
        hosts.rigs["w1"].worker._parameters.fetch = _nothing_packed(hosts.rigs["w1"])  # type: ignore[method-assign]
        assert isinstance(await hosts.load("w1", sources), BlockLoaded)
    assert await hosts.tokens("w1") == expected(hosts.path)
    assert (await hosts.counters("w1"))["damaged_parameters"] == 1


@claim(
    "A flipped bit in a packed tensor from another worker is found, and the tensor is fetched from elsewhere", of="faults"
)
@pytest.mark.parametrize("elsewhere", ["another worker, packed", "another worker, raw", "the origin"])
async def test_a_flipped_bit_in_packed_form(hosts: Hosts, elsewhere: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take it from workers without a store, which have nothing raw, but where the case says "raw"."""
    await hosts.start("w0", store="")
    await hosts.load("w0", [])
    sources = ["w0"]
    if elsewhere != "the origin":
        await hosts.start("w2", store="own" if elsewhere.endswith("raw") else "")
        await hosts.load("w2", [])
        sources.append("w2")
    del hosts.origin.asked[:]
    await hosts.start("w1", store="", origin=elsewhere == "the origin")
    carrier = hosts.rigs["w0"].worker._parameters
    copied, damaged = carrier._copied, list[int]()

    def flips(wanted: ParametersWanted, room: bytearray | Slot, *rest: Any) -> None:
        if not damaged:
            view = room.view if isinstance(room, Slot) else memoryview(room)
            view[wanted.pieces[0].last - wanted.pieces[0].first - 1] ^= 128
            damaged.append(wanted.number)
        copied(wanted, room, *rest)

    monkeypatch.setattr(carrier, "_copied", flips)
    loaded = await hosts.load("w1", sources)
    assert isinstance(loaded, BlockLoaded)
    assert (len(damaged), loaded.unfetched) == (1, "1 damaged tensor came from w0")
    assert await hosts.tokens("w1") == expected(hosts.path)
    assert (await hosts.counters("w1"))["damaged_parameters"] == 1
    tensors = [path for path, _ in hosts.origin.asked if path.startswith("tensors/")]
    assert len(tensors) == (elsewhere == "the origin")


async def test_a_damaged_store_without_an_origin_asks_for_sources(hosts: Hosts) -> None:
    await hosts.start("w0", has=True)
    await hosts.start("w1", origin=False)
    await hosts.load("w1", ["w0"])
    await hosts.stop("w1")
    damage(hosts.folder / "store w1")
    await hosts.start("w2", store="w1", origin=False)
    lacks = await hosts.load("w2", None)
    assert isinstance(lacks, SourcesWanted)
    assert len(lacks.components) == 1
    assert isinstance(await hosts.load("w2", ["w0"]), BlockLoaded)
    assert await hosts.tokens("w2") == expected(hosts.path)


@claim("A full store is said and does without", of="serving")
async def test_a_full_store_is_said_and_the_model_is_served(hosts: Hosts) -> None:
    await hosts.start("w0", store_size=200_000)
    assert isinstance(await hosts.load("w0", []), BlockLoaded)
    assert await hosts.tokens("w0") == expected(hosts.path)
    status = await hosts.rigs["w0"].ref.status()
    assert status.store.startswith(f"store {hosts.folder / 'store w0'} is full (")
    assert status.counters["unstored_parameter_bytes"] > 0
    kept = sum(path.stat().st_size for path in (hosts.folder / "store w0").glob("tensors/*/*"))
    assert 0 < kept <= 200_000


async def test_what_nobody_has_is_refused_with_all_that_was_asked(hosts: Hosts) -> None:
    await hosts.start("w0", origin=False)
    await hosts.start("w1", origin=False)
    with pytest.raises(RemoteError) as refused:
        await hosts.load("w0", ["w1"])
    text = refused.value.text
    assert "nowhere is neither a folder nor a hub id" in text
    assert text.endswith("by its hash w1 did not give it either, and no origin is set (--set origin=...)")
    with pytest.raises(RemoteError, match="by its hash no other worker has it either, and no origin is set"):
        await hosts.load("w0", [])
    (hosts.origin.root / "zoo.json").rename(hosts.origin.root / "gone")
    shutil.rmtree(hosts.origin.root / "components")
    await hosts.start("w2")
    with pytest.raises(RemoteError, match=r"the origin http://127\.0\.0\.1:\d+ did not give \d+ of \d+ components"):
        await hosts.load("w2", [])


async def test_an_adapter_comes_over_its_base(hosts: Hosts, tmp_path: Path) -> None:
    adapter = make_adapter(hosts.path, tmp_path / "lora", target_modules=["q_proj", "down_proj"])
    first, second = await hosts.start("w0", has=True, origin=False), await hosts.start("w1", origin=False)
    block = hosts.block(["w0"], adapter, hosts.path)
    there = replace(
        block, checkpoint=replace(block.checkpoint, folder=str(adapter)), base=ModelFiles(b"", str(hosts.path)), sources=None
    )
    assert isinstance(await first.ref.load(there, returns=ANSWER, timeout=60), BlockLoaded)
    away = replace(block, base=ModelFiles(b"", str(hosts.folder / "nowhere")))
    loaded: Any = await second.ref.load(away, returns=ANSWER, timeout=60)
    assert isinstance(loaded, BlockLoaded)
    both = [rig.worker.state.parts.memory.residence.components for rig in (first, second)]
    assert {*both[1]} == {*both[0]}


async def test_the_same_tensor_of_two_components_comes_once(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    path = checkpoint("llama", tie_word_embeddings=True)
    add(tmp_path / "zoo", str(path), "m")
    with served_folder(tmp_path / "zoo") as origin:
        hosts = Hosts(path, tmp_path, origin)
        await hosts.start("w0", store="")
        assert isinstance(await hosts.load("w0", []), BlockLoaded)
        assert origin.sent <= 1.1 * origin.tensor_bytes
        assert (await hosts.counters("w0"))["staged_parameter_bytes"] == 0
        assert await hosts.tokens("w0") == expected(path)
        await hosts.stop()


def test_errors_of_sources_are_errors_of_checkpoints() -> None:
    """So that a load that fails is answered with a sentence."""
    from blockwright.zoo.errors import OriginError

    assert issubclass(OriginError, CheckpointError)
