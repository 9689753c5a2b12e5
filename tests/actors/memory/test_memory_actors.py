"""The memory actors over the simulated runtime: asleep without load, readings under it, orders for the controller."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from blockwright.actors.memory.cluster import ClusterMemory
from blockwright.actors.memory.node import NodeMemory
from blockwright.actors.settings.settings import Settings
from blockwright.policies.control.drop_events import (
    DropParameters,
    GroupStageOnWorker,
    MemoryGroups,
    MemoryLacks,
    MemoryOrder,
    RestoreParameters,
    ServingGroup,
)
from blockwright.policies.model.chain import Component, Kind, KvLayout
from blockwright.policies.overload.pool_reading import PoolReading
from blockwright.runtime import Actor, Node, endpoint
from blockwright.runtime.testing import FaultPlan, Simulation

PAGE, PAGE_BYTES = 16, 1024
KV = KvLayout(1, 8, "float32", PAGE)
SIX = [Component(bytes([n]) * 16, Kind.ATTENTION, 100 * PAGE_BYTES // 2, 8, 8, KV) for n in range(6)]
BUDGET = 600 * PAGE_BYTES  # 300 pages of one layer beside the parameters; 50 of all six


class Host(Actor):
    """A worker that reports what the test gives it."""

    def __init__(self) -> None:
        self.used = self.waiting = self.asked = 0
        self.layers = 6

    @endpoint(urgent=True)
    async def pool(self) -> PoolReading:
        self.asked += 1
        parameters = self.layers * 50 * PAGE_BYTES
        pages = (BUDGET - parameters) // (self.layers * PAGE_BYTES)
        kv = self.used * self.layers * PAGE_BYTES
        return PoolReading(
            budget=BUDGET, parameters=parameters, kv=kv, cached=0, pages=pages, used=self.used, head=0, waiting=self.waiting
        )

    def beat(self) -> dict[str, object]:
        return {"running": int(self.used > 0), "waiting": int(self.waiting > 0)}


class Desk(Actor):
    """A controller that carries out everything at once, unless it ``refuses``."""

    def __init__(self, workers: list[str]) -> None:
        self.workers = workers
        self.orders = list[MemoryOrder]()
        self.refuses = ""
        self.version = 1
        self.groups_now = [group(name) for name in workers]

    @endpoint
    async def groups(self, known: int) -> MemoryGroups | None:
        return None if known == self.version else MemoryGroups(self.version, self.groups_now, {"m": SIX})

    @endpoint
    async def change_parameters(self, order: MemoryOrder) -> str:
        self.orders.append(order)
        if not self.refuses:
            self.version += 1
            match order:
                case DropParameters(_, hops):
                    held = [
                        GroupStageOnWorker(hop.worker, hop.first, hop.last, [*range(hop.first, hop.last)]) for hop in hops
                    ]
                    self.groups_now = [ServingGroup("m", "pipeline", held)]
                case RestoreParameters():
                    self.groups_now = [group(name) for name in self.workers]
        return self.refuses


def group(worker: str) -> ServingGroup:
    return ServingGroup("m", "normal", [GroupStageOnWorker(worker, 0, 6, [*range(6)])])


class Rig:
    """A head with the cluster's memory, and workers with theirs."""

    def __init__(self, *workers: str, **settings: Any) -> None:
        self.hosts = {name: Host() for name in workers}
        self.desk = Desk([*workers])
        self.settings = Settings(workers=len(workers), **settings)
        self.sim = Simulation(seed=1, nodes=workers, faults=FaultPlan(), setup=self._setup, restart=None, limit=600.0)

    async def _setup(self, node: Node) -> None:
        if node.name == "head":
            return
        host = self.hosts[node.name]
        await node.spawn(host, name="worker")
        await node.spawn(NodeMemory(), name="memory")
        node.heartbeat = host.beat

    def play(self, scenario: Any) -> None:
        async def run(sim: Simulation) -> None:
            await sim.head.spawn(self.desk, name="controller")
            await sim.head.spawn(
                ClusterMemory(self.settings.parameter_drops, self.settings.worker, "head/controller"), name="memory"
            )
            while len(sim.cluster.members()) < len(self.hosts):  # noqa: ASYNC110 - in virtual time
                await asyncio.sleep(0.1)
            await scenario()

        self.sim.run(run)

    def busy(self, used: int, waiting: int) -> None:
        for host in self.hosts.values():
            host.used, host.waiting = used, waiting


