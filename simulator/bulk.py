"""Bulk transfers in a simulated cluster: KV and parameters share links with the activations of pipelines.

As ``policies/cluster/chunk_order.py`` has it on live links: activations go first and wait for the chunk under way at most;
KV goes before parameters, first-in first-out in a class. Each activation holds up what is under way by its own time. Without
``priorities`` all is one queue, so that an activation waits for everything that was sent before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ..policies.cluster.chunk_order import LEAST, MOST, TARGET, Traffic
from ..policies.prediction.machines import BulkTimes, LinkTimes

Link = tuple[str, str]  # sender, receiver
Done = Callable[[], None]
At = Callable[[float, Done], None]  # have something done at a time


class BulkLinks:
    """See the module. times: of activations on the same links. at: the simulation's clock; bandwidth: bytes per second."""

    def __init__(self, times: LinkTimes, bandwidth: float, at: At, *, priorities: bool = True) -> None:
        self.bandwidth, self._times, self._at = bandwidth, times, at
        self._chunk = max(LEAST, min(MOST, bandwidth * TARGET)) / bandwidth if priorities else 0.0  # seconds
        self._waiting: dict[Link, dict[Traffic, deque[tuple[float, Done]]]] = {}  # seconds of each
        self._busy: set[Link] = set()

    def send(self, link: Link, kind: Traffic, size: int, now: float, done: Done) -> None:
        """So many bytes; ``done`` is called when they have arrived."""
        waiting = self._waiting.setdefault(link, {kind: deque() for kind in Traffic})
        waiting[kind].append((size / self.bandwidth, done))
        self._times.bulk.setdefault(link, BulkTimes(self._chunk)).behind += size / self.bandwidth
        if link not in self._busy:
            self._next(link, now)

    def _next(self, link: Link, now: float) -> None:
        bulk = self._times.bulk[link]
        for waiting in self._waiting[link].values():
            if waiting:
                seconds, done = waiting.popleft()
                bulk.began, bulk.ends, bulk.behind = now, now + seconds, bulk.behind - seconds
                self._busy.add(link)
                self._look_at_end(link, done)
                return
        self._busy.discard(link)

    def _look_at_end(self, link: Link, done: Done) -> None:
        ends = self._times.bulk[link].ends
        self._at(ends, lambda: self._look(link, ends, done))

    def _look(self, link: Link, expected: float, done: Done) -> None:
        ends = self._times.bulk[link].ends
        if ends > expected:
            self._look_at_end(link, done)
            return
        self._at(ends + self._times.latency, done)
        self._next(link, ends)

    @property
    def waits(self) -> list[float]:
        """Seconds that activations waited for bulk."""
        return [wait for bulk in self._times.bulk.values() for wait in bulk.waits]
