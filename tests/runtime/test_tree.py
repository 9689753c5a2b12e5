"""Trees as data, what they start, and processes as children like any other."""

from __future__ import annotations

import asyncio

import pytest

from blockwright.policies.cluster.restart_policy import Backoff
from blockwright.runtime import ActorDied, Child, ManualClock, Node, NoSuchActor
from blockwright.runtime.cluster.cluster import ClusterHead
from blockwright.runtime.cluster.inprocess import InProcessLauncher
from blockwright.runtime.cluster.launcher import LaunchError
from blockwright.runtime.cluster.process import Process
from blockwright.runtime.tree import Branch, ProcessSpec, lines, start_inside, start_tree
from blockwright.tests.claims import claim
from blockwright.tests.runtime.lives import Mortal
from blockwright.transport.address import PeerId

MORTAL = "blockwright.tests.runtime.lives:Mortal"
INSIDE = Branch(name="root", intensity=0, children=(Child(name="m", actor=MORTAL),))
ENTRY = "blockwright.tests.runtime.test_tree:enter"
SLOWLY = Backoff(initial=1.0, maximum=4.0, jitter=0.0, at_once=1)
TREE = Branch(
    name="top",
    intensity=0,
    children=(
        Child(name="a", actor=MORTAL),
        Branch(
            name="nodes",
            intensity=None,
            period=10.0,
            backoff=SLOWLY,
            children=(
                ProcessSpec(name="n0", entry=ENTRY, inside=INSIDE),
                ProcessSpec(name="n1", entry=ENTRY, inside=INSIDE),
            ),
        ),
    ),
)


async def enter(node: Node, config: int) -> None:
    await start_inside(node, INSIDE, {"m": Mortal()} if config else {})


class Flaky(InProcessLauncher):
    """Fails as often as the test asks."""

    failures = 0

    async def spawn(self, spec):
        if self.failures:
            self.failures -= 1
            raise LaunchError("no memory")
        return await super().spawn(spec)


class Rig:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.launcher = Flaky(clock=self.clock)
        self.hub = ClusterHead("head", launcher=self.launcher, clock=self.clock, heartbeat=0.5, silence=1e6, startup=1e6)
        self.launched: list[tuple[str, int, str]] = []
        self.downs: list[str] = []
        self.hub.on_launch(lambda *news: self.launched.append(news))
        self.hub.on_down(lambda down: self.downs.append(f"{down.node}#{down.incarnation} {down.cause}"))

    async def start(self, tree: Branch = TREE):
        await self.hub.start()
        self.root = await start_tree(self.hub.node, tree, {"a": (), "n0": 0, "n1": 1}, nodes=self.hub)
        for name in ("n0", "n1"):
            await turns()
            await self.hub.wait_up(name)
        await turns()
        return self.hub.node

    async def advance(self, seconds: float) -> None:
        for _ in range(round(seconds * 4)):
            self.clock.advance(0.25)
            await turns(30)


async def turns(count: int = 60) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture
async def rig():
    made = Rig()
    yield made
    await made.hub.stop()


def test_a_tree_is_printed_before_anything_runs():
    assert list(lines(TREE)) == [
        "top: one for one, at most 0 restarts in 5 s",
        "  a: Mortal",
        "  nodes: one for one, never gives up",
        f"    n0: process of {ENTRY}",
        "      root: one for one, at most 0 restarts in 5 s",
        "        m: Mortal",
        f"    n1: process of {ENTRY}",
        "      root: one for one, at most 0 restarts in 5 s",
        "        m: Mortal",
    ]