def test_asleep_without_load_a_drop_in_a_burst_a_restore_after_it_and_asleep_again() -> None:
    rig = Rig("w0", "w1")

    async def scenario() -> None:
        await asyncio.sleep(30.0)
        assert rig.hosts["w0"].asked == 0, "without load nobody is asked"
        rig.busy(20, 0)
        await asyncio.sleep(5.0)
        assert 30 < rig.hosts["w0"].asked < 60, "every tenth of a second, from the next heartbeat on"
        assert rig.desk.orders == []
        rig.busy(50, 40)
        await asyncio.sleep(1.0)
        order, lacking = rig.desk.orders
        assert isinstance(order, DropParameters)
        assert isinstance(lacking, MemoryLacks), "more waits than is freed"
        assert [(hop.worker, hop.first, hop.last) for hop in order.hops] == [("w0", 0, 3), ("w1", 3, 6)]
        assert "w0 50 of 50 pages, 40 wait" in order.why
        for host in rig.hosts.values():
            host.layers = 3
        rig.busy(100, 0)
        await asyncio.sleep(10.0)
        assert len(rig.desk.orders) == 2, "half of the pipeline is as much as both replicas have"
        rig.busy(0, 0)
        await asyncio.sleep(2.0)
        restore = rig.desk.orders[-1]
        assert isinstance(restore, RestoreParameters)
        assert (restore.group, restore.sources["w0"]) == ("w0+w1", {3: "w1", 4: "w1", 5: "w1"})
        await asyncio.sleep(1.0)
        asked = rig.hosts["w0"].asked
        await asyncio.sleep(30.0)
        assert rig.hosts["w0"].asked == asked
        view = await rig.sim.head.ref("head/memory").view(returns=dict[str, Any])
        assert {one["parameters"] for one in view["readings"]["w1"]} == {300 * PAGE_BYTES, 150 * PAGE_BYTES}

    rig.play(scenario)


def test_what_a_head_before_has_dropped_comes_back_without_load_once_this_one_is_woken() -> None:
    rig = Rig("w0", "w1")
    held = [GroupStageOnWorker(name, first, first + 3, [*range(first, first + 3)]) for name, first in (("w0", 0), ("w1", 3))]
    rig.desk.groups_now = [ServingGroup("m", "pipeline", held)]
    for host in rig.hosts.values():
        host.layers = 3

    async def scenario() -> None:
        await asyncio.sleep(30.0)
        assert rig.desk.orders == [], "nobody looks"
        memory = rig.sim.head.ref("head/memory")
        for _ in range(2):  # the second time it looks already
            memory.wake.cast()
        await asyncio.sleep(5.0)
        (restore,) = rig.desk.orders
        assert isinstance(restore, RestoreParameters)
        assert restore.group == "w0+w1"
        asked = rig.hosts["w0"].asked
        await asyncio.sleep(30.0)
        assert rig.hosts["w0"].asked == asked, "asleep again"

    rig.play(scenario)


def test_what_no_drop_can_serve_is_reported_once_and_what_is_refused_is_asked_again() -> None:
    alone = Rig("w0", autoscale="relief", autoscale_latency=9.0, autoscale_max_workers=2, overload="on")

    async def lacking() -> None:
        alone.busy(50, 40)
        await asyncio.sleep(5.0)
        (order,) = alone.desk.orders
        assert isinstance(order, MemoryLacks)
        assert order.why == "there is no second instance that holds the same parameters"
        assert order.nbytes == 40 * PAGE * 6 * 64

    alone.play(lacking)
    rig = Rig("w0", "w1")
    rig.desk.refuses = "worker w0 is drained"

    async def refused() -> None:
        rig.busy(50, 40)
        await asyncio.sleep(4.0)
        assert len([one for one in rig.desk.orders if isinstance(one, DropParameters)]) == 1
        await asyncio.sleep(4.0)
        assert len([one for one in rig.desk.orders if isinstance(one, DropParameters)]) == 2, "after a while"

    rig.play(refused)


def test_a_group_of_which_somebody_does_not_answer_is_left_out() -> None:
    rig = Rig("w0", "w1")

    async def scenario() -> None:
        rig.busy(50, 40)
        rig.hosts["w1"].layers = 0  # its answer fails
        await asyncio.sleep(3.0)
        assert {type(one) for one in rig.desk.orders} <= {MemoryLacks}, "there is nobody to merge with"

    rig.play(scenario)


def test_refusals_that_go_on_are_logged_once_and_again_after_a_while(caplog: pytest.LogCaptureFixture) -> None:
    """A restore that could not be broken off was reported at each tick."""
    rig = Rig("w0", "w1")
    members = [GroupStageOnWorker("w0", 0, 3, [0, 1, 2]), GroupStageOnWorker("w1", 3, 6, [3, 4, 5])]
    rig.desk.groups_now = [ServingGroup("m", "restoring", members)]
    rig.desk.refuses = "a group of w0, w1 is changing"

    async def scenario() -> None:
        for host in rig.hosts.values():
            host.layers = 3
        rig.busy(148, 40)
        await asyncio.sleep(11.0)

    with caplog.at_level("INFO", "blockwright.memory"):
        rig.play(scenario)
    assert len([one for one in rig.desk.orders if isinstance(one, DropParameters)]) > 90
    assert [one.getMessage().count(rig.desk.refuses) for one in caplog.records] == [1, 1, 1]
