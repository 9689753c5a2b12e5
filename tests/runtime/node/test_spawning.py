"""Spawning and ending actors by name, here and on another node, and what becomes of spawns that are given up."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from blockwright.runtime import (
    Actor,
    ActorDied,
    DeadlineExceeded,
    EncodeError,
    NodeDown,
    NoSuchActor,
    RemoteError,
    endpoint,
)
from blockwright.runtime.base.names import import_name
from blockwright.runtime.node.actor_classes import load_class
from blockwright.tests.runtime.lives import MAY_IMPORT, Mortal, Placed, Spot, turns
from blockwright.transport.address import PeerId
from blockwright.transport.errors import AddressError

PLACED = "blockwright.tests.runtime.lives:Placed"


@pytest.fixture
async def other(nodes, node):
    return await nodes.add("b")


@pytest.mark.parametrize("on", ["", "a", "b"])
@pytest.mark.parametrize("what", [Placed, PLACED])
async def test_a_class_is_spawned_anywhere(node, other, on, what):
    args, kwargs = (Spot(1, 2), np.arange(200)), {"loose": [1, "x"]}
    ref = await node.spawn(what, name="x", on=on, args=args, kwargs=kwargs)
    at = on or "a"
    assert str(ref) == f"{at}/x#1.1"
    assert await ref.where() == f"{at} Spot(x=1, y=2) [1, 'x'] 19900"
    assert await other.ref(f"{at}/x").where() == await ref.where()


async def test_a_node_that_imports_for_long_goes_on(node, other, tmp_path, monkeypatch):
    """Its heartbeats come from the loop: standing still, it would be declared down as hung."""
    (tmp_path / "slow_to_import.py").write_text(
        "import blockwright.tests.runtime.lives as lives\n"
        "from blockwright.runtime import Actor\n"
        "assert lives.MAY_IMPORT.wait(20), 'the loop stood still'\n"
        "class Slow(Actor): pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    spawning = [asyncio.ensure_future(node.spawn("slow_to_import:Slow", name=name, on="b")) for name in ("x", "y")]
    await turns()
    MAY_IMPORT.set()
    assert [str(ref) for ref in await asyncio.gather(*spawning)] == ["b/x#1.1", "b/y#1.1"]
    for _ in range(2):
        with pytest.raises(RemoteError, match="No module named 'not_there'"):
            await node.spawn("not_there:Slow", name="z", on="b")


async def test_nested_classes_have_import_names():
    assert load_class(import_name(Placed.Inner)) is Placed.Inner


async def test_what_cannot_be_imported_is_refused(node, other):
    class Local(Actor):
        pass

    with pytest.raises(ValueError, match="move it to the top of a module"):
        await node.spawn(Local, name="x", on="b")
    with pytest.raises(ValueError, match="exists in this process"):
        await node.spawn(Mortal(), name="x", on="b")
    with pytest.raises(ValueError, match="instance already"):
        await node.spawn(Mortal(), name="x", args=("y",))
    for what, text in (
        ("os:getcwd", "is not a subclass of Actor"),
        ("blockwright.tests.runtime.lives:Spot", "is not a subclass of Actor"),
        ("blockwright.tests.runtime.lives:Nothing.here", "is not a subclass of Actor"),
        ("justaname", "module:Qualname"),
        ("no.such.module:Thing", "ModuleNotFoundError"),
    ):
        with pytest.raises(RemoteError, match=text):
            await node.spawn(what, name="x", on="b")
    assert str(await node.spawn(Local, name="x")) == "a/x#1.1"


async def test_arguments_are_checked_on_both_sides(node, other):
    with pytest.raises(RemoteError, match=r"Placed\(spot\): .*Spot"):
        await node.spawn(PLACED, name="x", on="b", args=(7,))
    with pytest.raises(RemoteError, match="missing a required argument: 'spot'"):
        await node.spawn(PLACED, name="x", on="b")
    with pytest.raises(EncodeError, match="missing a required argument"):
        await node.spawn(Placed, name="x", on="b")
    with pytest.raises(EncodeError, match=r"loose\) holds dataclasses; annotate"):
        await node.spawn(Placed, name="x", on="b", args=(Spot(1),), kwargs={"loose": Spot(2)})
    with pytest.raises(EncodeError, match=r"Placed\(loose\).*object cannot travel"):
        await node.spawn(Placed, name="x", on="b", args=(Spot(1),), kwargs={"loose": object()})
    with pytest.raises(AddressError):
        await node.spawn(Mortal, name="$node", on="b")
    with pytest.raises(AddressError):
        await node.spawn(Mortal, name="no/name")


async def test_errors_of_the_start_and_taken_names_reach_the_spawner(node, other):
    kwargs = {"start": "fail"}
    with pytest.raises(RemoteError, match="ValueError: not here") as raised:
        await node.spawn(Placed, name="x", on="b", args=(Spot(1),), kwargs=kwargs)
    assert "on_start" in raised.value.trace
    with pytest.raises(ValueError, match="not here"):
        await node.spawn(Placed, name="x", args=(Spot(1),), kwargs=kwargs)
    ref = await node.spawn(Mortal, name="x", on="b")
    assert ref.life == 2
    with pytest.raises(RemoteError, match="has an actor 'x' already"):
        await node.spawn(Mortal, name="x", on="b")
    with pytest.raises(NodeDown, match="mars is not known"):
        await node.spawn(Mortal, name="x", on="mars")


@pytest.mark.parametrize("how", ["cancelled", "late"])
async def test_a_spawn_that_is_given_up_leaves_nothing(nodes, node, other, how):
    spawning = asyncio.ensure_future(
        node.spawn(Placed, name="x", on="b", args=(Spot(1),), kwargs={"start": "hang"}, patience=3.0)
    )
    await turns()
    assert "x" in other.actors.current
    if how == "cancelled":
        spawning.cancel()
        with pytest.raises(asyncio.CancelledError):
            await spawning
    else:
        with pytest.raises(DeadlineExceeded):
            await nodes.finish(spawning)
    await turns()
    assert "x" not in other.actors.current


async def test_an_actor_whose_spawner_gave_up_when_it_had_just_started_is_ended(node, other):
    """The cancellation crosses with the answer: it finds no call any more, only the actor."""
    spawning = asyncio.ensure_future(node.spawn(Mortal, name="x", on="b"))
    for _ in range(100):
        if "x" in other.actors.instances:
            break
        await turns(1)
    assert not spawning.done()
    spawning.cancel()
    await turns()
    assert spawning.cancelled()
    assert "x" not in other.actors.current


async def test_a_spawn_that_comes_after_it_was_given_up_does_not_begin(node, other):
    system = node.actors.current["$node"].actor
    await system.discard("x", "t-1")
    with pytest.raises(ValueError, match="given up before it began"):
        await system.spawn(PLACED, "x", [[0]], {}, 10, "", 0, "t-1")
    for i in range(3000):
        await system.discard("x", f"u-{i}")
    assert len(system._given_up) == 1024


@pytest.mark.parametrize("on", ["a", "b"])
async def test_actors_are_stopped_and_killed_anywhere(nodes, node, other, on):
    ref = await node.spawn(Mortal, name="x", on=on)
    calls = [asyncio.ensure_future(ref.hold()), asyncio.ensure_future(ref.echo(1))]
    await turns()
    actor = nodes.all[on == "b"].actors.instances["x"].actor
    stopping = asyncio.ensure_future(node.stop_actor(ref, drain=5.0))
    await turns()
    actor.gate.set()
    await stopping
    assert [await call for call in calls] == [0, 1]
    assert actor.log[-1] == "stop "
    await node.stop_actor(ref)  # it is over: nothing to do
    with pytest.raises(NoSuchActor, match="no actor 'x'"):
        await node.stop_actor(node.ref(f"{on}/x"))
    again = await node.spawn(Mortal, name="x", on=on)
    await node.stop_actor(ref)  # of the earlier life: the successor stays
    assert await again.echo(2) == 2
    actor = nodes.all[on == "b"].actors.instances["x"].actor
    await node.kill_actor(node.ref(f"{on}/x"))
    assert "stop " not in actor.log
    with pytest.raises(ActorDied, match="killed"):
        await again.echo(3)
    await node.kill_actor(again)


async def test_errors_of_on_stop_reach_who_stops(node, other):
    class Bad(Mortal):
        async def on_stop(self) -> None:
            raise ValueError("cannot close")

    await other.spawn(Bad(), name="x")
    with pytest.raises(RemoteError, match="ValueError: cannot close"):
        await node.stop_actor(node.ref("b/x"))
    assert "x" not in other.actors.current


async def test_a_node_that_stops_starts_nothing(nodes, node, other):
    class Slow(Mortal):
        async def on_stop(self) -> None:
            await self.gate.wait()

    slow = Slow()
    await other.spawn(slow, name="slow")
    stopping = asyncio.ensure_future(other.stop())
    await turns()
    with pytest.raises(RemoteError, match="NodeDown: node b#1 is stopping"):
        await node.spawn(Mortal, name="x", on="b")
    slow.gate.set()
    await stopping
    await turns()
    with pytest.raises(NodeDown):
        await node.stop_actor(node.ref("b/slow"))


async def test_an_owned_actor_does_not_outlive_its_owner(nodes, node, other):
    async def owned(by, on: str, name: str):
        return await node.spawn(Mortal, name=name, on=on, owner=by.address)

    for end in ("stop", "crash", "kill"):
        owner = await node.spawn(Mortal, name="owner")
        here, there = await owned(owner, "a", "here"), await owned(owner, "b", "there")
        if end == "stop":
            await node.stop_actor(owner)
        elif end == "kill":
            await node.kill_actor(owner)
        else:
            owner.crash.cast("bad")
        await turns(40)
        for ref in (here, there):
            with pytest.raises(ActorDied, match=r"owner a/owner#1.* has ended: "):
                await ref.echo(1)
    with pytest.raises(ActorDied, match="owner"):  # the owner is over when its child begins
        await (await owned(owner, "b", "late")).echo(1)
    owner = await node.spawn(Mortal, name="owner")
    await owned(owner, "b", "there")
    nodes.cut(node)
    await turns()
    assert set(other.actors.current) == {"$node"}
    assert PeerId("a", 1) == node.id


class Unfound(Actor):
    @endpoint
    async def get(self) -> Nowhere:  # noqa: F821 - that is the point
        raise NotImplementedError


async def test_what_is_no_actor_is_refused_by_name(node):
    for wrong in (dict, 3, None, object()):
        with pytest.raises(TypeError, match="neither a subclass of Actor"):
            await node.spawn(wrong, name="x")
    with pytest.raises(TypeError, match=r"endpoint Unfound\.get: name 'Nowhere' is not defined"):
        await node.spawn(Unfound, name="x")
    for wrong in ("9", None, 0):
        with pytest.raises(ValueError, match=f"a mailbox of {wrong!r} messages"):
            await node.spawn(Mortal, name="x", mailbox=wrong)
    for wrong in (None, 5, await node.spawn(Mortal, name="x")):
        with pytest.raises(AddressError, match="is no text of the form node/actor"):
            node.ref(wrong)


async def test_an_instance_lives_once_at_a_time(nodes, node):
    other, actor = await nodes.add("b"), Mortal()
    ref = await node.spawn(actor, name="first")
    for where in (node, other):
        with pytest.raises(ValueError, match=r"this instance lives already, as a/first#1\.1"):
            await where.spawn(actor, name="second")
    await node.stop_actor(ref)
    again = await other.spawn(actor, name="second")
    assert await again.echo(1) == 1
