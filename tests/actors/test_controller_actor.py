"""The controller's shell: heartbeats reach it one by one, publications that wait leave as one, no timer runs at rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from blockwright.actors.applications import Applications
from blockwright.actors.block.blocks import Blocks
from blockwright.actors.conditions import Published
from blockwright.actors.controller.actor import Controller
from blockwright.actors.controller.progress import Progress
from blockwright.actors.gateway.port import NewApplication, RefusedChange
from blockwright.actors.settings.logs import LogSettings
from blockwright.actors.settings.settings import Settings
from blockwright.actors.sizing import WorkerLimits
from blockwright.actors.worker.messages import BlockLoaded, WorkerStatus
from blockwright.policies.cluster.adapter_base import WholeModel
from blockwright.policies.cluster.application_life import Conflict
from blockwright.policies.control.dropped_group import DroppedGroup
from blockwright.policies.control.events import (
    Event,
    KvCapacity,
    Serve,
    Undeploy,
    Unload,
    WorkerDown,
    WorkerHeartbeat,
    WorkerUp,
)
from blockwright.policies.control.loads import LoadBlock
from blockwright.policies.control.state import ControllerState
from blockwright.policies.requests.refusal import Refusal
from blockwright.policies.requests.routes_changed import RoutesChanged
from blockwright.runtime import Actor, DeadlineExceeded, ManualClock, Node, endpoint
from blockwright.tests.fake_cluster import KV, application
from blockwright.tests.waiting import until
from blockwright.transport.address import PeerId
from blockwright.transport.loopback import Network

BUDGET = 65536


class Worker(Actor):
    """Loads when ``loads`` is set, takes routes when ``open`` is, unloads when ``unloads`` is."""

    def __init__(self) -> None:
        self.accepted: list[int] = []
        self.unloaded: list[tuple[str, int]] = []  # holder, and the version that this worker knew by then
        self.open = asyncio.Event()
        self.loads = asyncio.Event()
        self.unloads = asyncio.Event()
        for event in (self.open, self.loads, self.unloads):
            event.set()

    @endpoint(concurrent=True)
    async def load(self, load: LoadBlock) -> BlockLoaded:
        await self.loads.wait()
        return BlockLoaded(1, 0.0)

    @endpoint
    async def unload(self, holder: str, ids: list[bytes], block: str) -> int:
        await self.unloads.wait()
        self.unloaded.append((holder, self.accepted[-1]))
        return len(ids)

    @endpoint
    async def routes(self, update: RoutesChanged) -> None:
        self.accepted.append(update.version)
        await self.open.wait()

    @endpoint(concurrent=True)
    async def status(self) -> WorkerStatus:
        return WorkerStatus(
            name=self.node.name, incarnation=1, pid=1, device="cpu", numerics="n", budget=BUDGET, parameters=0, kv=0, free=0,
            components=[], waiting=0, running=0, sweep=0, sweep_age=0.0, counters={}, kv_by_tenant={},
            served_by_tenant={}, kv_cap_hits={},
        )  # fmt: skip


class Gateway(Actor):
    def __init__(self) -> None:
        self.updates: list[RoutesChanged] = []

    @endpoint
    async def routes(self, update: RoutesChanged) -> None:
        self.updates.append(update)


class Watched(ControllerState):
    """Remembers its events."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.seen: list[Event] = []

    def handle(self, event: Event, now: float) -> list:
        self.seen.append(event)
        return super().handle(event, now)


class Rig:
    """A head with controller and gateway, two worker nodes, and time that passes on request."""

    async def start(self, logs: LogSettings | None = None) -> None:
        """``logs``: with an event log, of a state that is as in any cluster."""
        self.clock, self.network = ManualClock(), Network()
        self.nodes = [
            Node(n, transport=self.network.transport(PeerId(n, 1)), clock=self.clock) for n in ("head", "w0", "w1")
        ]
        for node in self.nodes:
            await node.start()
        head, *others = self.nodes
        kind: Any = Watched if logs is None else ControllerState
        self.state, self.gateway = kind(["w0", "w1"], stall_timeout=10.0), Gateway()
        self.workers = [Worker() for _ in others]
        for node, worker in zip(others, self.workers, strict=True):
            await node.spawn(worker, name="worker")
            await node.spawn(Blocks("head/controller"), name="blocks")
            head.peering.greet(node.id, node.endpoint)
        await head.spawn(self.gateway, name="gateway")
        self.progress = Published(Progress())
        self.controller = Controller(self.state, ["head/gateway"], self.progress, logs=logs)
        await head.spawn(self.controller, name="controller")
        for node in others:
            self.controller.handle(WorkerUp(node.name, 1))
        self.controller.handle(Serve((application("a", "xy", kv=KV), application("b", "xz", kv=KV))))
        await self.progress.until(lambda progress: progress.whole)
        await turns()

    async def stop(self) -> None:
        for node in self.nodes:
            await node.stop()


