"""The send order of a link: strict priority between traffic classes, FIFO within a class, large messages in chunks.

So there is no head-of-line blocking. Owns the queue of one link as ids and sizes, the size of chunks (from the measured
bandwidth, so that a chunk takes about ``target`` seconds), the limit on unacknowledged data, and the resending after a
reconnect. Holds no bytes, reads no clock.

At most ``WINDOW`` chunks of the lower classes are unacknowledged: libzmq and the kernel would buffer megabytes, in which
an activation would wait. So an activation waits for these chunks at most. Priority is strict: a link that is full of
activations sends no KV at all. That is intended: activations are bounded by the leases of their homes, and their sender
stops without answers, so they leave room. A caller that needs a share for KV must bound what is sent above it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

WINDOW = 2  # limit of unacknowledged chunks of the lower classes
URGENT_BYTES, URGENT_CHUNKS = 64 << 20, 1024  # limits of unacknowledged activations; one is always allowed
LEAST, MOST = 64 << 10, 4 << 20  # bytes of a chunk
TARGET = 0.005  # target seconds of a chunk: about one pipeline stage
FIRST = 256 << 10  # bytes of a chunk before any measurement
GAIN = 0.25  # weight of a new measurement


class Traffic(IntEnum):
    """Classes of link traffic, most urgent first."""

    ACTIVATION = 0  # also sampled tokens
    KV = 1
    PARAMETERS = 2


class Chunk(NamedTuple):
    """A piece of a message. ``number`` counts the chunks of its class on this link, from 0."""

    kind: Traffic
    number: int
    message: int
    offset: int  # bytes
    size: int  # bytes
    last: bool  # of its message


@dataclass(slots=True)
class _Queue:
    """One class: messages to be cut, and chunks sent."""

    waiting: deque[tuple[int, int]] = field(default_factory=deque)  # (message, size)
    cut: int = 0  # bytes of the first waiting message already cut off
    number: int = 0  # number of the next new chunk
    again: int = 0  # chunks at the end of ``unacknowledged`` to be resent first
    sent: int = 0  # chunks of ``unacknowledged`` in flight: all the others
    unacknowledged: deque[Chunk] = field(default_factory=deque)


class ChunkOrder:
    """The send order of one link (see the module).

    ``whole``: nothing is cut (bytes do not move, as between nodes of one process).
    """

    def __init__(self, *, target: float = TARGET, window: int = WINDOW, whole: bool = False) -> None:
        if target <= 0 or window < 1:
            raise ValueError(f"target {target} s and window {window} must be positive")
        self.target, self.whole = target, whole
        self.bandwidth = FIRST / target  # bytes per second
        self._measured = False
        self._window = window
        self._queues = {kind: _Queue() for kind in Traffic}
        self._lower = [self._queues[Traffic.KV], self._queues[Traffic.PARAMETERS]]
        self._activations = self._queues[Traffic.ACTIVATION]
        self._urgent = 0  # bytes of activations in flight

    def add(self, kind: Traffic, message: int, size: int) -> None:
        """Queue a message of ``size`` bytes behind earlier ones of its class."""
        self._queues[kind].waiting.append((message, size))

    def next(self) -> Chunk | None:
        """Return the chunk to send now, counted as sent; None if no waiting chunk may be sent."""
        queue = self._activations
        if (queue.again or queue.waiting) and self._urgent < URGENT_BYTES and queue.sent < URGENT_CHUNKS:
            chunk = self._take(Traffic.ACTIVATION, queue)
            self._urgent += chunk.size
            return chunk
        kv, parameters = self._lower
        if kv.sent + parameters.sent < self._window:
            if kv.again or kv.waiting:
                return self._take(Traffic.KV, kv)
            if parameters.again or parameters.waiting:
                return self._take(Traffic.PARAMETERS, parameters)
        return None

    def acknowledge(self, received: Mapping[Traffic, int]) -> list[Chunk]:
        """Record that the receiver has all chunks of each class below these numbers; return those newly received.

        Numbers beyond what was sent are ignored.
        """
        done: list[Chunk] = []
        for kind, upto in received.items():
            queue = self._queues[kind]
            while queue.unacknowledged and queue.unacknowledged[0].number < upto:
                if not queue.sent:
                    queue.again -= 1  # it arrived after all
                else:
                    queue.sent -= 1
                    if queue is self._activations:
                        self._urgent -= queue.unacknowledged[0].size
                done.append(queue.unacknowledged.popleft())
        return done

    def rewind(self, received: Mapping[Traffic, int]) -> None:
        """Resend, after a broken connection, all chunks neither acknowledged nor below these numbers, cut as before."""
        for kind, queue in self._queues.items():
            queue.again = sum(chunk.number >= received[kind] for chunk in queue.unacknowledged)
            queue.sent = len(queue.unacknowledged) - queue.again
        urgent = self._activations
        self._urgent = sum([chunk.size for chunk in urgent.unacknowledged][: urgent.sent])

    def measure(self, size: int, seconds: float) -> None:
        """Learn the bandwidth from chunks of ``size`` bytes that were acknowledged after ``seconds``.

        The link must have been busy throughout.
        """
        if size < LEAST or seconds <= 0:
            return  # latency, not bandwidth
        found = size / seconds
        self.bandwidth += (found - self.bandwidth) * (GAIN if self._measured else 1.0)
        self._measured = True

    @property
    def chunk_bytes(self) -> int:
        """The size of the next chunk that is cut."""
        return max(LEAST, min(MOST, int(self.bandwidth * self.target)))

    @property
    def idle(self) -> bool:
        """True if nothing waits and nothing is unacknowledged."""
        return not any(queue.waiting or queue.unacknowledged for queue in self._queues.values())

    @property
    def unacknowledged(self) -> int:
        """The number of chunks in flight, of all classes."""
        kv, parameters = self._lower
        return self._activations.sent + kv.sent + parameters.sent

    def _take(self, kind: Traffic, queue: _Queue) -> Chunk:
        queue.sent += 1
        if not queue.again:
            return self._cut(kind, queue)
        chunk = queue.unacknowledged[-queue.again]
        queue.again -= 1
        return chunk

    def _cut(self, kind: Traffic, queue: _Queue) -> Chunk:
        message, total = queue.waiting[0]
        left = total - queue.cut
        size = left if self.whole or queue is self._activations else min(left, self.chunk_bytes)
        chunk = Chunk(kind, queue.number, message, queue.cut, size, size == left)
        queue.number += 1
        queue.cut += size
        if chunk.last:
            queue.waiting.popleft()
            queue.cut = 0
        queue.unacknowledged.append(chunk)
        return chunk
