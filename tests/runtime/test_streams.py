"""Streams by reference, encoded, and between nodes: credit, ends, and that nothing is left of either side."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from dataclasses import dataclass

import numpy as np
import pytest

from blockwright.runtime import (
    Actor,
    ActorDied,
    DeadlineExceeded,
    DecodeError,
    EncodeError,
    MailboxFull,
    Node,
    NodeDown,
    NoSuchActor,
    RemoteError,
    endpoint,
    envelope,
)
from blockwright.runtime.codec import pack
from blockwright.runtime.window import WINDOW_BYTES, WINDOW_ITEMS, Window


@dataclass(frozen=True)
class Row:
    number: int


class Source(Actor):
    """Writes down what its generators do."""

    def __init__(self) -> None:
        self.made = 0
        self.ended: list[str] = []
        self.seen: list[str] = []
        self.gate = asyncio.Event()

    @endpoint
    async def count(self, stop: int, size: int = 0) -> AsyncIterator[bytes | int]:
        self.seen.append("count")
        try:
            for number in range(stop):
                self.made += 1
                yield bytes(size) if size else number
        except (GeneratorExit, asyncio.CancelledError) as error:
            self.ended.append(type(error).__name__)
            raise
        finally:
            self.ended.append("end")

    @endpoint
    async def rows(self, stop: int) -> AsyncIterator[Row]:
        for number in range(stop):
            yield Row(number)

    @endpoint
    async def fails(self, after: int) -> AsyncIterator[int]:
        for number in range(after):
            yield number
        raise KeyError("lost")

    @endpoint
    async def unfit(self) -> AsyncIterator[int]:
        yield 1
        yield object()  # type: ignore[misc]

    @endpoint
    async def waits(self) -> AsyncIterator[int]:
        yield 0
        try:
            await self.gate.wait()
        finally:
            self.ended.append("waits")
        yield 1

    @endpoint
    async def stubborn(self) -> AsyncIterator[int]:
        while True:
            try:
                yield 0
                await self.gate.wait()
            except asyncio.CancelledError:
                self.ended.append("ignored")

    @endpoint
    async def note(self, text: str) -> None:
        self.seen.append(text)

    @endpoint
    async def hold(self) -> None:
        await self.gate.wait()

    @endpoint
    async def total(self, address: str, stop: int) -> int:
        return sum([number async for number in self.node.ref(address, Source).count(stop)])


@pytest.fixture
async def source():
    return Source()


async def read(stream: AsyncIterator[int], into: list[int]) -> None:
    async for number in stream:
        into.append(number)


def left_over(sides) -> int:
    """Streams that either side still knows."""
    peers = [p for n in (sides.caller, sides.callee) for p in [*n.table.current.values(), n._self]]
    cells = [c for n in {sides.caller, sides.callee} for c in [life.cell for life in n.lives.current.values()]]
    return sum(len(p.streams) + len(p.inbound) for p in peers) + sum(len(c._running) for c in cells)


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


async def test_the_timeout_is_for_each_item_not_for_the_stream(sides, source):
    ref = await sides.spawn(source)
    stream = ref.waits(timeout=5.0)
    assert await anext(stream) == 0
    sides.clock.advance(50.0)  # nobody waits
    waiting = asyncio.create_task(anext(stream))
    await sides.turns()
    sides.clock.advance(4.0)
    source.gate.set()
    assert await waiting == 1


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


async def test_the_number_of_streams_of_an_actor_is_bounded(sides, source, monkeypatch):
    monkeypatch.setattr("blockwright.runtime.cell.MAX_CONCURRENT", 3)
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


@pytest.mark.parametrize("sides", ["remote"], indirect=True)
async def test_a_consumer_cannot_ask_for_an_endless_window(sides, source):
    await sides.spawn(source)
    message = [envelope.OPEN, 77, "actor", "count", 5.0, 0.0, "", [10**9], {}, 10**12, 10**12]
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
    a.greet(b.id, b.endpoint)
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
