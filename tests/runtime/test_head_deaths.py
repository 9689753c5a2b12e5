"""A head that dies, on the deterministic cluster: members go on, and the next head takes them as the lives that they are."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from blockwright.runtime import Down, Node, NodeDown, RuntimeFault, endpoint
from blockwright.runtime.testing import FaultPlan, Kill, Partition, Pause, Simulation, simulation
from blockwright.runtime.testing.faults import Fault
from blockwright.runtime.testing.trace import message_name
from blockwright.runtime.tree import Branch, ProcessSpec, start_inside, start_tree
from blockwright.tests.claims import claim
from blockwright.tests.runtime.lives import Tally
from blockwright.transport.address import PeerId
from blockwright.transport.handshake import Lane
from blockwright.transport.wire import Traffic


class Counter(Tally):
    @endpoint(concurrent=True)
    async def relay(self, to: str, by: int) -> int:
        return await self.node.ref(to).add(by, returns=int, timeout=2.0)


class Rig:
    """Three workers with a counter each, and a head that may die."""

    def __init__(self, *faults: Fault, seed: int = 1, **options) -> None:
        self.headless: list[tuple[str, float]] = []
        self.adopted: list[tuple[str, int]] = []
        self.downs: list[Down] = []  # of heads, as workers saw them
        options = {"orphan_grace": 60.0, "setup_head": self.setup_head, "limit": 600.0} | options
        self.sim = Simulation(seed=seed, faults=FaultPlan(faults), setup=self.setup, **options)

    async def setup_head(self, node: Node) -> None:
        await node.spawn(Counter(), name="counter")

    async def setup(self, node: Node) -> None:
        await node.spawn(Counter(), name="counter")
        node.on_headless(lambda: self.headless.append((node.name, self.sim.time)))
        node.on_adopted(lambda epoch: self.adopted.append((node.name, epoch)))
        node.monitor("head", self.downs.append)

    def lines(self, *kinds: str) -> list[str]:
        return [" ".join(line.split()[1:]) for line in self.sim.trace.lines() if line.split()[1] in kinds]


async def everyone_led(sim: Simulation, epoch: int) -> None:
    for name in sim.names:
        await until_led(sim.nodes[name], epoch)


async def known(sim: Simulation) -> None:
    """Until the address book has come everywhere."""
    await asyncio.sleep(0.1)


def test_members_go_on_without_a_head_and_are_adopted_as_they_are() -> None:
    rig = Rig(Kill(1.0, "head"), restart=2.0)

    async def scenario(sim: Simulation) -> None:
        for name in sim.names:
            await sim.nodes[name].ref(f"{name}/counter").add(5)
        await asyncio.sleep(2.0)
        assert [sim.nodes[name].head_state.state for name in sim.names] == ["headless"] * 3
        assert await sim.nodes["w0"].ref("w1/counter").relay("w2/counter", 2, returns=int) == 7
        with pytest.raises(NodeDown):
            await sim.nodes["w0"].ref("head/counter").add(1)
        assert rig.downs == [], "the same head may come back"
        await everyone_led(sim, 2)
        assert [sim.nodes[name].incarnation for name in sim.names] == [1, 1, 1]
        assert await sim.nodes["w0"].ref("head/counter").add(1) == 1
        assert await sim.nodes["w0"].ref("w1/counter").relay("head/counter", 2, returns=int) == 3

    rig.sim.run(scenario)
    assert sorted(rig.adopted) == [("w0", 2), ("w1", 2), ("w2", 2)]
    assert [down.cause for down in rig.downs] == ["succeeded by head#2"] * 3
    assert {down.ref for down in rig.downs} == {"head#1"}
    assert rig.lines("down") == []
    assert sorted(rig.lines("up")) == ["up w0#1", "up w1#1", "up w2#1"]


KINDS = ("HELLO", "READY", "BOOK", "DOWN", "HEARTBEAT", "CALL", "REPLY", "CAST", "SEEN", "LOST", "LIVES", "TICKET", "?")


@claim("Members go on when their head dies, at whatever kind of message", of="actor-runtime")
@pytest.mark.parametrize("kind", KINDS)
def test_the_head_dies_at_every_kind_of_message(kind: str) -> None:
    """Each second time that a head sends or gets it, also while it adopts. "?" is what comes before a member is known: its
    question, or the answer."""
    seen = 0
    struck: list[int] = []

    def choose(source: PeerId, target: PeerId, lane: Lane | Traffic, body: bytes) -> Fault | None:
        nonlocal seen
        if "head" not in (source.name, target.name) or rig.sim.time < 0.5 or message_name(body) != kind:
            return None
        head = max(source if source.name == "head" else target, PeerId("head", 0))
        seen += 1
        if seen % 2 == 0 and len(struck) < 3 and head.incarnation not in struck:
            struck.append(head.incarnation)
            return Kill(0.0, "head")
        return None

    rig = Rig(Kill(2.0, "w1"), Kill(4.0, "head"), Partition(5.0, ("w0",), 1.5, ("w2",)), restart=0.3)
    rig.sim.strike(choose)

    async def scenario(sim: Simulation) -> None:
        for _ in range(60):
            for name in sim.names:
                with contextlib.suppress(RuntimeFault):
                    await sim.nodes[name].ref("head/counter").add(1, timeout=1.0)
                for other in (*sim.names, "head"):
                    sim.nodes[name].ref(f"{other}/counter").add.cast(1)
            await asyncio.sleep(0.25)
        await everyone_led(sim, len(sim.heads))
        await asyncio.sleep(1.0)
        for name in sim.names:
            for other in (*sim.names, "head"):
                assert await sim.nodes[name].ref(f"{other}/counter").add(0, returns=int) >= 0

    rig.sim.run(scenario)
    assert struck, "the head died at such a message"
    assert len(rig.sim.heads) >= 2 + len(struck)
    assert not any(head.superseded for head in rig.sim.heads)


def test_a_worker_that_dies_meanwhile_is_over_for_its_peers_at_once_and_is_started_anew() -> None:
    rig = Rig(Kill(1.0, "head"), Kill(1.5, "w1"), restart=3.0)
    ends: list[tuple[str, float]] = []

    async def scenario(sim: Simulation) -> None:
        await known(sim)
        assert await sim.nodes["w0"].ref("w1/counter").add(1, returns=int) == 1  # they have met
        sim.nodes["w0"].monitor("w1", lambda down: ends.append((down.cause, sim.time)))
        struck = sim.time
        await asyncio.sleep(2.5)
        assert [cause for cause, _ in ends] == ["disconnected"]
        assert ends[0][1] < struck + 1.6, "no head is needed to see it"
        with pytest.raises(NodeDown):
            await sim.nodes["w0"].ref("w1/counter").add(1)
        while sim.nodes["w1"].incarnation == 1:  # noqa: ASYNC110 - another node comes
            await asyncio.sleep(0.05)
        await everyone_led(sim, 2)
        await asyncio.sleep(1.0)
        assert await sim.nodes["w0"].ref("w1/counter").add(1, returns=int) == 1
        assert await sim.nodes["w2"].ref("w1/counter").add(1, returns=int) == 2

    rig.sim.run(scenario)
    assert sorted(rig.lines("up")) == ["up w0#1", "up w1#1", "up w1#2", "up w2#1"], "its number is not given again"
    assert rig.lines("adopted") == ["adopted w0#1 2", "adopted w2#1 2"] or rig.lines("adopted") == [
        "adopted w2#1 2",
        "adopted w0#1 2",
    ]


def test_a_worker_that_falls_silent_meanwhile_is_over_for_its_peers() -> None:
    rig = Rig(Kill(1.0, "head"), Pause(1.2, "w1", 30.0), restart=6.0)
    ends: list[Down] = []

    async def scenario(sim: Simulation) -> None:
        await known(sim)
        assert await sim.nodes["w0"].ref("w1/counter").add(1, returns=int) == 1
        sim.nodes["w0"].monitor("w1", ends.append)
        await asyncio.sleep(5.5)
        assert [down.cause for down in ends] == ["silent"]
        while sim.nodes["w1"].incarnation == 1:  # noqa: ASYNC110 - another node comes
            await asyncio.sleep(0.05)

    rig.sim.run(scenario)
    assert rig.lines("down")[0].startswith("down w1#1 it did not come back when its head had died")


def test_an_older_head_that_wakes_is_refused_and_ends_itself() -> None:
    rig = Rig(Pause(1.0, "head", 12.0), restart=1.5)

    async def scenario(sim: Simulation) -> None:
        await asyncio.sleep(3.9)
        assert [sim.nodes[name].head_state.state for name in sim.names] == ["headless"] * 3, "it is silent, not gone"
        await everyone_led(sim, 2)
        await asyncio.sleep(12.0)
        first, second = sim.heads
        assert first.superseded == 2
        assert first.node.closed.is_set()
        assert not second.superseded
        assert set(second.node.peers()) == set(sim.names)

    rig.sim.run(scenario)
    said = rig.lines("superseded")
    assert len(said) == 1
    assert "head head#1 ends itself: " in said[0]
    assert said[0].endswith("the later head head#2, so head#1 is over")
    assert rig.lines("down") == [], "and it declares nobody down"
    assert len(rig.lines("up")) == 3


def test_a_head_that_is_silent_for_a_while_is_obeyed_again() -> None:
    """As no other head has come, its epoch is still the highest; what it monitors and holds is still there."""
    rig = Rig(Partition(1.0, ("head",), 6.0), restart=None)
    ends: list[Down] = []

    async def scenario(sim: Simulation) -> None:
        sim.head.monitor("w1", ends.append)
        sim.head.monitor(sim.head.ref("w1/counter"), ends.append)
        await known(sim)
        assert await sim.nodes["w0"].ref("w1/counter").add(3, returns=int) == 3
        await asyncio.sleep(5.5)
        assert [sim.nodes[name].head_state.state for name in sim.names] == ["headless"] * 3
        assert "3 of 3 members are out of reach at once" in sim.cluster.doubts
        await everyone_led(sim, 1)
        await asyncio.sleep(1.0)
        assert sim.cluster.doubts == ""
        assert ends == []
        assert await sim.nodes["w0"].ref("head/counter").add(1, returns=int) == 1
        assert await sim.nodes["w1"].ref("w2/counter").relay("head/counter", 1, returns=int) == 2
        await sim.nodes["w1"].despawn("counter")
        await asyncio.sleep(1.0)
        assert [(down.node, down.actor) for down in ends] == [("w1", "counter")], "a monitor outlives the gap"

    rig.sim.run(scenario)
    assert rig.lines("down") == []
    assert sorted(rig.lines("adopted")) == ["adopted w0#1 1", "adopted w1#1 1", "adopted w2#1 1"]
    assert rig.downs == []


def test_a_member_that_is_cut_off_alone_is_down_and_the_others_stay() -> None:
    rig = Rig(Partition(1.0, ("w1",), 8.0), restart=None)

    async def scenario(sim: Simulation) -> None:
        await asyncio.sleep(6.0)
        assert sim.cluster.doubts == ""
        assert set(sim.head.peers()) == {"w0", "w2"}
        assert sim.nodes["w0"].head_state.state == "led"
        await asyncio.sleep(6.0)

    rig.sim.run(scenario)
    assert [line.split()[1] for line in rig.lines("down")] == ["w1#1"]


@pytest.mark.parametrize("ways", [(("head",), ("w0", "w1", "w2")), (("w0", "w1", "w2"), ("head",))])
def test_a_way_that_is_cut_in_one_direction_is_cut(ways: tuple[tuple[str, ...], tuple[str, ...]]) -> None:
    sources, targets = ways
    rig = Rig(Partition(1.0, sources, 5.0, targets, one_way=True), restart=None)

    async def scenario(sim: Simulation) -> None:
        await asyncio.sleep(5.5)
        assert {sim.nodes[name].head_state.state for name in sim.names} == {"headless"}
        await everyone_led(sim, 1)
        await asyncio.sleep(2.0)
        assert await sim.nodes["w0"].ref("head/counter").add(1, returns=int) == 1

    rig.sim.run(scenario)
    assert rig.lines("down") == []


def test_without_grace_members_end_with_their_head() -> None:
    rig = Rig(orphan_grace=0.0, setup_head=None, restart=None)

    async def scenario(sim: Simulation) -> None:
        await asyncio.sleep(1.0)
        sim.network.cut("loop://head-1")
        await asyncio.sleep(1.0)
        assert {sim.nodes[name].farewell for name in sim.names} == {"the head head#1 is down: disconnected"}

    rig.sim.run(scenario)
    assert rig.headless == []


def test_members_end_when_the_grace_is_over() -> None:
    rig = Rig(Kill(1.0, "head"), orphan_grace=5.0, restart=30.0)

    async def scenario(sim: Simulation) -> None:
        nodes = [sim.nodes[name] for name in sim.names]
        await asyncio.sleep(5.5)
        assert [node.open for node in nodes] == [True] * 3
        await asyncio.sleep(1.5)
        assert {node.farewell for node in nodes} == {"no head came within 5 s after head#1 was lost: disconnected"}
        await asyncio.sleep(30.0)

    rig.sim.run(scenario)
    assert sorted(rig.lines("up"))[1::2] == ["up w0#2", "up w1#2", "up w2#2"]


def test_a_node_that_has_not_started_yet_ends_with_its_head() -> None:
    begun: list[str] = []

    class Slow(Rig):
        async def setup(self, node: Node) -> None:
            begun.append(str(node.id))
            if node.id == ("w1", 2):
                await asyncio.sleep(8.0)
            await super().setup(node)

    rig = Slow(Kill(1.0, "w1"), Kill(3.0, "head"), restart=0.5)

    async def scenario(sim: Simulation) -> None:
        await asyncio.sleep(12.0)
        await everyone_led(sim, 2)

    rig.sim.run(scenario)
    assert begun == ["w0#1", "w1#1", "w2#1", "w1#2", "w1#3"]


def test_a_member_that_cannot_come_back_in_time_is_declared_down() -> None:
    rig = Rig(Kill(1.0, "head"), Partition(0.9, ("w2",), 20.0, ("head",)), restart=1.0)

    async def scenario(sim: Simulation) -> None:
        await asyncio.sleep(10.0)
        assert set(sim.head.peers()) >= {"w0", "w1"}
        await asyncio.sleep(20.0)

    rig.sim.run(scenario)
    assert rig.lines("down")[0] == "down w2#1 it did not come back when its head had died"


def test_names_are_registered_again() -> None:
    rig = Rig(Kill(1.0, "head"), restart=0.5)

    async def scenario(sim: Simulation) -> None:
        await sim.nodes["w1"].register("counters", sim.nodes["w1"].ref("w1/counter"))
        await everyone_led(sim, 2)
        found = await sim.nodes["w2"].lookup("counters", wait=1.0)
        assert str(found.address) == "w1/counter#1.1"

    rig.sim.run(scenario)


INSIDE = Branch(name="in")
TREE = Branch(name="root", children=(ProcessSpec(name="p0", entry=f"{simulation.__name__}:enter", inside=INSIDE),))


class TreeRig:
    """A head whose supervision tree has a process, in which a tree of its own runs."""

    def __init__(self, *faults: Fault) -> None:
        self.starts: list[str] = []
        self.sim = Simulation(
            seed=1,
            nodes=(),
            faults=FaultPlan(faults),
            setup=self.setup,
            setup_head=self.setup_head,
            orphan_grace=60.0,
            limit=600.0,
        )

    async def setup_head(self, node: Node) -> None:
        await start_tree(node, TREE, {"p0": None}, nodes=self.sim.cluster)

    async def setup(self, node: Node) -> None:
        self.starts.append(str(node.id))
        await node.spawn(Counter(), name="counter")
        await start_inside(node, INSIDE, {})


def test_the_tree_of_the_next_head_takes_the_processes_of_the_last() -> None:
    rig = TreeRig(Kill(1.0, "head"))

    async def scenario(sim: Simulation) -> None:
        await known(sim)
        worker = sim.nodes["p0"]
        await until_led(worker, 2)
        await asyncio.sleep(1.0)
        assert rig.starts == ["p0#1"], "it goes on though its owner, at the first head, is gone"
        assert "in" in worker.actors.current
        await sim.loop.create_task(sim.head.kill_actor(sim.head.ref("head/p0")), context=sim.context_of_head())
        await asyncio.sleep(1.0)
        assert worker.closed.is_set(), "it is owned again"
        assert worker.farewell == "p0/in#1.1 ended: owner head/p0#2.1 has ended: killed"
        assert rig.starts == ["p0#1", "p0#2"], "and its supervisor starts another"

    rig.sim.run(scenario)


def test_a_process_that_died_without_a_head_is_started_again_by_the_next_ones_tree() -> None:
    rig = TreeRig(Kill(1.0, "head"), Kill(1.1, "p0"))

    async def scenario(sim: Simulation) -> None:
        await asyncio.sleep(6.0)
        assert rig.starts == ["p0#1", "p0#2"]
        assert await sim.nodes["p0"].ref("p0/counter").add(1, returns=int) == 1

    rig.sim.run(scenario)


async def until_led(node: Node, epoch: int) -> None:
    while (node.head_state.state, node.head_state.epoch) != ("led", epoch):  # noqa: ASYNC110 - virtual time
        await asyncio.sleep(0.01)
