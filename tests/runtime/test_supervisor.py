"""Supervisors on nodes of one process: strategies are the policy's tests, here is what follows from them."""

from __future__ import annotations

import asyncio

import pytest

from blockwright.policies.cluster.restart_policy import Backoff, Strategy
from blockwright.runtime import Actor, ActorDied, Down, ManualClock, NodeDown, NoSuchActor, RemoteError, endpoint
from blockwright.runtime.supervisor import Child, ChildState, Supervisor
from blockwright.tests.claims import claim
from blockwright.tests.runtime.lives import Mortal, Placed, Spot, turns

SOON = Backoff(initial=0.0)


class Shelf(Actor):
    """A child that writes down its life, and fails to start on request."""

    log: list[str] = []
    failing: set[str] = set()
    drains: dict[str, asyncio.Event] = {}

    def __init__(self, label: str) -> None:
        self.label = label

    async def on_start(self) -> None:
        if self.label in self.failing:
            raise OSError(f"{self.label} cannot start")
        self.log.append(f"+{self.label}")

    async def on_stop(self) -> None:
        self.log.append(f"-{self.label}")

    @endpoint
    async def echo(self, n: int) -> int:
        return n

    @endpoint
    async def hold(self) -> int:
        await self.drains[self.label].wait()
        return 1

    @endpoint
    async def die(self) -> None:
        from blockwright.runtime import Crash

        raise Crash("on request")


@pytest.fixture(autouse=True)
def log():
    Shelf.log = []
    Shelf.failing = set()
    Shelf.drains = {}
    return Shelf.log


@pytest.fixture
async def other(nodes, node):
    return await nodes.add("b")


def child(label: str, **kwargs) -> Child:
    return Child(name=label, actor=Shelf, args=(label,), **kwargs)


async def supervise(node, *children: Child, name: str = "sup", **kwargs):
    return await node.spawn(Supervisor([*children], **{"backoff": SOON, **kwargs}), name=name)


async def states(sup) -> dict[str, tuple[str, str, int]]:
    found = await sup.children(returns=list[ChildState])
    return {s.name: (s.state, s.address, s.restarts) for s in found}


@claim("Children start in order and stop in reverse, and none outlives its supervisor", of="actor-runtime")
async def test_children_start_in_order_and_stop_in_reverse(node, other, log):
    sup = await supervise(node, child("x"), child("y", on="b"), child("z"))
    assert log == ["+x", "+y", "+z"]
    assert await states(sup) == {"x": ("up", "a/x#1.1", 0), "y": ("up", "b/y#1.1", 0), "z": ("up", "a/z#1.1", 0)}
    await node.stop_actor(sup)
    assert log[3:] == ["-z", "-y", "-x"]
    for address in ("a/x", "b/y", "a/z"):
        with pytest.raises(NoSuchActor):
            await node.ref(address).echo(1)


@claim("Supervisors restart children by three strategies, with limits and growing pauses", of="actor-runtime")
@pytest.mark.parametrize(
    ("strategy", "then"),
    [
        ("one_for_one", ["-y", "+y"]),
        ("rest_for_one", ["-y", "-z", "+y", "+z"]),
        ("one_for_all", ["-y", "-z", "-x", "+x", "+y", "+z"]),
    ],
)
async def test_a_child_that_dies_is_restarted_with_its_group(nodes, node, other, log, strategy, then):
    sup = await supervise(node, child("x"), child("y", on="b"), child("z"), strategy=strategy)
    node.ref("b/y").die.cast()
    await nodes.advance(0.5)
    assert log[3:] == then
    assert (await states(sup))["y"] == ("up", "b/y#1.2", 1)
    assert [await node.ref(address).echo(7) for address in ("a/x", "b/y", "a/z")] == [7, 7, 7]
    assert other.actors.instances["y"].restarts == 1
    found = await sup.children(returns=list[ChildState])
    assert found[1].cause == "crashed: on request"


