"""How actors begin and end: numbers of lives, causes, drains, and what becomes of messages."""

from __future__ import annotations

import asyncio
import logging

import pytest

from blockwright.runtime import Actor, ActorDied, MailboxFull, NoSuchActor, Ref, RemoteError, endpoint
from blockwright.runtime.base.address import Address, parse_address
from blockwright.runtime.node import lifecycle as life_module
from blockwright.tests.claims import claim
from blockwright.tests.runtime.lives import Brittle, Mortal, turns
from blockwright.transport.errors import AddressError


@pytest.fixture(params=["here", "there"])
async def caller(request, nodes, node):
    return node if request.param == "here" else await nodes.add("b")


def test_addresses_name_a_life():
    assert parse_address("w0/x") == Address("w0", "x")
    assert parse_address("w0/x#3") == Address("w0", "x", 3)
    assert parse_address("w0/x#3.12") == Address("w0", "x", 3, 12)
    for text in ("w0/x", "w0/x#3", "w0/x#3.12"):
        assert str(parse_address(text)) == text
    for text in ("w0/x#", "w0/x#3.", "w0/x#.3", "w0/x#3.0", "w0/x#0.1", "w0/x#3.1.1", "w0/x#-3", "w0/x#٣"):
        with pytest.raises(AddressError):
            parse_address(text)


@claim("A pinned reference fails after its actor's end, and a name follows the next life", of="actor-runtime")
async def test_a_pinned_reference_fails_and_a_name_follows(node, caller):
    first = await node.spawn(Mortal(), name="x")
    assert str(first) == "a/x#1.1"
    pinned, named = caller.ref(str(first)), caller.ref("a/x")
    assert await pinned.echo(1) == await named.echo(1) == 1
    await node.despawn("x")
    with pytest.raises(ActorDied, match=r"x \(incarnation 1\).*stopped$"):
        await pinned.echo(2)
    with pytest.raises(NoSuchActor):
        await named.echo(2)
    second = await node.spawn(Mortal(), name="x")
    assert second.life == 2
    with pytest.raises(ActorDied, match=r"incarnation 1.*stopped; its current incarnation is 2"):
        await pinned.echo(2)
    assert await named.echo(3) == await caller.ref(str(second)).echo(3) == 3
    with pytest.raises(NoSuchActor, match="current incarnation is 2"):
        await caller.ref("a/x#1.7").echo(1)
    pinned.echo.cast(4)
    await turns()
    assert {node.dead_letters["ActorDied"], caller.dead_letters["ActorDied"]} - {0} == {1}


async def test_a_crash_ends_the_actor_and_answers_everybody(node, caller):
    actor = Mortal("m")
    ref = caller.ref(str(await node.spawn(actor, name="m")))
    beside = asyncio.ensure_future(ref.beside())
    await turns()
    crash, waiting = asyncio.ensure_future(ref.crash("bad day")), asyncio.ensure_future(ref.echo(1))
    with pytest.raises(RemoteError, match="Crash: bad day"):
        await crash
    for call in (waiting, beside):
        with pytest.raises(ActorDied, match="crashed: bad day"):
            await call
    with pytest.raises(ActorDied, match="crashed: bad day"):
        await ref.echo(2)
    await turns()
    assert actor.log == ["start m", "stop m"]
    assert (await node.spawn(Mortal(), name="m")).life == 2


async def test_which_exceptions_crash_is_the_classs_choice(node):
    tough, brittle = await node.spawn(Mortal(), name="tough"), await node.spawn(Brittle(), name="brittle")
    for ref in (tough, brittle):
        with pytest.raises(RemoteError, match="KeyError"):
            await ref.fail()
    assert await tough.echo(1) == 1
    with pytest.raises(ActorDied, match="crashed: KeyError: 'lost'"):
        await brittle.echo(1)


async def test_a_concurrent_endpoint_and_a_cast_crash_too(node, caplog):
    one, two = await node.spawn(Mortal(), name="one"), await node.spawn(Mortal(), name="two")
    with pytest.raises(RemoteError):
        await one.crash_beside()
    two.crash.cast("unheard")
    await turns()
    for ref, cause in ((one, "beside"), (two, "unheard")):
        with pytest.raises(ActorDied, match=cause):
            await ref.echo(1)
    assert "actor a/two#1.1 crashed: unheard" in caplog.text  # a failure that nobody awaits is seen


async def test_a_stream_crashes_too(node, caller):
    await node.spawn(Mortal(), name="x")
    items = aiter(caller.ref("a/x").crash_in_stream())
    assert await anext(items) == 1
    with pytest.raises(RemoteError, match="in a stream"):
        await anext(items)
    with pytest.raises((ActorDied, NoSuchActor)):
        await caller.ref("a/x").echo(1)


