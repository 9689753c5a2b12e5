"""Bulk transfers in a simulated cluster: KV and parameters share links with the activations of pipelines.

The rules are the same as on live links (``policies/cluster/chunk_order.py``): activations go first and wait at most for the
current chunk; KV goes before parameters, and each class is first-in first-out. Each activation delays the current transfer
by its own time. Without ``priorities`` everything is in one queue, so an activation waits for everything that was sent
before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ..policies.cluster.chunk_order import LEAST, MOST, TARGET, Traffic
from ..policies.prediction.machines import BulkTimes, LinkTimes

Link = tuple[str, str]  # sender, receiver
Done = Callable[[], None]
At = Callable[[float, Done], None]  # schedules a function at a time


class BulkLinks:
    """Links with bulk transfers (see the module).

    ``times`` are the activations' times on the same links. ``at`` is the simulation's clock. ``bandwidth`` is in bytes per
    second.
    """

    def __init__(self, times: LinkTimes, bandwidth: float, at: At, *, priorities: bool = True) -> None:
        self.bandwidth = bandwidth
        self._times = times
        self._at = at
        self._chunk = max(LEAST, min(MOST, bandwidth * TARGET)) / bandwidth if priorities else 0.0  # seconds
        self._waiting: dict[Link, dict[Traffic, deque[tuple[float, Done]]]] = {}  # each with its duration in seconds
        self._busy: set[Link] = set()

    def send(self, link: Link, kind: Traffic, size: int, now: float, done: Done) -> None:
        """Send ``size`` bytes; ``done`` is called when they have arrived."""
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
                bulk.began = now
                bulk.ends = now + seconds
                bulk.behind = bulk.behind - seconds
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
        """The seconds that each activation waited for bulk transfers."""
        return [wait for bulk in self._times.bulk.values() for wait in bulk.waits]