async def test_a_dormant_child_runs_from_start_child_to_stop_child(nodes, node, log):
    sup = await supervise(node, child("x"), child("y", dormant=True))
    await nodes.advance(0.5)
    assert (log, (await states(sup))["y"]) == (["+x"], ("done", "", 0))
    await sup.start_child("y")
    node.ref("a/y").die.cast()
    await nodes.advance(0.5)
    assert log == ["+x", "+y", "-y", "+y"], "it is restarted like any other"
    await sup.stop_child("y")
    node.ref("a/x").die.cast()
    await nodes.advance(0.5)
    assert log[4:] == ["-y", "-x", "+x"]
    await sup.start_child("y")
    assert (await states(sup))["y"][0] == "up"
    node.ref("a/y").die.cast()
    await sup.stop_child("y")  # while it waits for its restart, or before its death is known
    await nodes.advance(0.5)
    assert (await states(sup))["y"][0] == "done"
    with pytest.raises(RemoteError, match="KeyError"):
        await sup.start_child("z")


async def test_restart_kinds(nodes, node, log):
    sup = await supervise(node, child("x", restart="transient"), child("y", restart="temporary"), child("z"))
    for name in "xyz":
        await node.despawn(name)
    await nodes.advance(0.5)
    assert {name: state[0] for name, state in (await states(sup)).items()} == {"x": "done", "y": "done", "z": "up"}
    assert log == ["+x", "+y", "+z", "-x", "-y", "-z", "+z"]


async def test_a_first_start_that_fails_undoes_those_before(node, log):
    Shelf.failing = {"y"}
    with pytest.raises(OSError, match="y cannot start"):
        await supervise(node, child("x"), child("y"), child("z"))
    assert log == ["+x", "-x"]
    with pytest.raises(NodeDown, match=r"child m cannot start on 'mars': no such node is up, or was"):
        await supervise(node, child("x"), child("m", on="mars"))
    assert set(node.actors.current) == {"$node"}


@claim("Supervisors restart children by three strategies, with limits and growing pauses", of="actor-runtime")
async def test_too_many_restarts_are_given_up(nodes, node, log, caplog):
    sup = await supervise(node, child("x"), child("y"), intensity=2, period=5.0)
    downs: list[Down] = []
    node.monitor(sup, downs.append)
    for _ in range(2):
        node.ref("a/x").die.cast()
        await nodes.advance(0.25)
    assert await node.ref("a/x").echo(1) == 1
    node.ref("a/x").die.cast()
    await nodes.advance(0.25)
    assert [d.cause for d in downs] == ["crashed: gave up: 3 restarts within 5 s, 2 allowed; last: x (crashed: on request)"]
    assert log[-1] == "-y"
    assert set(node.actors.current) == {"$node"}
    assert "gave up" in caplog.text


async def test_a_restart_that_fails_counts_and_is_tried_again(nodes, node, log):
    sup = await supervise(node, child("x"), intensity=3, period=60.0, backoff=Backoff(1.0, 2.0, 10.0, 0.0))
    Shelf.failing = {"x"}
    node.ref("a/x").die.cast()
    await turns()
    assert (await states(sup))["x"][0] == "wanted"
    await nodes.advance(1.25)  # the first attempt fails
    Shelf.failing = set()
    await nodes.advance(1.5)
    assert log == ["+x", "-x"]
    await nodes.advance(0.5)
    assert log == ["+x", "-x", "+x"]
    assert (await states(sup))["x"] == ("up", "a/x#1.3", 1)
    Shelf.failing = {"x"}
    node.ref("a/x").die.cast()
    await nodes.advance(12)
    with pytest.raises(ActorDied, match=r"gave up: .*start failed: OSError: x cannot start"):
        await sup.children()


async def test_the_pause_before_a_restart_grows(nodes, node, log):
    await supervise(node, child("x"), intensity=9, period=100.0, backoff=Backoff(1.0, 2.0, 10.0, 0.0))
    for pause in (1.0, 2.0, 4.0):
        log.clear()
        node.ref("a/x").die.cast()
        await nodes.advance(pause - 0.25)
        assert log == ["-x"]
        await nodes.advance(0.5)
        assert log == ["-x", "+x"]