async def test_everything_is_started_and_knows_its_supervisor(rig):
    node = await rig.start()
    assert [await node.ref(address).echo(3) for address in ("head/a", "n0/m", "n1/m")] == [3, 3, 3]
    views = [node.inspect(), *[await node.inspect_peer(name) for name in ("n0", "n1")]]
    found = {f"{view.name}/{actor.name}": actor.supervisor for view in views for actor in view.actors}
    assert {name: above for name, above in found.items() if not name.endswith("$node")} == {
        "head/top": "",
        "head/a": "head/top",
        "head/nodes": "head/top",
        "head/n0": "head/nodes",
        "head/n1": "head/nodes",
        "n0/root": "head/n0",
        "n0/m": "n0/root",
        "n1/root": "head/n1",
        "n1/m": "n1/root",
    }
    assert rig.launched == [("n0", 1, ""), ("n1", 1, "")]


@claim("Processes are restarted at once, then with growing pauses, by one restart policy", of="faults")
async def test_a_process_that_dies_is_started_at_once_then_with_growing_pauses(rig):
    node = await rig.start()
    for life, pause in ((2, 0.0), (3, 1.0), (4, 2.0)):
        rig.launcher.kill(PeerId("n0", life - 1))
        await turns()
        await rig.advance(0.5)  # the broken connection waits for its explanation
        assert (node.current_incarnation("n0") == life) == (pause == 0.0)
        if pause:
            (view,) = [actor for actor in node.inspect().actors if actor.name == "nodes"]
            assert view.missing == {"n0": "exited -9"}
        await rig.advance(pause)
        assert await node.ref(f"n0/m#{life}").echo(life) == life
    (view,) = [actor for actor in node.inspect().actors if actor.name == "n0"]
    assert (view.restarts, view.kind) == (3, "Process")
    assert await node.ref("n1/m#1").echo(1) == 1, "the other one goes on"
    assert rig.downs == [f"n0#{life} exited -9" for life in (1, 2, 3)]


async def test_a_launch_that_fails_is_reported_and_tried_again(rig):
    node = await rig.start()
    rig.launcher.failures = 2
    rig.launcher.kill(PeerId("n0", 1))
    await turns()
    await rig.advance(6.0)
    assert rig.launched[2:] == [("n0", 2, "no memory"), ("n0", 3, "no memory"), ("n0", 4, "")]
    assert await node.ref("n0/m#4").echo(1) == 1


async def test_a_kill_names_its_cause(rig):
    node = await rig.start()
    node.ref("head/n1", Process).kill.cast("stalled")
    await turns()
    assert rig.downs == ["n1#1 stalled"]
    await rig.advance(0.5)
    assert await node.ref("n1/m#2").echo(1) == 1


async def test_what_ends_inside_ends_the_process(rig, caplog):
    node = await rig.start()
    await node.kill_actor(node.ref("n0/m"))
    await rig.advance(1.0)
    assert rig.downs == ["n0#1 exited 0"]
    assert await node.ref("n0/m#2").echo(1) == 1
    assert "n0/root#1.1 ended: crashed: gave up" in caplog.text


async def test_without_its_actor_no_process_lives(rig):
    """However the actor ends: the supervisor's next one finds the name free."""
    node = await rig.start()
    await node.kill_actor(node.ref("head/n0"))
    await rig.advance(12.0)
    assert node.current_incarnation("n0") > 1
    assert await node.ref("n0/m").echo(1) == 1


async def test_a_tree_that_ends_ends_its_processes(rig):
    node = await rig.start()
    await node.kill_actor(node.ref("head/a"))  # none of the top's children may die
    await rig.advance(1.0)
    assert set(node.actors.current) == {"$node"}
    assert sorted(rig.downs) == ["n0#1 stopped by its supervisor", "n1#1 stopped by its supervisor"]
    with pytest.raises(ActorDied):
        await rig.root.children()


async def test_what_cannot_start_leaves_nothing(rig):
    await rig.hub.start()
    broken = Branch(name="top", children=(*TREE.children, Child(name="z", actor="blockwright.runtime:Supervisor")))
    with pytest.raises(TypeError, match="children"):
        await start_tree(rig.hub.node, broken, {"n0": 0, "n1": 0}, nodes=rig.hub)
    await turns()
    assert set(rig.hub.node.actors.current) == {"$node"}
    with pytest.raises(NoSuchActor):
        await rig.hub.node.ref("head/a").echo(1)
