"""Redundant pages: cached KV pages that idle on several workers, of which all copies but the one used last go first.

A second copy serves no request that the first would not, as requests go to workers that hold their KV. Nothing is freed
ahead of need: a marked copy is found as ever, and a use ends the mark. If it becomes the only copy, the mark is taken back.
Fed by ``CacheReport``; work follows what the reports say.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from .cache_news import CacheReport, MarkPages
from .prefix_index import Key

IN_USE = math.inf


@dataclass(frozen=True, slots=True)
class PageCopy:
    """A copy of a cached page on one worker. ``used``: time of its last use, or ``IN_USE``."""

    used: float
    marked: bool = False


class RedundantPages:
    """The cached pages of a cluster, as reported, and the marks on their copies (see the module)."""

    def __init__(self) -> None:
        self._copies: dict[Key, dict[str, PageCopy]] = {}  # by worker
        self._held: dict[str, dict[Key, None]] = {}  # by worker
        self._changed: dict[Key, None] = {}

    def report(self, worker: str, report: CacheReport, now: float) -> None:
        """Take a worker's next report, which it made now."""
        if report.anew:
            self.lose(worker)
        for key in report.gone:
            self._remove(worker, key)
        for key in report.used:
            self._put(worker, key, IN_USE)
        for key, age in zip(report.idle, report.ages, strict=True):
            self._put(worker, key, now - age)

    def lose(self, worker: str) -> None:
        """Forget the pages of a worker that has died, or reports anew."""
        for key in [*self._held.get(worker, ())]:
            self._remove(worker, key)
        self._held.pop(worker, None)

    def _put(self, worker: str, key: Key, used: float) -> None:
        self._copies.setdefault(key, {})[worker] = PageCopy(used)
        self._held.setdefault(worker, {})[key] = None
        self._changed[key] = None

    def _remove(self, worker: str, key: Key) -> None:
        copies = self._copies.get(key)
        if copies is None or copies.pop(worker, None) is None:
            return
        del self._held[worker][key]
        if copies:
            self._changed[key] = None
        else:
            del self._copies[key]
            self._changed.pop(key, None)

    def decide(self) -> dict[str, MarkPages]:
        """Return the marks that workers have to change, since pages have changed."""
        orders: dict[str, MarkPages] = {}
        for key in self._changed:
            copies = self._copies[key]
            for worker, marked in _wanted(copies).items():
                if copies[worker].marked != marked:
                    copies[worker] = replace(copies[worker], marked=marked)
                    order = orders.setdefault(worker, MarkPages())
                    (order.redundant if marked else order.kept).append(key)
        self._changed = {}
        return orders

    def unmarked(self, worker: str, keys: Iterable[Key]) -> None:
        """Note that a worker has not marked pages, as they were used, or are being sent. They are decided about again."""
        for key in keys:
            copies = self._copies.get(key, {})
            if worker in copies:
                copies[worker] = replace(copies[worker], marked=False)
                self._changed[key] = None


def _wanted(copies: dict[str, PageCopy]) -> dict[str, bool]:
    """Return which idle copies of a page are to be marked; all others stay as they are."""
    idle = {worker: copy for worker, copy in copies.items() if copy.used != IN_USE}
    if len(idle) > 1:
        last = max(idle, key=lambda worker: (idle[worker].used, worker))
        return {worker: worker != last for worker in idle}
    return dict.fromkeys(idle, False) if len(copies) == 1 else {}
