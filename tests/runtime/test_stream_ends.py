"""Every way in which a stream ends, from either side, and that nothing is left of it."""

from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace

import pytest

from blockwright.runtime import (
    Actor,
    ActorDied,
    DeadlineExceeded,
    DecodeError,
    EncodeError,
    ManualClock,
    NodeDown,
    RemoteError,
    endpoint,
)
from blockwright.runtime.base import envelope
from blockwright.runtime.base.address import Address
from blockwright.runtime.base.codec import pack
from blockwright.runtime.base.scope import CURRENT, Scope
from blockwright.runtime.base.window import WINDOW_ITEMS
from blockwright.runtime.node.peers import Peer
from blockwright.runtime.node.remote_streams import RemoteStreams
from blockwright.runtime.node.requests import Requests
from blockwright.tests.runtime.stream_source import Source, left_over, read
from blockwright.transport.address import PeerId


@pytest.fixture
async def source():
    return Source()


@pytest.mark.parametrize("how", ["aclose", "block", "garbage", "cancel", "timeout"])
async def test_every_way_to_leave_ends_the_producer(sides, source, how):
    ref = await sides.spawn(source)
    stream = ref.waits(timeout=5.0)
    assert await anext(stream) == 0
    if how == "aclose":
        await stream.aclose()
        await stream.aclose()
    elif how == "block":
        async with stream:
            pass
    elif how == "garbage":
        del stream
        gc.collect()
    else:
        task = asyncio.create_task(anext(stream))
        await sides.turns()
        if how == "cancel":
            task.cancel()
        else:
            sides.clock.advance(5.1)
        with pytest.raises(asyncio.CancelledError if how == "cancel" else DeadlineExceeded):
            await task
    await sides.turns()
    assert source.ended == ["waits"]
    assert left_over(sides) == 0
    if how != "garbage":
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


async def test_breaking_out_of_the_loop_ends_the_producer(sides, source):
    ref = await sides.spawn(source)
    async for number in ref.count(10**9):
        if number == 3:
            break
    await sides.turns()
    gc.collect()
    await sides.turns()
    assert source.ended[-1] == "end"
    assert left_over(sides) == 0


async def test_closed_while_it_waits_in_the_mailbox_it_never_runs(sides, source):
    ref = await sides.spawn(source)
    held = asyncio.create_task(ref.hold())
    await sides.turns()
    async with ref.count(5):
        await sides.turns()
    await sides.turns()
    source.gate.set()
    await held
    await ref.note("x")
    assert source.seen == ["x"]
    assert left_over(sides) == 0


async def test_a_stream_that_expired_while_waiting_never_runs(sides, source):
    ref = await sides.spawn(source)
    held = asyncio.create_task(ref.hold())
    first = asyncio.create_task(anext(ref.count(5, timeout=2.0)))
    await sides.turns()
    sides.clock.advance(2.1)
    with pytest.raises(DeadlineExceeded, match="no item within 2 s"):
        await first
    source.gate.set()
    await held
    await ref.note("x")
    assert source.seen == ["x"]


async def test_a_stream_read_inside_an_endpoint_ends_with_its_deadline(sides, source):
    await sides.spawn(source)
    second = await sides.spawn(Source(), "second")
    relayed = asyncio.create_task(second.total(f"{sides.callee.name}/actor", 10, timeout=3.0))
    assert await relayed == 45

    class Reader(Actor):
        @endpoint
        async def read(self, address: str) -> int:
            return sum([n async for n in self.node.ref(address, Source).waits()])

    reader = await sides.spawn(Reader(), "reader")
    task = asyncio.create_task(reader.read(f"{sides.callee.name}/actor", timeout=2.0))
    await sides.turns()
    sides.clock.advance(2.1)
    with pytest.raises((DeadlineExceeded, RemoteError)):
        await task
    await sides.turns()
    assert source.ended[-1] == "waits"


async def test_an_error_comes_after_the_items_with_its_traceback(sides, source):
    ref = await sides.spawn(source)
    got: list[int] = []
    with pytest.raises(RemoteError, match="KeyError: 'lost'") as caught:
        await read(ref.fails(3), got)
    assert got == [0, 1, 2]
    assert 'raise KeyError("lost")' in caught.value.trace
    assert left_over(sides) == 0


