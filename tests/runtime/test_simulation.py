"""The testing kit itself: seeds replay, time is virtual, and each fault does what it says and no more."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from blockwright.runtime import Actor, DeadlineExceeded, NodeDown, RuntimeFault, endpoint
from blockwright.runtime.testing import (
    Delay,
    Drop,
    Duplicate,
    FaultPlan,
    HoldLane,
    Kill,
    Partition,
    Pause,
    Simulation,
    Stalled,
    Unhandled,
    seeds,
)
from blockwright.tests.claims import claim
from blockwright.transport.handshake import Lane
from blockwright.transport.wire import Traffic


class Log(Actor):
    def __init__(self, lines: list[str], name: str) -> None:
        self.lines, self.name = lines, name

    @endpoint
    async def add(self, text: str) -> str:
        self.lines.append(text)
        return text

    @endpoint(concurrent=True)
    async def tick(self, period: float) -> None:
        try:
            while True:
                await asyncio.sleep(period)
                self.lines.append(f"{self.name} {asyncio.get_running_loop().time():.2f}")
        finally:
            self.lines.append(f"{self.name} ended")


class Rig:
    """Two nodes with a log each, under a plan of faults."""

    def __init__(self, *faults, seed: int = 1, **options) -> None:
        self.lines: list[str] = []
        options = {"nodes": 2, "restart": None, "latency": (0.001, 0.001), **options}
        self.sim = Simulation(seed=seed, faults=FaultPlan(faults), setup=self.setup, **options)

    async def setup(self, node) -> None:
        await node.spawn(Log(self.lines, str(node.id)), name="log")

    def ref(self, node: str = "w0"):
        return self.sim.head.ref(f"{node}/log")


async def mixed(sim: Simulation) -> list[str]:
    """Something of everything."""
    out = []
    for i in range(40):
        try:
            out.append(await sim.head.ref(f"w{sim.random.randrange(3)}/log").add(f"{i} {sim.random.random()}", timeout=1.0))
        except RuntimeFault as fault:
            out.append(f"{sim.time} {fault}")
    await sim.until_calm()
    return out


def run_mixed(seed: int) -> str:
    rig = Rig(seed=seed, nodes=3, restart=0.5)
    rig.sim = Simulation(seed=seed, nodes=3, faults=6, setup=rig.setup)
    out = rig.sim.run(mixed)
    rig.sim.trace.sealed = False
    rig.sim.note(*out, *rig.lines)
    return rig.sim.trace.digest


@claim("A cluster under virtual time replays a seed, here and in another process", of="actor-runtime")
def test_a_seed_replays_here_and_in_another_process():
    here = [run_mixed(seed) for seed in range(6)]
    assert [run_mixed(seed) for seed in reversed(range(6))] == here[::-1]
    assert len(set(here)) == 6
    program = f"import runpy; print(*map(runpy.run_path({__file__!r})['run_mixed'], range(6)))"
    environment = {**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert done.stdout.split() == here, done.stderr


def test_an_hour_takes_a_moment():
    rig = Rig(heartbeat=60.0, silence=300.0, limit=4000.0)

    async def scenario(sim):
        before = sim.time
        await asyncio.sleep(3600)
        return sim.time - before

    assert rig.sim.run(scenario) == 3600


def test_a_dropped_message_ends_in_its_deadline_and_the_connection_lives_on():
    rig = Rig(Drop(0.0, "head", "w0"))

    async def scenario(sim):
        with pytest.raises(DeadlineExceeded):
            await rig.ref().add("lost", timeout=0.2)
        assert await rig.ref().add("found", timeout=0.2) == "found"

    async def late(sim):
        await asyncio.sleep(0.001)
        await scenario(sim)

    rig.sim.run(late)
    assert rig.lines == ["found"]
    assert sum(" drop " in line for line in rig.sim.trace.lines()) == 1


def test_a_duplicate_comes_later():
    rig = Rig(Duplicate(0.0, "head", "w0", count=1, lag=0.1))

    async def scenario(sim):
        await asyncio.sleep(0.001)
        await rig.ref().add("once")
        await sim.until_calm()
        await asyncio.sleep(0.2)

    rig.sim.run(scenario)
    names = [line.split()[1] for line in rig.sim.trace.lines() if "CALL" in line]
    assert names == ["deliver", "duplicate", "deliver"]
    assert rig.lines == ["once"]


def test_a_delay_keeps_order_and_a_held_lane_is_overtaken():
    rig = Rig(Delay(0.0, "head", "w0", extra=0.5, lasting=0.1), HoldLane(0.0, "head", "w1", Lane.CONTROL, lasting=0.4))

    async def scenario(sim):
        await asyncio.sleep(0.001)
        start = sim.time
        slow = asyncio.create_task(rig.ref("w0").add("slow"))
        sim.nodes["w1"].on_link(Traffic.KV, lambda sender, header, buffers: rig.lines.append(header.decode()))
        held = asyncio.create_task(rig.ref("w1").add("held"))
        await asyncio.sleep(0)
        sim.head.link("w1").send(Traffic.KV, b"passes", [])
        await asyncio.sleep(0.2)
        quick = asyncio.create_task(rig.ref("w0").add("after the slow one"))
        await asyncio.gather(slow, held, quick)
        assert 0.5 < sim.time - start < 0.6

    rig.sim.run(scenario)
    assert rig.lines == ["passes", "held", "slow", "after the slow one"]


def test_a_strike_hits_the_message_that_is_chosen_and_no_other():
    rig = Rig()
    ways = {b"lost": Drop(0.0, "", ""), b"late": Delay(0.0, "", "", 0.5, 0.0), b"twice": Duplicate(0.0, "", "", lag=0.1)}

    def choose(source, target, lane, body):
        if b"the end" in body:
            return Kill(0.0, target.name)
        return next((fault for word, fault in ways.items() if word in body and source.name == "head"), None)

    async def scenario(sim):
        sim.strike(choose)
        for text in ("first", "lost", "twice"):
            rig.ref().add.cast(text)
        start = sim.time
        assert await rig.ref().add("late") == "late"
        assert 0.5 < sim.time - start < 0.51
        with pytest.raises(NodeDown):
            await rig.ref().add("the end")

    rig.sim.run(scenario)
    assert rig.lines == ["first", "twice", "late"]
    events = [line.split()[1] for line in rig.sim.trace.lines()]
    assert (events.count("drop"), events.count("duplicate")) == (1, 1)


def test_a_short_partition_delays_and_a_long_one_breaks():
    rig = Rig(Partition(0.0, ("w0",), 0.5), Partition(2.0, ("w1",), 1.5), patience=1.0)

    async def scenario(sim):
        await asyncio.sleep(0.001)
        start = sim.time
        assert await rig.ref("w0").add("late", timeout=2.0) == "late"
        assert 0.49 < sim.time - start < 0.51
        await asyncio.sleep(1.5)
        with pytest.raises(NodeDown):
            await rig.ref("w1").add("never", timeout=2.0)
        assert 2.9 < sim.time - start < 3.1

    rig.sim.run(scenario)
    assert rig.lines == ["late"]


def test_a_paused_node_stands_still_and_goes_on():
    rig = Rig(Pause(0.35, "w0", 1.0))

    async def scenario(sim):
        start = sim.time
        ticks = asyncio.create_task(rig.ref("w0").tick(0.1))
        await asyncio.sleep(0.5)
        assert await rig.ref("w0").add("heard late", timeout=2.0) == "heard late"
        assert 1.34 < sim.time - start < 1.4
        await asyncio.sleep(0.15)
        ticks.cancel()

    rig.sim.run(scenario)
    times = [float(line.split()[1]) for line in rig.lines if line.startswith("w0#1 ") and "ended" not in line]
    assert [round(b - a, 2) for a, b in itertools.pairwise(times)][:4] == [0.1, 0.1, 1.05, 0.1]


def test_a_paused_node_is_declared_hung():
    rig = Rig(Pause(0.0, "w0", 10.0), silence=2.0)
    downs = []

    async def scenario(sim):
        sim.cluster.on_down(downs.append)
        with pytest.raises(NodeDown, match="hung"):
            await rig.ref("w0").add("x")

    rig.sim.run(scenario)
    assert [(d.node, d.incarnation, d.cause) for d in downs] == [("w0", 1, "hung")]


def test_a_killed_node_runs_nothing_more_and_comes_back():
    rig = Rig(Kill(0.25, "w0"), restart=0.5)

    async def scenario(sim):
        with pytest.raises(NodeDown):
            await rig.ref("w0").tick(0.1)
        lines = list(rig.lines)
        await asyncio.sleep(1.0)
        assert rig.lines == lines
        assert "ended" not in " ".join(lines)
        assert len(lines) == 2
        assert sim.nodes["w0"].incarnation == 2
        assert await rig.ref("w0").add("again") == "again"

    rig.sim.run(scenario)


def test_what_cannot_end_is_stalled():
    async def forever(sim):
        await asyncio.Event().wait()

    async def spin(sim):
        while True:  # noqa: ASYNC110 - the fault under test
            await asyncio.sleep(0)

    with pytest.raises(Stalled, match="not ended after 30 s"):
        Rig(limit=30.0).sim.run(forever)
    with pytest.raises(Stalled, match="time did not pass"):
        Rig().sim.run(spin)


def test_a_failure_says_how_to_run_it_again():
    async def fails(sim):
        await asyncio.sleep(1)
        raise AssertionError("no")

    with pytest.raises(AssertionError, match="no") as caught:
        Rig(seed=42).sim.run(fails)
    assert (
        "BLOCKWRIGHT_SEED=42 python -m pytest 'tests/runtime/test_simulation.py::test_a_failure" in caught.value.__notes__[0]
    )


def test_what_nobody_awaits_is_not_lost():
    async def scenario(sim):
        asyncio.get_running_loop().call_later(0.1, lambda: 1 / 0)
        await asyncio.sleep(1)

    with pytest.raises(Unhandled, match="division"):
        Rig().sim.run(scenario)


def test_seeds_can_be_narrowed_from_outside(monkeypatch):
    assert list(seeds(3)) == [0, 1, 2]
    monkeypatch.setenv("BLOCKWRIGHT_SEED", "17")
    assert list(seeds(3)) == [17]


def test_a_random_plan_holds_every_kind_and_spares_the_head():
    sims = [Simulation(seed=seed, faults=20, within=5.0) for seed in range(20)]
    faults = [fault for sim in sims for fault in sim.plan.faults]
    assert {type(f) for f in faults} == {Drop, Duplicate, Delay, HoldLane, Partition, Pause, Kill}
    assert all(0 <= f.at <= 5 for f in faults)
    assert "head" not in {f.node for f in faults if isinstance(f, Pause | Kill)}
    with pytest.raises(ValueError, match="at least one more"):
        Simulation(seed=0, nodes=0, faults=1)


def test_a_class_that_nobody_has_imported_yet_is_spawned(tmp_path, monkeypatch):
    (tmp_path / "new_in_a_simulation.py").write_text("from blockwright.runtime import Actor\nclass New(Actor): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    async def scenario(sim):
        assert str(await sim.head.spawn("new_in_a_simulation:New", name="x", on="w0")) == "w0/x#1.1"

    Rig().sim.run(scenario)


def test_nothing_of_a_machine_is_there():
    async def scenario(sim):
        with pytest.raises(NotImplementedError):
            await asyncio.to_thread(Path.cwd)

    Rig().sim.run(scenario)
