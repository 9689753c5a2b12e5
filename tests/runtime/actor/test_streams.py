"""Streams by reference, encoded, and between nodes: items, order, credit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest

from blockwright.runtime import Actor, MailboxFull, Node, NoSuchActor, endpoint
from blockwright.runtime.base import envelope
from blockwright.runtime.base.codec import pack
from blockwright.runtime.base.window import WINDOW_BYTES, WINDOW_ITEMS, Window
from blockwright.tests.claims import claim
from blockwright.tests.runtime.stream_source import Row, Source, left_over


@pytest.fixture
async def source():
    return Source()


async def test_all_items_in_order_also_beyond_the_window(sides, source):
    ref = await sides.spawn(source)
    assert [n async for n in ref.count(3 * WINDOW_ITEMS)] == list(range(3 * WINDOW_ITEMS))
    assert [r async for r in ref.rows(2)] == [Row(0), Row(1)]
    assert [n async for n in ref.count(0)] == []
    assert source.ended == ["end", "end"]
    assert left_over(sides) == 0


async def test_a_reference_without_class_serves_both(sides, source):
    await sides.spawn(source)
    ref = sides.caller.ref(f"{sides.callee.name}/actor")
    assert [n async for n in ref.count(3)] == [0, 1, 2]
    assert await asyncio.create_task(ref.note("a")) is None
    assert await asyncio.gather(ref.note("b"), ref.note("c")) == [None, None]
    async with ref.rows(1, returns=Row) as rows:
        assert [row async for row in rows] == [Row(0)]
    with pytest.raises(NoSuchActor, match="is a stream; read it with 'async for'"):
        await ref.count(3)
    with pytest.raises(NoSuchActor, match="no stream; 'await' it"):
        await anext(aiter(ref.note("x")))
    ref.count.cast(3)
    await sides.turns()
    assert sides.callee.dead_letters["NoSuchActor"] == 1
    assert source.seen.count("count") == 1


async def test_an_unused_request_says_so(sides, source):
    await sides.spawn(source)
    requests = [sides.caller.ref(f"{sides.callee.name}/actor").note("x")]
    with pytest.warns(RuntimeWarning, match="never awaited"):
        requests.clear()


@claim("A slow consumer slows the producer of its stream, in bounded memory", of="actor-runtime")
async def test_a_slow_consumer_slows_the_producer(sides, source):
    ref = await sides.spawn(source)
    async with ref.count(10**9) as stream:
        for taken in range(1, 4 * WINDOW_ITEMS):
            assert await anext(stream) == taken - 1
            await sides.turns(4)
            assert source.made <= taken + WINDOW_ITEMS
    await sides.turns()
    assert source.ended[-1] == "end"
    assert left_over(sides) == 0


@claim("A slow consumer slows the producer of its stream, in bounded memory", of="actor-runtime")
async def test_the_window_also_counts_bytes(sides, source):
    ref = await sides.spawn(source)
    size = WINDOW_BYTES // 4
    async with ref.count(10**9, size=size) as stream:
        for taken in range(1, 12):
            assert len(await anext(stream)) == size
            await sides.turns(6)
            assert source.made <= taken + 5


async def test_a_stream_starts_in_the_order_of_the_mailbox_and_then_runs_beside_it(sides, source):
    ref = await sides.spawn(source)
    held = asyncio.create_task(ref.hold())
    await sides.turns()
    ref.note.cast("before")
    stream = ref.count(10**9)
    first = asyncio.create_task(anext(stream))
    await sides.turns()
    ref.note.cast("after")
    await sides.turns()
    assert source.seen == []
    source.gate.set()
    await held
    assert await first == 0
    await ref.note("beside")
    assert source.seen == ["before", "count", "after", "beside"]
    assert await anext(stream) == 1
    await stream.aclose()


async def test_the_timeout_is_for_each_item_not_for_the_stream(sides, source):
    ref = await sides.spawn(source)
    stream = ref.waits(timeout=5.0)
    assert await anext(stream) == 0
    for _ in range(100):  # nobody waits
        sides.clock.advance(0.5)
        await sides.turns()
    waiting = asyncio.create_task(anext(stream))
    await sides.turns()
    sides.clock.advance(4.0)
    source.gate.set()
    assert await waiting == 1


async def test_the_timeout_may_be_a_whole_number(sides, source):
    assert [item async for item in (await sides.spawn(source)).count(3, timeout=5)] == [0, 1, 2]


@pytest.mark.parametrize("sides", ["remote"], indirect=True)
async def test_a_stream_that_nobody_reads_any_more_ends(sides, source):
    """The CANCEL of its consumer was lost, or its way was full."""
    ref = await sides.spawn(source)
    lost, kept = ref.waits(), ref.waits()
    for stream in (lost, kept):
        assert await anext(stream) == 0
    inbound = sides.callee.table.current["a"].inbound
    assert len(inbound) == 2
    sides.caller.table.current["b"].streams.pop(min(inbound))
    for _ in range(22):
        sides.clock.advance(0.5)
        await sides.turns()
    assert len(inbound) == 1
    source.gate.set()
    assert await anext(kept) == 1


async def test_the_number_of_streams_of_an_actor_is_bounded(sides, source, monkeypatch):
    monkeypatch.setattr(type(source), "most_concurrent", 3)
    ref = await sides.spawn(source)
    open_ones = [ref.waits() for _ in range(3)]
    for stream in open_ones:
        assert await anext(stream) == 0
    with pytest.raises(MailboxFull, match="3"):
        await anext(ref.waits())
    for stream in open_ones:
        await stream.aclose()
    await sides.turns()
    assert await anext(ref.waits()) == 0


@pytest.mark.parametrize("sides", ["remote"], indirect=True)
async def test_a_consumer_cannot_ask_for_an_endless_window(sides, source):
    await sides.spawn(source)
    message = [envelope.OPEN, 77, "actor", "count", 5.0, 0.0, b"", [10**9], {}, 10**12, 10**12]
    sides.caller._transport.send(sides.callee.id, pack(message))
    await sides.turns()
    assert source.made <= 4096
    sides.caller._transport.send(sides.callee.id, pack([envelope.CREDIT, 77, 2**40, 2**40]))
    await sides.turns()
    assert source.made <= 2 * 4096
    sides.caller._transport.send(sides.callee.id, pack([envelope.CANCEL, 77]))
    await sides.turns()
    assert left_over(sides) == 0


async def test_two_readers_of_one_stream_are_refused(sides, source):
    ref = await sides.spawn(source)
    stream = ref.waits()
    await anext(stream)
    first = asyncio.create_task(anext(stream))
    await sides.turns()
    with pytest.raises(RuntimeError, match="two tasks read"):
        await anext(stream)
    source.gate.set()
    assert await first == 1


async def test_arrays_travel_out_of_band(sides):
    class Arrays(Actor):
        @endpoint
        async def cut(self, array: np.ndarray) -> AsyncIterator[np.ndarray]:
            for row in array:
                yield row

    ref = await sides.spawn(Arrays())
    rows = [row async for row in ref.cut(np.arange(6).reshape(3, 2))]
    np.testing.assert_array_equal(rows, np.arange(6).reshape(3, 2))


async def test_over_sockets(tmp_path, source, until):
    a, b = Node("a", directory=tmp_path), Node("b", directory=tmp_path)
    await a.start()
    await b.start()
    await b.spawn(source, name="source")
    a.peering.greet(b.id, b.endpoint)
    ref = a.ref("b/source", Source)
    assert [n async for n in ref.count(1000)] == list(range(1000))
    async with ref.count(10**9, size=100_000) as stream:
        assert len(await anext(stream)) == 100_000
    await until(lambda: source.ended[-1] == "end" and not b.table.current["a"].inbound)
    await a.stop()
    await b.stop()


def test_a_window_counts_totals():
    window = Window(2, 100)
    window.send(10)
    assert window.open
    window.send(200)
    assert not window.open
    window.taken(1, 10)
    assert not window.open  # of bytes there is no room
    window.taken(1, 10)
    window.taken(9, 900)  # more than was sent
    assert window.open
    window.send(1)
    window.send(1)
    assert not window.open
