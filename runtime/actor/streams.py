"""Streams: an async-generator endpoint read with ``async for``, under flow control by credit from the reader.

Owns the consumer's end (the ``Inlet`` where items wait, the ``Stream`` that the consumer holds) and streams inside one
process. The producer's window is ``base/window.py``, streams between nodes ``node/remote_streams.py``; the generator is run
by ``instance.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, Self, TypeVar

from ...transport.clock import Clock
from ..base.errors import DeadlineExceeded, RuntimeFault
from ..base.scope import inherited_deadline
from ..base.window import WINDOW_BYTES, WINDOW_ITEMS, Window
from .endpoint import ActorEndpoint

T_co = TypeVar("T_co", covariant=True)
_SMALL = 64  # bytes that any other object counts for where nothing is encoded


class Inlet:
    """Items on the consumer's side. ``on_taken`` gets totals of items and bytes, ``on_left`` is called once when the
    consumer goes before the end, ``convert`` makes what was sent a value (DecodeError ends the stream)."""

    __slots__ = (
        "_clock",
        "_end",
        "_items",
        "_label",
        "_on_left",
        "_on_taken",
        "_over",
        "_size",
        "_taken",
        "_waiter",
        "convert",
    )

    def __init__(self, label: str, clock: Clock, on_taken: Callable[[int, int], None], on_left: Callable[[], None]) -> None:
        self._label = label
        self._clock = clock
        self._on_taken = on_taken
        self._on_left = on_left
        self._items: deque[tuple[Any, int]] = deque()
        self._taken = self._size = 0
        self._over = False  # the producer has ended
        self._end: RuntimeFault | None = None  # with this
        self._waiter: asyncio.Future[None] | None = None
        self.convert: Callable[[Any], Any] | None = None

    @property
    def over(self) -> bool:
        """No item will come any more."""
        return self._over

    def put(self, value: Any, size: int) -> None:
        if not self._over:
            self._items.append((value, size))
            self._wake()

    def finish(self, fault: RuntimeFault | None) -> None:
        """End the items: the producer ended, or can no longer be reached. Earlier items are still read first."""
        if not self._over:
            self._over, self._end = True, fault
            self._wake()

    def close(self) -> None:
        """Drop the waiting items and, unless it has ended, stop the producer, because the consumer leaves."""
        self._items.clear()
        self._end = None
        if not self._over:
            self._over = True
            self._on_left()
        self._wake()

    async def next(self, patience: float) -> Any:
        """Return the next item; raise StopAsyncIteration at the end. Waits ``patience`` seconds at most."""
        if not self._items and not self._over:
            await self._wait(patience)
        if not self._items:
            fault, self._end = self._end, None
            if fault is None:
                raise StopAsyncIteration
            raise fault
        value, size = self._items.popleft()
        self._taken += 1
        self._size += size
        if not self._over:
            self._on_taken(self._taken, self._size)
        if self.convert is None:
            return value
        try:
            return self.convert(value)
        except BaseException:
            self.close()
            raise

    async def _wait(self, patience: float) -> None:
        if self._waiter is not None:
            raise RuntimeError(f"two tasks read the stream {self._label} at once; give each a stream of its own")
        now, inherited = self._clock.now(), inherited_deadline()
        until = now + patience if inherited is None else min(now + patience, inherited)
        self._waiter = waiter = asyncio.get_running_loop().create_future()
        timer = self._clock.call_at(until, lambda: _late(waiter, self._label, until - now))
        try:
            await waiter
        except (asyncio.CancelledError, DeadlineExceeded):
            self.close()
            raise
        finally:
            self._waiter = None
            timer.cancel()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _late(waiter: asyncio.Future[None], label: str, seconds: float) -> None:
    if not waiter.done():
        waiter.set_exception(DeadlineExceeded(f"{label} gave no item within {seconds:g} s"))


class Stream(AsyncIterator[T_co]):
    """The result of ``ref.g(...)`` for a streaming endpoint.

        async for item in ref.g(3): ...
        async with ref.g(3) as items: ...     # closed at the end of the block, whatever happens

    Nothing is sent before the first item is asked for (or the block entered). ``timeout`` of ``ref.g`` is the longest
    wait for each item; the whole stream is bounded only by the deadline of what its consumer serves. Closing it, dropping
    the last reference to it, a late item, or cancelling the task that waits for one, ends the producer's work too, in
    whatever process. Errors of the producer are raised after the items that it gave before.
    """

    __slots__ = ("_closed", "_inlet", "_loop", "_open", "_patience")

    def __init__(self, opener: Callable[[float], Inlet], patience: float) -> None:
        """Make a stream that is not open yet. ``opener`` sends the request; it may raise a RuntimeFault."""
        self._open, self._patience = opener, patience
        self._inlet: Inlet | None = None
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T_co:
        if self._closed:
            raise StopAsyncIteration
        try:
            item: T_co = await self._start().next(self._patience)
            return item
        except (RuntimeFault, StopAsyncIteration, asyncio.CancelledError):
            self._closed = True  # like a generator: over after the first error
            raise

    async def aclose(self) -> None:
        """End both sides. Does not wait for the producer's clean-up. Idempotent."""
        self._closed = True
        if self._inlet is not None:
            self._inlet.close()

    async def __aenter__(self) -> Self:
        self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _start(self) -> Inlet:
        if self._inlet is None:
            self._loop = asyncio.get_running_loop()
            self._inlet = self._open(self._patience)
        return self._inlet

    def __del__(self) -> None:
        if self._inlet is not None and not self._inlet.over:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and with it everything
                self._loop.call_soon_threadsafe(self._inlet.close)  # collected in any thread


class LocalOutlet:
    """The consumer is in this process; items pass by reference."""

    def __init__(self, label: str, clock: Clock) -> None:
        self.window = Window(WINDOW_ITEMS, WINDOW_BYTES)
        self.cancel: Callable[[], None] = lambda: None  # set once the delivery exists
        self.inlet = Inlet(label, clock, self.window.taken, self._left)

    async def item(self, endpoint: ActorEndpoint, value: Any) -> None:
        size = weight(value)
        self.window.send(size)
        self.inlet.put(value, size)

    def returned(self, endpoint: ActorEndpoint, value: Any) -> None:
        self.inlet.finish(None)

    def failed(self, fault: RuntimeFault) -> None:
        self.inlet.finish(fault)

    def _left(self) -> None:
        self.cancel()


def weight(value: Any) -> int:
    """Return the bytes that a value holds in memory, near enough to bound a stream that encodes nothing."""
    if isinstance(value, bytes | bytearray | str):
        return _SMALL + len(value)
    held = getattr(value, "nbytes", _SMALL)  # arrays, tensors, memoryviews
    return held if type(held) is int else _SMALL