async def test_a_name_is_free_only_when_the_old_life_has_ended(node):
    class Slow(Mortal):
        async def on_stop(self) -> None:
            await self.gate.wait()

    slow = Slow()
    ref = await node.spawn(slow, name="x")
    ending = asyncio.ensure_future(node.despawn("x"))
    await turns()
    with pytest.raises(ValueError, match="already"):
        await node.spawn(Mortal(), name="x")
    with pytest.raises(ActorDied, match="stopped"):
        await ref.echo(1)
    slow.gate.set()
    await ending
    assert (await node.spawn(Mortal(), name="x")).life == 2


async def test_a_drain_handles_what_waits(node):
    actor = Mortal()
    ref = await node.spawn(actor, name="x")
    calls = [asyncio.ensure_future(ref.hold(0)), asyncio.ensure_future(ref.echo(1)), asyncio.ensure_future(ref.echo(2))]
    await turns()
    ending = asyncio.ensure_future(node.actors.stop("x", drain=10.0))
    await turns()
    with pytest.raises(ActorDied):  # nothing new
        await ref.echo(3)
    actor.gate.set()
    assert await asyncio.gather(*calls) == [0, 1, 2]
    await ending
    assert actor.log == ["start ", "hold 0", "echo 1", "echo 2", "stop "]


async def test_a_drain_is_bounded(nodes, node):
    actor = Mortal()
    ref = await node.spawn(actor, name="x")
    calls = [asyncio.ensure_future(ref.hold()), asyncio.ensure_future(ref.echo(1))]
    await turns()
    ending = asyncio.ensure_future(node.actors.stop("x", drain=3.0))
    await nodes.advance(2.75)
    assert not ending.done()
    assert not calls[0].done()
    await nodes.advance(0.5)
    for call in calls:
        with pytest.raises(ActorDied):
            await call
    await ending


async def test_an_end_goes_on_when_who_asked_for_it_is_cancelled(node):
    actor = Mortal()
    ref = await node.spawn(actor, name="x")
    call = asyncio.ensure_future(ref.hold())
    await turns()
    ending = asyncio.ensure_future(node.actors.stop("x", drain=10.0))
    await turns()
    ending.cancel()
    await turns()
    actor.gate.set()
    assert await call == 0
    await turns()
    assert actor.log[-1] == "stop "
    assert set(node.actors.current) == {"$node"}


async def test_a_kill_runs_no_on_stop_and_shortens_an_end(nodes, node):
    one, two = Mortal("one"), Mortal("two")
    await node.spawn(one, name="one")
    ref = await node.spawn(two, name="two")
    call = asyncio.ensure_future(ref.hold())
    await turns()
    await node.actors.kill("one")
    ending = asyncio.ensure_future(node.actors.stop("two", drain=1000.0))
    await turns()
    await node.actors.kill("two")
    await ending
    with pytest.raises(ActorDied):
        await call
    assert one.log == ["start one"]
    assert two.log == ["start two", "hold 0"]
    with pytest.raises(ActorDied, match="killed"):
        await ref.echo(1)


async def test_an_on_stop_that_hangs_is_cut_short(nodes, node, caplog):
    class Hangs(Mortal):
        async def on_stop(self) -> None:
            await asyncio.Event().wait()

    await node.spawn(Hangs(), name="x")
    await nodes.finish(node.despawn("x"))
    assert "too slow" in caplog.text
    await node.spawn(Hangs(), name="x")
    ending = asyncio.ensure_future(node.despawn("x"))
    await turns()
    await node.actors.kill("x")
    await ending


async def test_work_that_ignores_its_cancellation_is_left_behind(nodes, node, caplog):
    class Stubborn(Mortal):
        @endpoint
        async def hold(self, n: int = 0) -> int:
            while not self.gate.is_set():
                try:
                    await self.gate.wait()
                except asyncio.CancelledError:
                    self.log.append("ignored")
            return n

        async def on_stop(self) -> None:
            self.log.append("stop")

    actor = Stubborn()
    ref = await node.spawn(actor, name="x")
    call = asyncio.ensure_future(ref.hold())
    await turns()
    await nodes.finish(node.despawn("x"))
    with pytest.raises(ActorDied):
        await call
    assert "left behind" in caplog.text
    assert actor.log[-2:] == ["ignored", "stop"]
    actor.gate.set()
    await turns()


async def test_an_actor_may_end_itself(node, caller):
    await node.spawn(Mortal(), name="x")
    assert await caller.ref("a/x").leave() == "left"
    with pytest.raises(NoSuchActor):
        await caller.ref("a/x").echo(1)
    await node.spawn(Mortal(), name="y")
    assert await caller.ref("a/y").stop_itself() == "stopped", "it does not wait for itself"
    with pytest.raises(NoSuchActor):
        await caller.ref("a/y").echo(1)


