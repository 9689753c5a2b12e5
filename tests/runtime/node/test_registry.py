"""Names of the whole cluster: kept by the head, fenced by lives, gone with their actors."""

from __future__ import annotations

import asyncio

import pytest

from blockwright.runtime import ActorDied, NodeDown, NoSuchActor, RemoteError
from blockwright.runtime.supervisor import Child, Supervisor
from blockwright.tests.runtime.lives import Mortal, turns


class Named(Mortal):
    """Registers itself when it starts, as a supervised actor does."""

    async def on_start(self) -> None:
        await self.node.register("service", self.ref, wait=5.0)


@pytest.fixture
async def cluster(nodes):
    """The head and two workers."""
    head, *workers = [await nodes.add(name) for name in ("head", "w1", "w2")]
    for worker in workers:
        worker.peering.follower.head = head.id
    return head, *workers


async def test_every_node_finds_a_name(cluster):
    head, w1, w2 = cluster
    ref = await w1.spawn(Mortal(), name="x")
    await w1.register("thing", ref)
    await w1.register("thing", ref)  # again: it has it
    for node in cluster:
        found = await node.lookup("thing", Mortal)
        assert str(found) == "w1/x#1.1"
        assert await found.echo(3) == 3
        assert {name: str(r) for name, r in (await node.names()).items()} == {"thing": "w1/x#1.1"}
    await w2.register("by-name", w2.ref("w1/x"))
    assert str(await head.lookup("by-name")) == "w1/x#1.1"
    assert await w2.unregister("thing")
    assert not await w2.unregister("thing")
    with pytest.raises(NoSuchActor, match="no actor in the cluster is registered as 'thing'"):
        await head.lookup("thing")


async def test_a_single_node_has_names_too(node):
    await node.register("thing", await node.spawn(Mortal(), name="x"))
    assert await (await node.lookup("thing")).echo(1) == 1


async def test_a_name_is_held_once(cluster):
    head, w1, w2 = cluster
    await w1.register("thing", await w1.spawn(Mortal(), name="x"))
    other = await w2.spawn(Mortal(), name="x")
    with pytest.raises(ValueError, match=r"name 'thing' belongs to w1/x#1\.1; choose another, or unregister it first"):
        await w2.register("thing", other)
    assert not await head.unregister("thing", other)
    assert str(await head.lookup("thing")) == "w1/x#1.1"
    with pytest.raises(NoSuchActor, match="has no actor 'nobody' to give the name"):
        await w2.register("none", w2.ref("w1/nobody"))
    for wrong in ("", "$node", "a b"):
        with pytest.raises(ValueError, match="cannot be used"):
            await w2.register(wrong, other)


@pytest.mark.parametrize("end", ["stop", "crash", "node"])
async def test_a_name_goes_with_its_actor(nodes, cluster, end):
    head, w1, w2 = cluster
    ref = await w1.spawn(Mortal(), name="x")
    await w1.register("thing", ref)
    await head.register("lasting", await w2.spawn(Mortal(), name="y"))
    found = await w2.lookup("thing")
    if end == "stop":
        await w1.despawn("x")
    elif end == "crash":
        ref.crash.cast()
    else:
        nodes.cut(w1)
    await turns(40)
    with pytest.raises(NoSuchActor):
        await w2.lookup("thing")
    with pytest.raises((ActorDied, NodeDown)):
        await found.echo(1)
    assert await (await head.lookup("lasting")).echo(2) == 2  # the loss of a worker costs no other name


async def test_what_dies_before_it_is_registered_holds_nothing(cluster):
    head, w1, _ = cluster
    ref = await w1.spawn(Mortal(), name="x")
    await w1.despawn("x")
    await head.register("thing", ref)
    await turns()
    assert await head.names() == {}


async def test_names_are_fenced_by_lives(cluster):
    head, w1, _ = cluster
    first = await w1.spawn(Mortal(), name="x")
    await w1.register("thing", first)
    await w1.despawn("x")
    second = await w1.spawn(Mortal(), name="x")
    registry = head.parts.registry
    await registry.register("thing", second.address, 0.0)  # before the end of the first is reported, or after
    assert await registry.register("thing", first.address, 0.0) == "w1/x#1.2"  # late
    assert not await w1.unregister("thing", first)  # late
    await turns()
    assert str(await head.lookup("thing")) == "w1/x#1.2"
    assert await w1.unregister("thing", second)


async def test_a_later_life_takes_over_before_the_end_of_the_earlier_is_known(cluster):
    head, w1, _ = cluster
    first = await w1.spawn(Mortal(), name="x")
    await w1.register("thing", first)
    await head.parts.registry.register("thing", first.address._replace(life=2), 0.0)
    await turns()
    assert await head.names() == {}  # that life never was: its monitor says so
    await w1.register("thing", first)
    assert str(await head.lookup("thing")) == "w1/x#1.1"


async def test_a_lookup_waits_for_a_name(nodes, cluster):
    head, w1, w2 = cluster
    waiting = [asyncio.ensure_future(node.lookup("thing", wait=60.0)) for node in cluster]
    late = asyncio.ensure_future(w2.lookup("never", wait=2.0))
    await nodes.advance(1.0)
    assert not any(w.done() for w in waiting)
    await w1.register("thing", await w1.spawn(Mortal(), name="x"))
    await turns()
    assert [str(await w) for w in waiting] == ["w1/x#1.1"] * 3
    await nodes.advance(1.5)
    with pytest.raises(NoSuchActor):
        await late
    gone = asyncio.ensure_future(w2.lookup("never", wait=60.0))
    await turns()
    gone.cancel()
    await turns()
    assert not head.actors.instances["$node"].busy(None)


async def test_a_registration_waits_for_the_holder_to_go(nodes, cluster):
    head, w1, w2 = cluster
    await w1.register("thing", await w1.spawn(Mortal(), name="x"))
    other = await w2.spawn(Mortal(), name="x")
    waiting = asyncio.ensure_future(w2.register("thing", other, wait=60.0))
    await nodes.advance(1.0)
    assert not waiting.done()
    await w1.despawn("x")
    await turns(40)
    await waiting
    assert str(await head.lookup("thing")) == "w2/x#1.1"


@pytest.mark.parametrize("end", ["crash", "node"])
async def test_a_name_follows_a_supervised_actor(nodes, cluster, end):
    head, w1, w2 = cluster
    child = Child(name="x", actor=Named, on=["w1", "w2"])
    await head.spawn(Supervisor([child]), name="sup")
    first = await w2.lookup("service")
    assert str(first) == "w1/x#1.1"
    if end == "crash":
        first.crash.cast()
    else:
        nodes.cut(w1)
    await turns(40)
    looking = asyncio.ensure_future(w2.lookup("service", wait=10.0))
    await nodes.advance(1.0)
    assert str(await looking) == ("w1/x#1.2" if end == "crash" else "w2/x#1.1")
    assert await (await looking).echo(5) == 5


async def test_without_the_head_there_are_no_names(nodes, cluster):
    head, w1, _ = cluster
    nodes.cut(head)
    await turns()
    with pytest.raises(NodeDown):
        await w1.lookup("thing")


async def test_garbage_is_refused(cluster):
    head, w1, _ = cluster
    system = head.actors.current["$node"].address
    for arguments in (("a b", "w1/x#1.1", 0.0), ("fine", "not an address", 0.0)):
        with pytest.raises(RemoteError, match="AddressError"):
            await w1.parts.calls.call(system, "register", arguments, {}, 5.0, None)
    assert await head.names() == {}
