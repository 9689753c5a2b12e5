"""Traps that other actor runtimes fell into, by project and issue number, as far as they concern messages.

Elsewhere: bounded before enqueue (otp#6199's neighbor), expired work: ``test_mailbox.py``, ``test_node.py``; streams
without back-pressure (ray#40285, #64383) and generators that leak (xorbits inference#1044): ``test_streams.py``,
``test_stream_ends.py``; late replies (otp#2735): ``test_messages.py``; a missed edge of the ZeroMQ descriptor (pyzmq#1021,
libzmq#1434), silent drops of a ROUTER (libzmq#2037): ``tests/transport/test_sockets.py``.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator

import pytest

from blockwright.runtime import (
    Actor,
    ActorDied,
    DeadlineExceeded,
    MailboxFull,
    Node,
    NodeDown,
    RemoteError,
    endpoint,
)
from blockwright.tests.claims import claim
from blockwright.tests.waiting import PATIENCE


class Thing(Actor):
    def __init__(self) -> None:
        self.seen: list[int] = []
        self.notified = asyncio.Event()
        self.gate = asyncio.Event()

    @endpoint
    async def note(self, number: int) -> int:
        self.seen.append(number)
        await asyncio.sleep(0)  # submission order must survive a pause
        return number

    @endpoint
    async def hold(self) -> None:
        await self.gate.wait()

    @endpoint
    async def ask_back(self, address: str, mine: str) -> int:
        """Calls an actor that calls this one, which is busy with this very message."""
        return await self.node.ref(address).relay(mine)

    @endpoint
    async def relay(self, address: str) -> int:
        return await self.node.ref(address).note(1)

    @endpoint
    async def cast_to(self, address: str, count: int) -> None:
        for number in range(count):
            self.node.ref(address).note.cast(number)
        await self.gate.wait()

    @endpoint
    async def tell_and_wait(self, address: str, mine: str) -> None:
        self.node.ref(address).answer_by_cast.cast(mine)
        await self.notified.wait()

    @endpoint
    async def answer_by_cast(self, address: str) -> None:
        self.node.ref(address).tell.cast()

    @endpoint(concurrent=True)
    async def tell(self) -> None:
        self.notified.set()

    @endpoint
    async def fail(self) -> None:
        raise ValueError("nobody waits for this")


@claim("Known traps of Ray, OTP, Akka, Orleans, Thespian, Monarch and xoscar do not occur", of="actor-runtime")
async def test_ray_54033_async_actors_keep_submission_order(sides):
    ref = await sides.spawn(thing := Thing())
    await asyncio.gather(*[ref.note(number) for number in range(100)])
    assert thing.seen == list(range(100))


async def test_ray_52628_a_cancellation_before_the_task_runs_is_not_lost(sides):
    ref = await sides.spawn(thing := Thing())
    for turns in range(8):
        call = asyncio.create_task(ref.hold())
        await sides.turns(turns)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await asyncio.wait_for(ref.note(turns), PATIENCE) == turns
    assert thing.seen == list(range(8))


async def test_ray_38591_calls_leave_nothing_behind(sides):
    ref = await sides.spawn(Thing())
    for number in range(20):
        await ref.note(number)
    gc.collect()
    before = len(gc.get_objects())
    for number in range(3000):
        await ref.note(number)
    await sides.turns()
    gc.collect()
    assert len(gc.get_objects()) - before < 1500  # a few hundred deadlines of calls that are over
    peers = [p for n in (sides.caller, sides.callee) for p in [*n.table.current.values(), n.parts.itself]]
    assert sum(len(p.pending) + len(p.inbound) for p in peers) == 0


@claim("Known traps of Ray, OTP, Akka, Orleans, Thespian, Monarch and xoscar do not occur", of="actor-runtime")
async def test_otp_1693_messages_whose_caller_gave_up_do_not_fill_the_mailbox(sides):
    ref = await sides.spawn(thing := Thing(), mailbox=4)
    held = asyncio.create_task(ref.hold(timeout=500.0))
    await sides.turns()
    for _ in range(3):
        late = [asyncio.create_task(ref.note(1, timeout=1.0)) for _ in range(4)]
        await sides.turns()
        with pytest.raises(MailboxFull):
            await ref.note(2)
        sides.clock.advance(1.1)
        for call in late:
            with pytest.raises(DeadlineExceeded):
                await call
        await sides.turns()
    last = asyncio.create_task(ref.note(3))
    await sides.turns()
    thing.gate.set()
    await held
    assert await last == 3
    assert thing.seen == [3]


@claim("Known traps of Ray, OTP, Akka, Orleans, Thespian, Monarch and xoscar do not occur", of="actor-runtime")
async def test_akka_two_actors_with_full_mailboxes_do_not_deadlock(sides):
    a = await sides.spawn(one := Thing(), "one", mailbox=3)
    b = await sides.spawn(two := Thing(), "two", mailbox=3)
    here = sides.callee.name
    both = [asyncio.create_task(a.cast_to(f"{here}/two", 50)), asyncio.create_task(b.cast_to(f"{here}/one", 50))]
    await sides.turns()
    assert sides.callee.dead_letters["MailboxFull"] == 2 * 47
    one.gate.set()
    two.gate.set()
    await asyncio.gather(*both)
    await sides.turns()
    assert len(one.seen) == len(two.seen) == 3


@claim("Known traps of Ray, OTP, Akka, Orleans, Thespian, Monarch and xoscar do not occur", of="actor-runtime")
async def test_orleans_and_xoscar_57_a_cycle_of_calls_ends_with_its_deadline(sides):
    """One message at a time means that a cycle waits for itself: it ends when the first caller's time is up, no later."""
    a = await sides.spawn(one := Thing(), "one")
    await sides.spawn(Thing(), "two")
    here = sides.callee.name
    call = asyncio.create_task(a.ask_back(f"{here}/two", f"{here}/one", timeout=3.0))
    await sides.turns()
    sides.clock.advance(3.1)
    with pytest.raises((DeadlineExceeded, RemoteError)):
        await call
    await sides.turns()
    assert await a.note(7) == 7
    assert await sides.caller.ref(f"{here}/two").note(8) == 8
    assert one.seen == [7]


