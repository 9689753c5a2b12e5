"""A head that misses a worker asks others before it declares it down, on the deterministic cluster."""

from __future__ import annotations

import asyncio

import pytest

from blockwright.runtime import Node
from blockwright.runtime.testing import FaultPlan, Partition, Simulation
from blockwright.runtime.testing.faults import Fault
from blockwright.tests.claims import claim
from blockwright.tests.runtime.lives import Tally

CUT, LONG = 1.0, 600.0


async def setup(node: Node) -> None:
    await node.spawn(Tally(), name="counter")
    node.on_heartbeat(lambda peer: None)  # it knows of every other one, as a gateway does


class Rig:
    """Workers w0 to w2, of which w1 is cut off; w0 and w2 are asked about it, or those of ``asked``."""

    def __init__(self, *faults: Fault, seed: int = 1, asked: tuple[str, ...] = ("w0", "w2"), grace: float = 30.0) -> None:
        self.asked = asked
        options = {"orphan_grace": grace, "setup": setup, "restart": None, "limit": 900.0, "setup_head": self.begin}
        self.sim = Simulation(seed=seed, faults=FaultPlan(faults), **options)

    async def begin(self, node: Node) -> None:
        self.sim.cluster.ask(lambda name: self.asked if name == "w1" else ())

    def down(self) -> list[tuple[float, str]]:
        found = [line.split() for line in self.sim.trace.lines() if line.split()[1] == "down"]
        return [(float(words[0]), words[2]) for words in found]


@claim("A worker that only the head misses serves on while a gateway reaches it", of="faults")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "cut",
    [
        Partition(CUT, ("head",), 8.0, ("w1",)),
        Partition(CUT, ("head",), 8.0, ("w1",), one_way=True),
        Partition(CUT, ("w1",), 8.0, ("head",), one_way=True),
    ],
)
def test_a_member_that_another_reaches_is_not_declared_down(cut: Partition, seed: int) -> None:
    rig = Rig(cut, seed=seed)

    async def scenario(sim: Simulation) -> None:
        await asyncio.sleep(CUT + 6.5)
        said = sim.cluster.doubts
        assert said.startswith("worker w1 is out of reach of the head, but ")
        assert " w0 and w2 reach it" in said
        assert "w1" in sim.nodes["w2"].peers()
        assert await sim.nodes["w2"].ref("w1/counter").add(2, returns=int) == 2
        await asyncio.sleep(8.0)
        assert sim.cluster.doubts == ""
        assert await sim.head.ref("w1/counter").add(1, returns=int) == 3, "it is the same life"

    rig.sim.run(scenario)
    assert not [node for _, node in rig.down() if node == "w1#1"]


def test_one_that_reaches_a_member_is_enough() -> None:
    rig = Rig(Partition(CUT, ("w1",), LONG, ("head", "w0")))

    async def scenario(sim: Simulation) -> None:
        await asyncio.sleep(CUT + 12.0)
        assert "w2 reaches it, so it serves on" in sim.cluster.doubts
        assert await sim.nodes["w2"].ref("w1/counter").add(2, returns=int) == 2

    rig.sim.run(scenario)
    assert rig.down() == []


@pytest.mark.parametrize(
    ("cut", "asked"),
    [
        (Partition(CUT, ("w1",), LONG), ("w0", "w2")),
        (Partition(CUT, ("w1",), LONG, one_way=True), ("w0", "w2")),
        (Partition(CUT, ("head",), LONG, ("w1",)), ()),
        (Partition(CUT, ("head",), LONG, ("w1",)), ("g9",)),
        (Partition(CUT, ("w1",), LONG, ("head", "w0")), ("w0",)),
    ],
)
def test_a_member_that_none_else_reaches_is_declared_down_as_before(cut: Partition, asked: tuple[str, ...]) -> None:
    """Also where there is none to ask, or none that the head reaches. A question costs two heartbeats at most."""
    rig = Rig(cut, asked=asked)

    async def scenario(sim: Simulation) -> None:
        await asyncio.sleep(8.0)

    rig.sim.run(scenario)
    ((at, node),) = rig.down()[:1]
    assert node == "w1#1"
    assert at < CUT + 2.5 + 0.5 + 3 * 0.5 + 0.5


@pytest.mark.parametrize("later", [0.3, 1.0, 1.6])
def test_who_comes_back_later_than_others_from_a_cut_is_not_declared_down(later: float) -> None:
    """The head was cut off from all. Once it is not any more, each member has a ``silence`` to come back in."""
    rig = Rig(Partition(CUT, ("head",), 9.0, ("w0", "w1")), Partition(CUT, ("head",), 9.0 + later, ("w2",)))

    async def scenario(sim: Simulation) -> None:
        await asyncio.sleep(CUT + 7.0)
        assert "members are out of reach at once" in sim.cluster.doubts
        await asyncio.sleep(10.0)
        assert sim.cluster.doubts == ""
        assert await sim.head.ref("w2/counter").add(1, returns=int) == 1

    rig.sim.run(scenario)
    assert rig.down() == []


@claim("After a cut of the head from most, the members on its own side go on as the lives that they are", of="faults")
@pytest.mark.parametrize("spared", [("w0", "w1"), ("w1",), ()])
@pytest.mark.parametrize("ways", [("head", "w0"), ("w1", "w2"), ()])
@pytest.mark.parametrize("seed", range(3))
def test_of_two_that_lost_each_other_the_one_beyond_the_heads_reach_ends(
    spared: tuple[str, ...], ways: tuple[str, ...], seed: int
) -> None:
    """spared: as gateways are. ways: whose words are lost; none: of both sides. A gateway goes on before any worker."""
    sides = ("head", "w0"), ("w1", "w2")
    one, other = sides[::-1] if ways == sides[1] else sides
    rig = Rig(Partition(CUT, one, 8.0, other, one_way=bool(ways)), seed=seed, asked=())

    async def scenario(sim: Simulation) -> None:
        sim.cluster.spare(lambda name: name in spared)
        await asyncio.sleep(CUT + 30.0)

    rig.sim.run(scenario)
    ended = {life for _, life in rig.down()}
    assert ended >= {"w2#1"}
    assert ended == ({"w0#1", "w2#1"} if spared == ("w1",) else {"w1#1", "w2#1"})


def test_a_member_that_is_lost_to_the_others_later_is_declared_down_then() -> None:
    rig = Rig(Partition(CUT, ("head",), LONG, ("w1",)), Partition(9.0, ("w0", "w2"), LONG, ("w1",)))

    async def scenario(sim: Simulation) -> None:
        await asyncio.sleep(8.5)
        assert rig.down() == []
        await asyncio.sleep(9.0)

    rig.sim.run(scenario)
    ((at, node),) = rig.down()[:1]
    assert node == "w1#1"
    assert 9.0 < at < 9.0 + 2.5 + 2.5 + 2.0


def test_a_member_that_stays_out_of_the_heads_reach_is_down_after_orphan_grace() -> None:
    rig = Rig(Partition(CUT, ("head",), LONG, ("w1",)), grace=12.0)

    async def scenario(sim: Simulation) -> None:
        await asyncio.sleep(25.0)
        assert sim.cluster.doubts == ""

    rig.sim.run(scenario)
    ((at, node),) = rig.down()[:1]
    assert node == "w1#1"
    assert CUT + 12.0 < at < CUT + 12.0 + 5.0