async def test_items_that_cannot_travel_or_are_of_another_type(sides, source, request):
    ref = await sides.spawn(source)
    stream = ref.unfit()
    assert await anext(stream) == 1
    if "reference" in request.node.callspec.id:
        assert type(await anext(stream)) is object
        await stream.aclose()
        return
    with pytest.raises(EncodeError, match="an item of unfit"):
        await anext(stream)
    untyped = sides.caller.ref(f"{sides.callee.name}/actor")
    with pytest.raises(DecodeError, match="returns=TYPE"):
        await anext(aiter(untyped.rows(1)))
    with pytest.raises(DecodeError, match="an item of"):
        await anext(aiter(untyped.count(1, returns=str)))
    await sides.turns()
    assert left_over(sides) == 0


async def test_stopping_the_actor_ends_its_streams(sides, source):
    ref = await sides.spawn(source)
    stream = ref.waits()
    assert await anext(stream) == 0
    waiting = asyncio.create_task(anext(stream))
    await sides.turns()
    await sides.callee.despawn("actor")
    with pytest.raises(ActorDied):
        await waiting
    assert source.ended == ["waits"]
    assert left_over(sides) == 0


async def test_a_generator_that_ignores_its_end_is_ended_all_the_same(sides, source):
    ref = await sides.spawn(source)
    stream = ref.stubborn()
    assert await anext(stream) == 0
    waiting = asyncio.create_task(anext(stream))
    await sides.turns()
    waiting.cancel()
    await sides.turns()
    assert source.ended == ["ignored"]
    assert left_over(sides) == 0


@pytest.mark.parametrize("sides", ["remote"], indirect=True)
@pytest.mark.parametrize("dies", ["consumer", "producer"])
async def test_the_death_of_a_node_ends_the_other_side(sides, source, dies):
    ref = await sides.spawn(source)
    stream = ref.waits()
    assert await anext(stream) == 0
    waiting = asyncio.create_task(anext(stream))
    await sides.turns()
    sides.network.cut((sides.caller if dies == "consumer" else sides.callee).endpoint)
    await sides.turns()
    if dies == "consumer":
        assert source.ended == ["waits"]
        assert left_over(sides) == 1  # the dead one's own
        waiting.cancel()
    else:
        with pytest.raises(NodeDown):
            await waiting


@pytest.mark.parametrize("sides", ["remote"], indirect=True)
async def test_items_that_came_before_a_node_died_are_still_read(sides, source):
    ref = await sides.spawn(source)
    stream = ref.count(10**9)
    assert await anext(stream) == 0
    await sides.turns()
    sides.network.cut(sides.callee.endpoint)
    await sides.turns()
    got: list[int] = []
    with pytest.raises(NodeDown):
        await read(stream, got)
    assert got == list(range(1, WINDOW_ITEMS))


@pytest.mark.parametrize("sides", ["remote"], indirect=True)
@pytest.mark.parametrize(
    ("bodies", "complaint"),
    [
        ([[envelope.ITEM, 1, 3, False, 0]], "item 2 of .* was lost"),
        ([[envelope.END, 1, 5]], "the last 4 items"),
        ([[envelope.ITEM, 1, n, False, 0] for n in range(2, 300)], "more than its window"),
        ([[envelope.ITEM, 1, n, False, b"x" * 250] for n in range(2, 4)], None),
        ([[envelope.ITEM, 1, 1, False, 0]] * 3, None),  # came twice
    ],
)
async def test_a_producer_that_breaks_the_rules_is_found_out(sides, source, bodies, complaint):
    ref = await sides.spawn(source)
    stream = ref.waits()
    assert await anext(stream) == 0
    for body in bodies:
        sides.callee._transport.send(sides.caller.id, pack(body))
    await sides.turns()
    if complaint is None:
        await stream.aclose()
    else:
        with pytest.raises(DecodeError, match=complaint):
            await read(stream, [])
    await sides.turns()
    assert source.ended == ["waits"]
    assert left_over(sides) == 0


async def test_a_deadline_that_passes_while_a_stream_is_asked_for_stays_one():
    """Nothing left would mean that there is none, and less than nothing is no message."""

    class Passing(ManualClock):
        def now(self) -> float:
            self.jump(1.0)
            return super().now()

    clock, asked = Passing(0.0), []
    sender = SimpleNamespace(ask=lambda to, message, buffers: asked.append(message))
    streams = RemoteStreams(clock, sender, Requests(clock, None), lambda *_, **__: None)
    scope = CURRENT.set(Scope(1.5, b""))
    try:
        streams.open(Peer(PeerId("b", 1), "", 0.0), Address("b", "x"), "count", (), {}, 30.0, None)
    finally:
        CURRENT.reset(scope)
    assert [message[4:6] for message in asked] == [[0.5, 0.5]]