@claim("Known traps of Ray, OTP, Akka, Orleans, Thespian, Monarch and xoscar do not occur", of="actor-runtime")
async def test_thespian_messages_leave_while_the_handler_runs(sides):
    a = await sides.spawn(Thing(), "one")
    await sides.spawn(Thing(), "two")
    here = sides.callee.name
    await asyncio.wait_for(a.tell_and_wait(f"{here}/two", f"{here}/one"), PATIENCE)


@claim("Messages that reach no receiver are counted by cause and logged", of="actor-runtime")
async def test_thespian_nothing_is_dropped_in_silence(sides):
    """Thespian drops beyond 1,050 queued messages; here each is handled or counted."""
    ref = await sides.spawn(thing := Thing(), mailbox=100)
    held = asyncio.create_task(ref.hold())
    await sides.turns()
    for number in range(1500):
        ref.note.cast(number)
    await sides.turns()
    thing.gate.set()
    await held
    await sides.turns(400)
    assert len(thing.seen) == 100
    assert sides.callee.dead_letters["MailboxFull"] == 1400


@claim("Known traps of Ray, OTP, Akka, Orleans, Thespian, Monarch and xoscar do not occur", of="actor-runtime")
async def test_monarch_1628_a_failure_nobody_awaits_is_seen(sides, caplog):
    ref = await sides.spawn(Thing())
    with caplog.at_level(logging.ERROR):
        ref.fail.cast()
        await sides.turns()
    assert "nobody waits for this" in caplog.text
    assert sides.callee.dead_letters["RemoteError"] == 1


async def test_monarch_endpoints_may_have_any_name_that_is_not_a_references_own(sides):
    class Named(Actor):
        @endpoint
        async def size(self) -> int:
            return 1

        @endpoint
        async def call(self) -> int:
            return 2

        @endpoint
        async def cast(self) -> int:
            return 3

        @endpoint
        async def items(self) -> AsyncIterator[int]:
            yield 4

    ref = await sides.spawn(Named())
    assert [await ref.size(), await ref.call(), await ref.cast(), await anext(ref.items())] == [1, 2, 3, 4]
    with pytest.raises(TypeError, match="reserved"):
        type("Bad", (Actor,), {"incarnation": endpoint(Thing.hold)})


@pytest.mark.parametrize("sides", ["remote"], indirect=True)
async def test_xoscar_a_broken_connection_leaves_no_future_and_no_unretrieved_task(sides, caplog):
    """mars#2404: futures made after the link closed; xoscar#121: tasks never retrieved; #155: an error that names nobody."""
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context))
    ref = await sides.spawn(Thing())
    calls = [asyncio.create_task(ref.hold()) for _ in range(5)]
    await sides.turns()
    sides.network.cut(sides.callee.endpoint)
    calls.append(asyncio.create_task(ref.hold()))  # the link is closed, and no peer has been notified
    for call in calls:
        with pytest.raises(NodeDown, match="b#1"):
            await asyncio.wait_for(call, PATIENCE)
    with pytest.raises(NodeDown, match="b#1"):
        await ref.hold()
    del calls, call
    gc.collect()
    await sides.turns()
    assert faults == []


async def test_ray_44212_a_dead_actor_and_a_node_that_is_away_are_two_errors(sides):
    ref = await sides.spawn(Thing())
    pinned = sides.caller.ref(f"{sides.callee.name}/actor#1.1")
    await sides.callee.despawn("actor")
    with pytest.raises(ActorDied):
        await pinned.note(1)
    if sides.network is not None:
        sides.network.cut(sides.callee.endpoint)
        await sides.turns()
        with pytest.raises(NodeDown):
            await ref.note(1)


async def test_ray_18703_overload_is_an_error_at_the_caller(sides):
    ref = await sides.spawn(thing := Thing(), mailbox=10)
    held = asyncio.create_task(ref.hold())
    await sides.turns()
    answers = await asyncio.wait_for(asyncio.gather(*[_try(ref, n, thing) for n in range(50)]), PATIENCE)
    await held
    assert answers.count("full") == 40


async def _try(ref, number: int, thing: Thing) -> object:
    try:
        return await ref.note(number)
    except MailboxFull:
        thing.gate.set()
        return "full"


async def test_pykka_actors_need_no_thread_each():
    import threading

    node = Node("n", listen=False)
    await node.start()
    before = threading.active_count()
    refs = [await node.spawn(Thing(), name=f"t{n}") for n in range(200)]
    assert await asyncio.gather(*[ref.note(1) for ref in refs]) == [1] * 200
    assert threading.active_count() <= before  # threads of tests before may end meanwhile
    await node.stop()
