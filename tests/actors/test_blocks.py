"""The actors of deployed blocks, beside a worker that loads on request."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator

import pytest

from blockwright.actors.block.actor import BlockActor
from blockwright.actors.block.blocks import Blocks
from blockwright.actors.worker.messages import BlockLoaded
from blockwright.policies.cluster.block_life import BlockStage
from blockwright.policies.cluster.scaling import PressedBlock, RouteQueue
from blockwright.policies.control.loads import LoadBlock, ModelFiles
from blockwright.runtime import Actor, ManualClock, Node, RemoteError, endpoint


class Worker(Actor):
    """Tells the end of plans when the test says so."""

    def __init__(self) -> None:
        self.held: list[tuple[str, bytes]] = []
        self.asked: list[str] = []  # blocks that want to know
        self.open = asyncio.Event()
        self.open.set()

    @endpoint(concurrent=True)
    async def load(self, block: LoadBlock) -> BlockLoaded:
        await self.open.wait()
        if block.checkpoint.folder == "torn":
            raise MemoryError("component mlp needs 9 bytes and worker w0 has 8 left")
        self.held += [(block.holder, id) for id in [*block.ids, *filter(None, block.deltas)]]
        return BlockLoaded(100 * len(block.ids), 0.0)

    @endpoint
    async def unload(self, holder: str, ids: list[bytes], block: str = "") -> int:
        for id in ids:
            self.held.remove((holder, id))
        self.asked += [block] * bool(block)
        return len(ids)


class Controller(Actor):
    def __init__(self) -> None:
        self.heard: list[tuple[object, ...]] = []

    @endpoint
    async def pressed(self, worker: str, incarnation: int, blocks: list[PressedBlock]) -> None:
        self.heard.append((worker, incarnation, blocks))

    @endpoint
    async def idle(self, worker: str, incarnation: int, applications: list[str]) -> None:
        self.heard.append((worker, incarnation, applications))


class Rig:
    async def start(self) -> None:
        self.clock, self.serials = ManualClock(), itertools.count(1)
        self.node = Node("w0", listen=False, clock=self.clock)
        await self.node.start()
        self.worker, self.controller = Worker(), Controller()
        await self.node.spawn(self.worker, name="worker")
        await self.node.spawn(self.controller, name="controller")
        self.blocks = await self.node.spawn(Blocks("w0/controller"), name="blocks")
        self.ref = self.node.ref("w0/blocks", Blocks)

    async def load(self, block: LoadBlock) -> object:
        return await self.ref.load(block, next(self.serials))

    async def unload(self, holder: str, ids: list[bytes]) -> int:
        return await self.ref.unload(holder, ids, next(self.serials))

    def actors(self) -> dict[str, str]:
        """Those of blocks, and who supervises them."""
        return {a.name: a.supervisor for a in self.node.inspect().actors if a.name.startswith("block-")}

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    await rig.start()
    yield rig
    await rig.node.stop()


def block(ids: str, holder: str, first: int = 0, idle: float = 0.0, path: str = "") -> LoadBlock:
    """Capital letters have a delta."""
    components = [c.lower().encode() * 16 for c in ids]
    deltas = [c.encode() * 16 if c.isupper() else b"" for c in ids]
    return LoadBlock(ModelFiles(b"", path), first, first + len(ids), components, holder, [], None, deltas, idle)


def ids(loaded: LoadBlock) -> list[bytes]:
    return [*loaded.ids, *filter(None, loaded.deltas)]


async def test_one_actor_for_each_block_whoever_holds_it(rig: Rig) -> None:
    await rig.load(block("eam", "a"))
    await rig.load(block("bn", "a", 3))
    await rig.load(block("eam", "b"))
    await rig.load(block("bN", "b", 3))  # the same parameters with a delta are another block
    assert set(rig.actors().values()) == {"w0/blocks"}
    found = {tuple(s.holders): s for s in await rig.ref.statuses(99)}
    assert found.keys() == {("a", "b"), ("a",), ("b",)}
    assert {s.stage for s in found.values()} == {BlockStage.RESIDENT}
    assert (found["a", "b"].components, found["a", "b"].nbytes) == (3, 600)


async def test_it_drains_until_the_last_plan_has_ended_and_goes(rig: Rig) -> None:
    lower, upper = block("eam", "a"), block("Bn", "a", 3)
    await rig.load(lower)
    await rig.load(upper)
    await rig.load(block("eam", "b"))
    assert await rig.unload("a", [*ids(lower), *ids(upper)]) == 6
    assert {holder for holder, _ in rig.worker.held} == {"b"}
    (name,) = rig.worker.asked
    stages = {s.name: s.stage for s in await rig.ref.statuses(99)}
    assert stages.pop(name) is BlockStage.DRAINING
    assert list(stages.values()) == [BlockStage.RESIDENT]
    await rig.node.ref(f"w0/{name}", BlockActor).ended()
    await rig.settle()
    assert name not in rig.actors()
    assert len(rig.actors()) == 1


async def test_who_comes_while_it_drains_keeps_the_actor(rig: Rig) -> None:
    one = block("eam", "a")
    await rig.load(one)
    await rig.unload("a", ids(one))
    (name,) = rig.worker.asked
    await rig.load(block("eam", "b"))
    await rig.node.ref(f"w0/{name}", BlockActor).ended()
    await rig.settle()
    assert [s.stage for s in await rig.ref.statuses(99)] == [BlockStage.RESIDENT]


async def test_a_load_that_fails_says_why_and_leaves_nothing(rig: Rig) -> None:
    with pytest.raises(RemoteError) as caught:
        await rig.load(block("eam", "a", path="torn"))
    assert caught.value.text == "component mlp needs 9 bytes and worker w0 has 8 left"
    await rig.settle()
    assert not rig.actors()


async def test_what_no_block_has_is_unloaded_all_the_same(rig: Rig) -> None:
    rig.worker.held += [("a", b"x")]
    assert await rig.unload("a", [b"x"]) == 1
    assert rig.worker.asked == []


async def test_the_controller_hears_of_pressed_blocks_with_one_message(rig: Rig) -> None:
    for one in (block("eam", "a"), block("bn", "a", 3), block("eam", "b"), block("co", "b", 3)):
        await rig.load(one)
    await rig.ref.report([RouteQueue("a", 0, 5, 1, 1, 20, 100), RouteQueue("b", 0, 5, 2, 7, 70, 100)])
    await rig.settle()
    ((worker, life, pressed),) = rig.controller.heard
    assert (worker, life) == ("w0", rig.node.incarnation)
    assert sorted(p.applications.items() for p in pressed) == [  # type: ignore[attr-defined]
        {"b": (0, 3), "a": (0, 3)}.items(),
        {"b": (3, 5)}.items(),
    ] or {tuple(p.applications) for p in pressed} == {("b", "a"), ("b",)}  # type: ignore[attr-defined]
    uses = {tuple(s.holders): s.use for s in await rig.ref.statuses(99)}
    assert (uses["b",].running, uses["b",].waiting, uses["b",].tokens) == (2, 7, 70)
    assert uses["a",].pressure == pytest.approx(0.2 / 0.3)
    await rig.ref.report([])
    await rig.settle()
    assert {s.use.tokens for s in await rig.ref.statuses(99)} == {0}
    assert len(rig.controller.heard) == 1


async def test_a_block_for_a_burst_says_when_it_was_idle_for_so_long(rig: Rig) -> None:
    await rig.load(block("bn", "a", 3, idle=60.0))
    await rig.load(block("eam", "a"))
    rig.clock.advance(50.0)
    await rig.ref.report([RouteQueue("a", 3, 5, 1, 0, 5, 1000)])
    rig.clock.advance(59.0)
    await rig.settle()
    assert not rig.controller.heard
    rig.clock.advance(2.0)
    await rig.settle()
    assert rig.controller.heard == [("w0", rig.node.incarnation, ["a"])]


async def test_many_blocks_cost_the_worker_one_message_and_no_block_any(rig: Rig) -> None:
    names = [f"a{n}" for n in range(100)]
    for name in names:
        for first in range(20):
            one = LoadBlock(ModelFiles(b"", ""), first, first + 1, [f"{name}/{first}".encode()], name)
            await rig.load(one)
    assert len(rig.actors()) == 2000
    before = {a.name: a.handled for a in rig.node.inspect().actors}
    await rig.ref.report([RouteQueue(name, 0, 20, 1, 0, 1, 1000) for name in names])
    await rig.settle()
    after = {a.name: a.handled for a in rig.node.inspect().actors}
    assert {name for name in after if after[name] != before[name]} == {"blocks"}


async def test_a_block_that_fails_ends_the_worker_with_it(rig: Rig) -> None:
    await rig.load(block("eam", "a"))
    (name,) = rig.actors()
    await rig.node.kill_actor(rig.node.ref(f"w0/{name}"))
    await rig.settle()
    assert "blocks" not in {a.name for a in rig.node.inspect().actors}


async def test_what_is_asked_again_is_done_once(rig: Rig) -> None:
    one = block("eam", "a")
    rig.worker.open.clear()
    asked = [asyncio.ensure_future(rig.ref.load(one, 1)) for _ in range(2)]
    await rig.settle()
    asked.pop(0).cancel()  # whoever asks gives up the first time
    await rig.settle()
    rig.worker.open.set()
    assert await asked[0] == await rig.ref.load(one, 1) == BlockLoaded(300, 0.0)
    assert len(rig.worker.held) == 3
    assert [await rig.ref.unload("a", ids(one), 2) for _ in range(2)] == [3, 3]
    for _ in range(2):
        with pytest.raises(RemoteError, match="9 bytes"):
            await rig.ref.load(block("eam", "a", path="torn"), 3)
    assert not rig.worker.held