async def turns(count: int = 60) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    await made.start()
    yield made
    await made.stop()


async def test_each_heartbeat_is_one_event_and_no_timer_of_the_controller_runs(rig: Rig) -> None:
    rig.nodes[1].heartbeat = lambda: {"sweep_age": 1.5, "waiting": 3, "running": 2}
    rig.state.seen.clear()
    version = rig.state.version
    for _ in range(4):
        rig.clock.advance(0.5)
        await turns()
    beats = [event for event in rig.state.seen if isinstance(event, WorkerHeartbeat)]
    assert rig.state.seen == beats, "no ticks"
    assert [event for event in beats if event.worker == "w0"] == [WorkerHeartbeat("w0", 1, 1.5, 3, 2)] * 4
    assert len(beats) == 8
    assert (rig.state.version, rig.state.workers["w0"].waiting) == (version, 3)


async def test_only_whole_models_can_be_a_base(rig: Rig) -> None:
    """Adapters of a zoo name no folder of a base, those of saved modules have no deltas."""
    whole = application("w", "xy", kv=KV)
    parts = tuple(component.adapted(b"d" * 16, 1) for component in whole.components)
    stored = replace(whole, name="stored", components=parts, checkpoint="/zoo/chains/stored")
    saved = replace(whole, name="saved", base="/gone", base_model="gone", checkpoint="/saved")
    later = replace(whole, name="later", checkpoint="/later")
    rig.controller.handle(Serve((stored, saved, later)))
    await turns()
    held = WholeModel("gone", "/gone", served=False)
    here = [WholeModel(name, application(name, "xy", kv=KV).checkpoint) for name in ("a", "b")]
    assert await rig.controller.wholes() == [*here, WholeModel("later", "/later"), held]


async def test_a_removal_that_moves_the_default_is_refused_unless_it_says_where(rig: Rig) -> None:
    rig.state.table.default, rig.state.default_is_set = "a", True
    with pytest.raises(Conflict, match="model 'a' is the one for requests without a model"):
        await rig.controller.retire("a", 0.0)
    for wrong in ("a", "nobody"):
        with pytest.raises(LookupError, match=f"model '{wrong}' does not exist; there are: b"):
            await rig.controller.retire("a", 0.0, wrong)
    assert rig.state.table.default == "a"
    names, view = await rig.controller.retire("a", 0.0, "b")
    assert (names, view.default, view.answered, rig.state.table.default) == (["a"], "b", True, "b")


async def test_nobody_removes_a_chain_without_a_name_for_people(rig: Rig) -> None:
    """Nor names one as default or base; they go with their model."""
    whole = application("a~1", "xy", kv=KV)
    hidden = [replace(whole, variant_of="a"), replace(whole, name="a~surrogate", drafts_for="a")]
    rig.controller.handle(Serve(tuple(hidden)))
    await turns()
    for one in ("a~1", "a~surrogate"):
        with pytest.raises(LookupError, match=f"model '{one}' does not exist; there are: a, b$"):
            await rig.controller.retire(one, 0.0)
        with pytest.raises(LookupError, match=f"model '{one}' does not exist; there are: b$"):
            await rig.controller.retire("a", 0.0, one)
    assert [one.model for one in await rig.controller.wholes()] == ["a", "b"]
    assert (await rig.controller.retire("a~surrogate", 0.0, hidden=True))[0] == ["a~surrogate"]


async def test_heartbeats_of_other_nodes_are_no_news(rig: Rig) -> None:
    stranger = Node("g1", transport=rig.network.transport(PeerId("g1", 1)), clock=rig.clock)
    rig.nodes.append(stranger)
    await stranger.start()
    rig.nodes[0].peering.greet(stranger.id, stranger.endpoint)
    rig.state.seen.clear()
    rig.clock.advance(0.5)
    await turns()
    assert {event.worker for event in rig.state.seen} == {"w0", "w1"}


