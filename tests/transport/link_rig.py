"""Two nodes' links over a wire of known speed, under a manual clock: what the tests of links look at."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from blockwright.runtime.base.clock import ManualClock
from blockwright.transport.address import PeerId
from blockwright.transport.errors import PeerGone
from blockwright.transport.link_table import LinkTable
from blockwright.transport.wire import Buffer, Traffic

A, B = PeerId("a", 1), PeerId("b", 1)


class Wire:
    """One direction: frames arrive in order, ``bandwidth`` bytes per second after ``latency`` seconds. ``cut`` loses what is
    on its way, as a broken connection does; so does ``lose`` for one message."""

    link_kind = "frames"

    def __init__(self, clock: ManualClock, source: PeerId, bandwidth: float, latency: float) -> None:
        self.clock, self.source = clock, source
        self.bandwidth, self.latency = bandwidth, latency
        self.far: LinkTable | None = None
        self.up = True
        self.sent = 0
        self.doomed: set[int] = set()  # numbers of messages that are lost
        self._free_at = 0.0
        self._way: deque[list[memoryview]] = deque()

    def send_link(self, peer: PeerId, frames: Sequence[Buffer]) -> None:
        if not self.up:
            raise PeerGone("the wire is cut")
        self.sent += 1
        if self.sent in self.doomed:
            return
        size = sum(map(len, frames))
        self._free_at = max(self._free_at, self.clock.now()) + size / self.bandwidth
        message = [memoryview(bytes(frame)) for frame in frames]
        self._way.append(message)
        self.clock.call_at(self._free_at + self.latency, lambda: self._arrive(message))

    def cut(self) -> None:
        self._way.clear()
        self._free_at = 0.0

    def _arrive(self, message: list[memoryview]) -> None:
        if any(message is waiting for waiting in self._way):
            self._way.remove(message)
            assert self.far is not None
            self.far.on_frames(self.source, message)


class Rig:
    """``a`` sends to ``b``; ``share``: by shared memory, so that the wire carries no bytes.

    ``got``: (time, class, header, buffers) as they were delivered at b.
    """

    def __init__(self, *, bandwidth: float = 1e9, latency: float = 50e-6, share: bool = False) -> None:
        self.clock = ManualClock(start=0.0)
        self.there = Wire(self.clock, A, bandwidth, latency)
        self.back = Wire(self.clock, B, bandwidth, latency)
        self.a = LinkTable(A, self.there, self.clock, self.deliver, share=share)
        self.b = LinkTable(B, self.back, self.clock, self.deliver, share=share)
        self.there.far, self.back.far = self.b, self.a
        self.got: list[tuple[float, Traffic, bytes, list[memoryview]]] = []

    def deliver(self, peer: PeerId, kind: Traffic, header: bytes, buffers: list[memoryview]) -> None:
        self.got.append((self.clock.now(), kind, header, buffers))

    def break_connection(self) -> None:
        """In both directions, noticed at once by both."""
        self.there.cut()
        self.back.cut()
        self.a.on_broken(B)
        self.b.on_broken(A)

    async def pass_time(self, seconds: float, step: float = 100e-6) -> None:
        """Let the virtual time pass; callbacks of the loop run in between."""
        end = self.clock.now() + seconds
        while self.clock.now() < end:
            self.clock.advance(step)
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    def close(self) -> None:
        self.a.close()
        self.b.close()