async def test_a_start_can_be_ended(nodes, node):
    class Late(Mortal):
        async def on_start(self) -> None:
            await asyncio.Event().wait()

    starting = asyncio.ensure_future(node.spawn(Late(), name="x"))
    await turns()
    early = asyncio.ensure_future(node.ref("a/x").echo(1))
    await turns()
    await node.despawn("x")
    with pytest.raises(ActorDied, match="stopped"):
        await early
    with pytest.raises(ActorDied, match="ended while it started: stopped"):
        await starting
    starting = asyncio.ensure_future(node.spawn(Late(), name="x"))
    await turns()
    starting.cancel()
    await turns()
    assert starting.cancelled()
    assert set(node.actors.current) == {"$node"}
    starting = asyncio.ensure_future(node.spawn(Late(), name="x"))
    await turns()
    await node.stop()
    with pytest.raises(ActorDied):
        await starting


async def test_what_comes_while_an_actor_starts_waits(node, caller):
    class Eager(Mortal):
        async def on_start(self) -> None:
            self.ref.echo.cast(1)
            await self.gate.wait()

    eager = Eager()
    starting = asyncio.ensure_future(node.spawn(eager, name="x", mailbox=2))  # and one that is next
    await turns()
    calls = [asyncio.ensure_future(caller.ref("a/x").echo(n)) for n in (2, 3, 4)]
    beside, given_up = [asyncio.ensure_future(caller.ref("a/x").aside(n)) for n in (5, 6)]
    await turns()
    given_up.cancel()
    with pytest.raises(MailboxFull):
        await calls[2]
    assert eager.log == []
    eager.gate.set()
    assert (await starting).life == 1
    assert [await call for call in calls[:2]] == [2, 3]
    assert await beside == 5
    await turns()
    assert sorted(eager.log) == ["aside 5", "echo 1", "echo 2", "echo 3"]


async def test_what_waits_for_a_start_that_fails_is_notified(node, caller):
    class Fails(Mortal):
        async def on_start(self) -> None:
            await self.gate.wait()
            raise ValueError("not today")

    fails = Fails()
    starting = asyncio.ensure_future(node.spawn(fails, name="x"))
    await turns()
    calls = [asyncio.ensure_future(caller.ref("a/x").echo(1)), asyncio.ensure_future(caller.ref("a/x").beside())]
    await turns()
    fails.gate.set()
    for call in calls:
        with pytest.raises(ActorDied, match="start failed: ValueError: not today"):
            await call
    with pytest.raises(ValueError, match="not today"):
        await starting


async def test_names_are_numbered_upwards_even_when_forgotten(node, monkeypatch):
    monkeypatch.setattr(life_module, "REMEMBERED", 3)
    lives = []
    for name in ("x", "x", "x", "b", "c", "d", "e", "x"):
        lives.append((await node.spawn(Mortal(), name=name)).life)
        await node.despawn(name)
    assert lives[:3] == [1, 2, 3]
    assert lives[-1] == 4
    assert len(node.actors._over) == 3
    with pytest.raises(NoSuchActor):
        await node.ref("a/b#1.1").echo(1)


async def test_a_failed_start_uses_up_a_life(node):
    class Fails(Actor):
        async def on_start(self) -> None:
            raise ValueError("not today")

    with pytest.raises(ValueError, match="not today"):
        await node.spawn(Fails(), name="x")
    with pytest.raises(ActorDied, match="start failed: ValueError: not today"):
        await node.ref("a/x#1.1").echo(1)
    assert (await node.spawn(Mortal(), name="x")).life == 2


async def test_a_stop_of_the_node_goes_on_when_cancelled(node):
    class Slow(Mortal):
        async def on_stop(self) -> None:
            await self.gate.wait()
            self.log.append("stopped")

    slow = Slow()
    await node.spawn(slow, name="x")
    stopping = asyncio.ensure_future(node.stop())
    await turns()
    stopping.cancel()
    again = asyncio.ensure_future(node.stop())
    await turns()
    assert not again.done()
    slow.gate.set()
    await again
    assert slow.log[-1] == "stopped"
    assert node.closed.is_set()


async def test_references_know_their_life(node):
    ref = await node.spawn(Mortal(), name="x")
    assert isinstance(ref, Ref)
    assert (ref.node, ref.name, ref.incarnation, ref.life) == ("a", "x", 1, 1)
    assert node.ref("a/x").life == 0


@pytest.fixture(autouse=True)
def _logged(caplog):
    caplog.set_level(logging.ERROR, "blockwright.runtime")