async def test_publications_that_wait_leave_as_one_and_new_routes_are_known_to_their_workers_first(rig: Rig) -> None:
    w0, w1 = rig.workers
    for worker in rig.workers:
        worker.accepted.clear()
    rig.gateway.updates.clear()
    w0.open.clear()
    rig.controller.handle(Serve((application("c", "xw", kv=KV),)))
    await rig.progress.until(lambda progress: progress.version == rig.state.version and progress.whole)
    await turns()
    assert rig.gateway.updates[-1].version < rig.state.version, "the route of c on w0 waits for w0"
    behind = rig.state.version
    for room in (1024, 2048, 4096):
        rig.controller.handle(KvCapacity("w1", 1, room))
        await turns()
    assert rig.state.version == behind + 3
    w0.open.set()
    await turns()
    versions = [update.version for update in rig.gateway.updates]
    assert versions[-1] == rig.state.version
    assert behind + 1 not in versions
    assert behind + 2 not in versions
    assert rig.gateway.updates[-1] == rig.state.table.news()
    assert versions == sorted(set(versions))
    assert set(versions) == set(w0.accepted) == set(w1.accepted)


async def test_a_worker_that_reports_twice_an_old_version_is_notified_again(rig: Rig) -> None:
    version, w0 = rig.state.version, rig.workers[0]
    known = {"w0": version, "w1": version}
    for node in rig.nodes[1:]:
        node.heartbeat = lambda name=node.name: {"routes": known[name]}

    async def beats(count: int) -> None:
        for _ in range(count):
            rig.clock.advance(0.5)
            await turns()

    w0.accepted.clear()
    await beats(3)
    assert w0.accepted == [], "it has all"
    known["w0"] = version - 1
    await beats(1)
    assert w0.accepted == [], "perhaps it was on its way"
    await beats(1)
    assert w0.accepted == [version]
    known["w0"] = version
    await beats(3)
    assert w0.accepted == [version], "once"


async def test_a_gateway_that_lacks_what_was_published_is_notified_again(rig: Rig) -> None:
    node, far = Node("g1", transport=rig.network.transport(PeerId("g1", 1)), clock=rig.clock), Gateway()
    rig.nodes.append(node)
    await node.start()
    await node.spawn(far, name="gateway")
    rig.nodes[0].peering.greet(node.id, node.endpoint)
    await turns()
    await rig.controller.gateway_up("g1/gateway")
    await turns()
    assert [update.version for update in far.updates] == [rig.state.version]
    node.heartbeat = lambda: {"routes": 0}
    for _ in range(2):
        rig.clock.advance(0.5)
        await turns()
    assert [update.version for update in far.updates] == [rig.state.version] * 2


async def test_a_publication_that_waited_does_not_reach_the_next_life_of_a_worker(rig: Rig) -> None:
    w0, w1 = rig.workers
    w0.open.clear()
    rig.controller.handle(Serve((application("c", "xw", kv=KV),)))
    await turns()
    assert rig.state.whole
    await turns()
    w1.accepted.clear()
    rig.controller.handle(WorkerDown("w1", 1, "killed"))
    rig.controller.handle(WorkerUp("w1", 2))  # the runtime still knows the life before
    w0.open.set()
    await turns()
    assert w1.accepted == []


async def test_components_go_after_the_publication_that_withdraws_them(rig: Rig) -> None:
    await asyncio.gather(*rig.controller.handle(Undeploy("b")))
    assert rig.gateway.updates[-1].withdrawn == ["b"]
    assert [{*worker.unloaded} for worker in rig.workers] == [{("b", rig.gateway.updates[-1].version)}] * 2


async def test_what_an_operator_gives_up_waiting_for_goes_on(rig: Rig) -> None:
    for worker in rig.workers:
        worker.unloads.clear()
    undeploy = asyncio.create_task(rig.nodes[0].ref("head/controller").undeploy("b", timeout=1.0))
    await turns()
    rig.clock.advance(1.5)
    with pytest.raises(DeadlineExceeded):
        await undeploy
    for worker in rig.workers:
        worker.unloads.set()
    await turns()
    assert all(worker.unloaded for worker in rig.workers)


