"""Traffic counts: what workers have counted of activations, summed over their lives, and since a window began."""

from __future__ import annotations

from collections.abc import Iterator

from ..cluster.traffic import Passages
from .events import BorderTraffic, TrafficCounted


class TrafficCounts:
    """The counts of one cluster (see the module). A report costs work for what it names."""

    def __init__(self) -> None:
        self._last: dict[str, TrafficCounted] = {}  # worker -> its last report in its present life
        self._window: dict[str, tuple[int, int]] = {}  # application -> sweeps, positions
        self._sent: dict[tuple[str, int, str, str], tuple[int, int, int]] = {}  # sweeps, positions, bytes

    def take(self, event: TrafficCounted) -> None:
        """Add what is new in a worker's report."""
        last = self._last.get(event.worker)
        same = last is not None and last.incarnation == event.incarnation
        known = last.passages if last is not None and same else {}
        sent = {(one.application, one.depth, one.to): one for one in last.sent} if last is not None and same else {}
        self._last[event.worker] = event
        for name, (sweeps, positions) in event.passages.items():
            before, there = known.get(name, (0, 0)), self._window.get(name, (0, 0))
            self._window[name] = there[0] + sweeps - before[0], there[1] + positions - before[1]
        for one in event.sent:
            self._add(event.worker, one, sent.get((one.application, one.depth, one.to)))

    def _add(self, worker: str, one: BorderTraffic, before: BorderTraffic | None) -> None:
        key = one.application, one.depth, worker, one.to
        now, old = (one.sweeps, one.positions, one.nbytes), (0, 0, 0)
        if before is not None:
            old = before.sweeps, before.positions, before.nbytes
        there = self._sent.get(key, (0, 0, 0))
        self._sent[key] = there[0] + now[0] - old[0], there[1] + now[1] - old[1], there[2] + now[2] - old[2]

    def passages(self) -> dict[str, Passages]:
        """Return the passages of the window, by application."""
        return {name: Passages(*counts) for name, counts in self._window.items() if any(counts)}

    def begin_window(self) -> None:
        """Count passages from here on."""
        self._window.clear()

    def sent(self) -> Iterator[tuple[str, BorderTraffic]]:
        """Yield what has crossed, with the worker that sent it, most bytes first."""
        for (name, depth, worker, to), counts in sorted(self._sent.items(), key=lambda item: (-item[1][2], item[0])):
            yield worker, BorderTraffic(name, depth, to, *counts)

    def forget(self, application: str) -> None:
        """Forget an application for good."""
        self._window.pop(application, None)
        for key in [key for key in self._sent if key[0] == application]:
            del self._sent[key]

    def retain(self, workers: set[str]) -> None:
        """Forget all workers but these."""
        for worker in self._last.keys() - workers:
            del self._last[worker]
        for key in [key for key in self._sent if not {*key[2:]} <= workers]:
            del self._sent[key]