class EarlyClock(ManualClock):
    """Like uvloop's: timers fire a fraction of a millisecond early, and time passes between two readings."""

    passes_at = 0  # the reading, from now on, before which a millisecond passes

    def call_at(self, when, callback):
        return super().call_at(when - 0.0004, callback)

    def now(self):
        self.passes_at -= 1
        if self.passes_at == 0:
            self._now += 0.001
        return super().now()


@pytest.mark.parametrize("reading", range(1, 6))
async def test_a_child_that_falls_due_while_its_supervisor_looks_is_started(nodes, log, reading):
    nodes.clock = clock = EarlyClock()
    node = await nodes.add("a")
    await supervise(node, child("x"), backoff=Backoff(1.0, jitter=0.0))
    await node.despawn("x")
    await turns()
    clock.advance(0.9998)  # the supervisor is woken too early to start its child
    assert log == ["+x", "-x"]
    clock.passes_at = reading
    await turns()
    await nodes.advance(1.0)
    assert log == ["+x", "-x", "+x"]


async def test_a_nested_supervisor_that_gives_up_is_its_parents_business(nodes, node, other, log):
    inner = Child(
        name="inner",
        actor=Supervisor,
        args=([child("y"), child("z", on="a")],),
        kwargs={"intensity": 0, "backoff": SOON, "strategy": Strategy.ONE_FOR_ALL},
        on="b",
    )
    top = await supervise(node, child("x"), inner)
    assert log == ["+x", "+y", "+z"]
    node.ref("b/y").die.cast()
    await nodes.advance(0.5)
    assert log[3:] == ["-y", "-z", "+y", "+z"]
    assert (await states(top))["inner"] == ("up", "b/inner#1.2", 1)
    await node.stop_actor(top)
    assert log[7:] == ["-z", "-y", "-x"]


@claim("Children start in order and stop in reverse, and none outlives its supervisor", of="actor-runtime")
@pytest.mark.parametrize("end", ["kill", "node"])
async def test_no_child_outlives_its_supervisor(nodes, node, other, log, end):
    inner = Child(name="inner", actor=Supervisor, args=([child("y"), child("z", on="a")],), on="b")
    await supervise(node, child("x", on="b"), inner)
    if end == "kill":
        await node.kill_actor(node.ref("a/sup"))
    else:
        nodes.cut(node)
    await turns(60)
    assert set(other.actors.current) == {"$node"}
    if end == "kill":
        assert set(node.actors.current) == {"$node"}


async def test_a_killed_supervisor_is_restarted_over_its_old_children(nodes, node, other, log):
    inner = Child(name="inner", actor=Supervisor, args=([child("y", on="b"), child("z")],), restart="permanent")
    await supervise(node, inner)
    for life in (2, 3, 4):
        await node.kill_actor(node.ref("a/inner"))
        await nodes.advance(0.5)
        assert await node.ref(f"b/y#1.{life}").echo(1) == await node.ref(f"a/z#1.{life}").echo(1) == 1
    assert sorted(log) == sorted(["+y", "+z", "-y", "-z"] * 3 + ["+y", "+z"])


async def test_children_of_a_lost_node_wait_for_its_return(nodes, node, other, log):
    sup = await supervise(node, child("x", on="b"), child("y", on="b"), child("z"), intensity=1)
    nodes.cut(other)
    await nodes.advance(60)  # however long
    assert {name: state[0] for name, state in (await states(sup)).items()} == {"x": "wanted", "y": "wanted", "z": "up"}
    log.clear()
    await nodes.add("b", 2)
    await nodes.advance(0.5)
    assert log == ["+x", "+y"]  # two children, one failure
    assert (await states(sup))["x"] == ("up", "b/x#2.1", 1)


async def test_children_move_to_another_candidate(nodes, node, other, log):
    third = await nodes.add("c")
    sup = await supervise(node, child("x", on=["b", "c"]))
    assert (await states(sup))["x"] == ("up", "b/x#1.1", 0)
    nodes.cut(other)
    await nodes.advance(0.5)
    assert (await states(sup))["x"] == ("up", "c/x#1.1", 1)
    assert third.actors.instances["x"].restarts == 1
    assert await node.ref("c/x").echo(3) == 3