async def test_what_is_removed_while_it_loads_is_a_conflict_and_no_fault_of_its_folder(rig: Rig) -> None:
    class OpenedCheckpoints(Applications):
        """Reads no file."""

        def _hash(self, new: NewApplication, wholes: list[WholeModel], crowded: str) -> Any:
            return [(None, replace(application(new.name, "xw", kv=KV), model=new.name))]

    for worker in rig.workers:
        worker.loads.clear()
    head = rig.nodes[0]
    await head.spawn(
        OpenedCheckpoints(Settings(), WorkerLimits("float32", frozenset()), "head/controller"), name="applications"
    )
    apps = head.ref("head/applications", OpenedCheckpoints)
    adding = asyncio.create_task(apps.add(NewApplication("t", "/models/t", wait=60.0)))
    await until(lambda: "t" in rig.state.additions)
    assert (await apps.remove("t", 5.0)).gone
    assert await adding == RefusedChange(Refusal.CONFLICT, "model 't' was removed while it was added", "name")


async def test_what_it_publishes_of_itself_changes_with_its_state(rig: Rig) -> None:
    assert rig.progress.value == Progress(True, True, True, rig.state.version)
    rig.controller.handle(WorkerDown("w1", 1, "exited 1"))
    seen = rig.progress.value
    assert (seen.workers_up, seen.serves, seen.whole, seen.version) == (False, True, False, rig.state.version)
    rig.controller.handle(WorkerUp("w1", 2))
    assert rig.progress.value.workers_up


async def test_a_publication_that_was_lost_is_reported_again_after_two_heartbeats_that_lack_it(rig: Rig) -> None:
    worker, version = rig.workers[0], rig.state.version
    rig.nodes[1].heartbeat = lambda: {"routes": max(worker.accepted, default=0)}
    worker.accepted.clear()  # as if what was said had not come
    rig.clock.advance(0.5)
    await turns()
    assert worker.accepted == [], "it may still be on its way"
    rig.clock.advance(0.5)
    await turns()
    assert worker.accepted == [version]
    for _ in range(3):
        rig.clock.advance(0.5)
        await turns()
    assert worker.accepted == [version]


def unload_while_out_of_reach(rig: Rig) -> asyncio.Task[None]:
    """The controller asks the first worker, which has lost its way to the head, for an unload."""
    peer = rig.nodes[0].table.find(PeerId("w0", 1))
    assert peer is not None
    peer.lost = True
    return asyncio.create_task(rig.controller._calls.unload(Unload("w0", 1, "a", (b"x",))))


@pytest.mark.parametrize("comes", [True, False])
async def test_a_worker_that_may_come_back_as_it_is_is_asked_until_it_answers_or_is_down(rig: Rig, comes: bool) -> None:
    rig.controller._calls._outlived = rig.state
    asked = unload_while_out_of_reach(rig)
    for _ in range(5):
        await turns()
        rig.clock.advance(0.1)
    await turns()
    assert (asked.done(), rig.workers[0].unloaded) == (False, [])
    if comes:
        rig.nodes[0].table.current["w0"].lost = False
    else:
        rig.controller.handle(WorkerDown("w0", 1, "killed"))
    rig.clock.advance(0.1)
    await until(asked.done)
    assert [holder for holder, _ in rig.workers[0].unloaded] == ["a"] * comes


async def test_a_worker_that_ends_with_the_head_is_not_asked_again(rig: Rig) -> None:
    asked = unload_while_out_of_reach(rig)
    await turns()
    assert asked.done()
    assert rig.workers[0].unloaded == []


class Memory(Actor):
    """Counts how often it is woken."""

    def __init__(self) -> None:
        self.woken = 0

    @endpoint
    async def wake(self) -> None:
        self.woken += 1


@pytest.mark.parametrize("dropped", [True, False])
async def test_a_new_head_wakes_the_memory_actor_if_parameters_are_dropped(rig: Rig, dropped: bool) -> None:
    memory = Memory()
    await rig.nodes[0].spawn(memory, name="memory")
    if dropped:
        rig.state.overload.groups["w0+w1"] = DroppedGroup("w0+w1", [], [], [], [])
    await rig.controller.take_over()
    await turns()
    assert memory.woken == dropped
