"""Two members that do not reach each other, while the head reaches both, on the deterministic cluster: both live on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from blockwright.runtime import Down, Node, NodeDown
from blockwright.runtime.testing import FaultPlan, Kill, Partition, Simulation
from blockwright.runtime.testing.faults import Fault
from blockwright.tests.claims import claim
from blockwright.tests.runtime.lives import Tally
from blockwright.transport.address import PeerId
from blockwright.transport.interface import UNREACHABLE

CUT, LASTS = 1.0, 10.0
SILENCE, ASKED = 2.5, 2.5 + 1.0  # until the head decides; until a question of a cut member is answered
W0, W1 = PeerId("w0", 1), PeerId("w1", 1)


class Rig:
    """Workers w0 to w2. w0 and w1 do not reach each other for a while, and may live on apart, as all may."""

    def __init__(self, *faults: Fault, one_way: str = "", seed: int = 1, grace: float = 30.0, may: bool = True) -> None:
        self.downs: list[tuple[str, str]] = []  # who was told that another is down
        self.may, self.cuts = may, list[list[tuple[str, str]]]()
        one, other = ("w1", "w0") if one_way == "w1" else ("w0", "w1")
        cut = Partition(CUT, (one,), LASTS, (other,), one_way=bool(one_way))
        options = {"orphan_grace": grace, "setup": self.setup, "limit": 900.0, "setup_head": self.begin}
        self.sim = Simulation(seed=seed, faults=FaultPlan((cut, *faults)), **options)

    async def begin(self, node: Node) -> None:
        await node.spawn(Tally(), name="counter")
        cluster = self.sim.cluster
        cluster.keep_both(lambda one, other: self.may)
        cluster.on_cut(lambda: self.cuts.append(cluster.cuts))
        cluster.ask(lambda name: ("w2",))

    async def setup(self, node: Node) -> None:
        await node.spawn(Tally(), name="counter")
        node.on_heartbeat(lambda peer: None)  # it knows of every other one, as a gateway does

    def watch(self) -> None:
        for one, other in (("w0", "w1"), ("w1", "w0")):
            self.sim.nodes[one].monitor(other, lambda down, one=one: self.note(one, down))

    def note(self, one: str, down: Down) -> None:
        self.downs.append((one, down.node))

    def lose(self, *nodes: str) -> None:
        """Let pings between the two go unanswered, as these nodes see it."""
        for name in nodes:
            self.sim.nodes[name].peering.on_lost(W1 if name == "w0" else W0, UNREACHABLE)

    def declared(self) -> list[str]:
        return [line.split()[2] for line in self.sim.trace.lines() if line.split()[1] == "down"]


async def count(node: Node, names: Iterable[str]) -> list[int]:
    return [await node.ref(f"{name}/counter").add(1, returns=int) for name in names]


@claim("Two members that do not reach each other both live on, and meet again as they are", of="faults")
@pytest.mark.parametrize("grace", [0.0, 30.0])
@pytest.mark.parametrize("one_way", ["", "w0", "w1"])
@pytest.mark.parametrize("reporters", [("w0",), ("w1",), ("w0", "w1")])
def test_both_live_on(reporters: tuple[str, ...], one_way: str, grace: float) -> None:
    rig = Rig(one_way=one_way, grace=grace)

    async def scenario(sim: Simulation) -> None:
        await asyncio.sleep(CUT + 0.5)
        rig.watch()
        rig.lose(*reporters)
        await asyncio.sleep(SILENCE + 0.5)
        assert sim.cluster.cuts == [("w0", "w1")]
        assert sorted(rig.downs) == [("w0", "w1"), ("w1", "w0")]
        assert sim.cluster.doubts.startswith("w0 and w1 do not reach each other for ")
        for name, other in (("w0", "w1"), ("w1", "w0")):
            node = sim.nodes[name]
            assert other not in node.peers()
            assert node.current_incarnation(other) == 0
            await count(node, ("w2", "head"))
            with pytest.raises(NodeDown, match=f"{other} is not known"):
                await count(node, (other,))
        await asyncio.sleep(CUT + LASTS - sim.time + ASKED + 1.0)
        assert sim.cluster.cuts == []
        assert sim.cluster.doubts == ""
        assert await count(sim.nodes["w0"], ("w1",)) == [1], "it is the same life"
        assert await count(sim.nodes["w1"], ("w0",)) == [1]

    rig.sim.run(scenario)
    assert rig.declared() == []
    assert rig.cuts == [[("w0", "w1")], []]


def test_one_of_two_that_may_not_both_live_on_ends() -> None:
    rig = Rig(may=False)

    async def scenario(sim: Simulation) -> None:
        await asyncio.sleep(CUT + 0.5)
        rig.lose("w0")
        await asyncio.sleep(SILENCE)
        assert sim.cluster.cuts == []

    rig.sim.run(scenario)
    assert rig.declared() == ["w1#1"]


@pytest.mark.parametrize("cut", ["w0", "w1"])
def test_a_member_that_the_head_loses_besides_is_told_again(cut: str) -> None:
    rig = Rig(Partition(CUT + 4.0, ("head",), 3.0, (cut,)))

    async def scenario(sim: Simulation) -> None:
        await asyncio.sleep(CUT + 0.5)
        rig.lose("w0")
        await asyncio.sleep(8.5)
        assert sim.cluster.cuts == [("w0", "w1")]
        for name, other in (("w0", "w1"), ("w1", "w0")):
            assert other not in sim.nodes[name].peers()
        await asyncio.sleep(CUT + LASTS - sim.time + ASKED + 6.0)
        assert sim.cluster.cuts == []
        assert await count(sim.nodes["w0"], ("w1",)) == [1]
        assert await count(sim.nodes["w1"], ("w0",)) == [1]

    rig.sim.run(scenario)
    assert rig.declared() == []


@claim("The next head learns which members do not reach each other, and lets both live on, too", of="faults")
@pytest.mark.parametrize("at", [0.7, 2.0, 4.5, 9.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_next_head_learns_of_it(at: float, seed: int) -> None:
    rig = Rig(Kill(CUT + at, "head"), seed=seed)

    async def scenario(sim: Simulation) -> None:
        await asyncio.sleep(CUT + 0.5)
        rig.lose("w0", "w1")
        await asyncio.sleep(CUT + at + 4.0 - sim.time)
        assert len(sim.heads) == 2
        await asyncio.sleep(max(CUT + LASTS - sim.time, 0.0) + ASKED + 6.0)
        assert sim.cluster.cuts == []
        assert await count(sim.nodes["w0"], ("w1", "w2", "head")) == [1, 1, 1]
        assert await count(sim.nodes["w1"], ("w0", "w2")) == [1, 2]

    rig.sim.run(scenario)
    assert rig.declared() == []


def test_one_that_ends_meanwhile_comes_as_its_next_life() -> None:
    rig = Rig(Kill(CUT + 5.0, "w1"))

    async def scenario(sim: Simulation) -> None:
        await asyncio.sleep(CUT + 0.5)
        rig.lose("w0")
        await asyncio.sleep(4.0)
        assert sim.cluster.cuts == [("w0", "w1")]
        await asyncio.sleep(2.0)
        assert sim.cluster.cuts == [], "of a life that is over"
        await asyncio.sleep(CUT + LASTS - sim.time + ASKED)
        assert await count(sim.nodes["w0"], ("w1",)) == [1]
        assert sim.nodes["w1"].incarnation == 2

    rig.sim.run(scenario)
    assert rig.declared() == ["w1#1"]