async def test_a_group_waits_for_the_node_of_its_first(nodes, node, other, log):
    await supervise(node, child("x", on="b"), child("y"), strategy="rest_for_one")
    log.clear()
    node.peering.declare_down(Down("b", 1, "silent"))
    await nodes.advance(5)
    assert log[:1] == ["-y"]
    assert "+y" not in log
    await nodes.add("b", 2)
    await nodes.advance(0.5)
    assert log[-2:] == ["+x", "+y"]


async def test_a_first_start_waits_for_a_node_that_was_here(nodes, node, other, log):
    nodes.cut(other)
    await turns()
    sup = await supervise(node, child("x", on="b"), child("y"))
    assert log == ["+y"]
    await nodes.add("b", 2)
    await nodes.advance(0.5)
    assert (await states(sup))["x"] == ("up", "b/x#2.1", 0)


async def test_a_stop_drains_and_is_bounded(nodes, node, log):
    Shelf.drains = {"x": asyncio.Event(), "y": asyncio.Event()}
    sup = await supervise(node, child("x", drain=3.0), child("y", drain=3.0))
    calls = [asyncio.ensure_future(node.ref(f"a/{name}").hold()) for name in "xy"]
    await turns()
    stopping = asyncio.ensure_future(node.stop_actor(sup))
    await turns()
    Shelf.drains["y"].set()
    await nodes.advance(0.5)
    assert await calls[1] == 1
    assert log[2:] == ["-y"]
    await nodes.advance(3)
    with pytest.raises(ActorDied):
        await calls[0]
    assert log[2:] == ["-y", "-x"]
    await stopping


async def test_a_stopping_node_ends_supervisors_before_their_children(nodes, node, other, log):
    class Loud(Supervisor):
        async def on_stop(self) -> None:
            log.append("-sup")
            await super().on_stop()

    await node.spawn(Loud([child("x"), child("y", on="b")], backoff=SOON), name="sup")
    await node.spawn(Shelf("late"), name="late")
    node.ref("a/x").die.cast()  # a restarted child is younger than everything
    await nodes.advance(0.25)
    log.clear()
    await node.stop()
    assert log == ["-late", "-sup", "-y", "-x"]
    assert set(other.actors.current) == {"$node"}


async def test_children_on_a_node_that_stops_wait(nodes, node, other, log):
    class Slow(Mortal):
        async def on_stop(self) -> None:
            await self.gate.wait()

    slow = Slow()
    await other.spawn(slow, name="slow")
    sup = await supervise(node, child("x", on="b"), intensity=1)
    stopping = asyncio.ensure_future(other.stop())
    await nodes.advance(5)
    assert (await states(sup))["x"][0] == "wanted"
    slow.gate.set()
    await nodes.finish(stopping)
    await nodes.add("b", 2)
    await nodes.advance(0.5)
    assert (await states(sup))["x"][:2] == ("up", "b/x#2.1")


async def test_a_supervisor_that_is_stopped_while_it_starts_a_child(nodes, node, other, log):
    hanging = Child(name="h", actor=Placed, args=(Spot(1),), kwargs={"start": "hang"}, on="b")
    starting = asyncio.ensure_future(supervise(node, child("x"), hanging))
    await turns()
    assert "h" in other.actors.current
    await node.despawn("sup")
    with pytest.raises(ActorDied, match="ended while it started"):
        await starting
    await turns()
    assert set(node.actors.current) == set(other.actors.current) == {"$node"}
    assert log == ["+x", "-x"]


async def test_a_specification_travels(nodes, node, other, log):
    sup = await node.spawn(Supervisor, name="sup", on="b", args=([child("x"), child("y", on=["a"])], "rest_for_one"))
    assert await states(sup) == {"x": ("up", "b/x#1.1", 0), "y": ("up", "a/y#1.1", 0)}
    with pytest.raises(RemoteError, match=r"ValueError: children .* are not named apart"):
        await node.spawn(Supervisor, name="twice", on="b", args=([child("x"), child("x")],))
    with pytest.raises(ValueError, match="'sometimes' is not a valid Strategy"):
        Supervisor([], strategy="sometimes")
