"""Batch orders of other engines, for ``offline_live.py``: the same engine, memory, credit and estimates of lengths.

A list of requests is cut into pieces of equal numbers, one for each worker. A worker at the end of its piece takes the
second half of another's rest. Each piece is read only from its beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blockwright.policies.offline.density import Costs
    from blockwright.policies.offline.feed import OfflineRequest, PlacedRequest
    from blockwright.policies.offline.scanner import DualScanner


class FixedFeed:
    """As ``OfflineFeed`` to who drives it. ``order``: "depth-first", or "random" by ``numbers``. Workers may not end."""

    stale = False

    def __init__(self, requests: Sequence[OfflineRequest], order: str, numbers: Sequence[float]) -> None:
        from blockwright.policies.offline.baselines import at_random, depth_first
        from blockwright.policies.offline.estimates import Estimates
        from blockwright.policies.offline.prefix_tree import PrefixTree

        self._tree = PrefixTree([one.prompt for one in requests])
        self._estimates = Estimates(self._tree, [one.limit for one in requests])
        self._order = depth_first(self._tree) if order == "depth-first" else at_random(numbers)
        self._scanners: dict[str, DualScanner] = {}
        self._last: dict[str, int] = {}
        self._where: dict[int, DualScanner] = {}
        self._open = len(requests)

    @property
    def workers(self) -> frozenset[str]:
        return frozenset(self._scanners)

    @property
    def over(self) -> bool:
        return not self._open

    def joined(self, worker: str, positions: int) -> None:
        from blockwright.policies.offline.scanner import DualScanner

        if worker in self._scanners:
            return
        self._scanners[worker] = DualScanner([], self._need_on(worker), positions, 1.0)
        waiting = [one for one in self._order if one not in self._where]
        size = -(-len(waiting) // len(self._scanners))
        for number, scanner in enumerate(self._scanners.values()):
            self._give(scanner, waiting[number * size : (number + 1) * size])

    def ended(self, worker: str) -> None:
        raise RuntimeError(f"{worker} ended while it was measured")

    def measured(self, costs: Costs) -> None:
        """Changes no order."""

    def errand(self) -> None:
        """Nothing takes long."""

    def pull(self, worker: str, rows: int, positions: float, sweeps: int = 0) -> list[PlacedRequest]:
        from blockwright.policies.offline.feed import PlacedRequest

        scanner, placed = self._scanners[worker], list[PlacedRequest]()
        while rows > 0 and (scanner.waiting or self._refilled(scanner)):
            admission = scanner.admit(positions)
            if admission is None:
                break
            self._last[worker], self._where[admission.request] = admission.request, scanner
            placed.append(PlacedRequest(admission.request, worker, "left", 1, admission.need))
            rows, positions = rows - 1, positions - admission.need
        return placed

    def finished(self, request: int, output_tokens: int, cached: int = 0) -> None:
        self._where[request].finished(request)
        self._estimates.finished(request, output_tokens)
        self._open -= 1

    def given_back(self, request: int) -> None:
        self._where.pop(request).retracted(request)

    def _refilled(self, scanner: DualScanner) -> bool:
        fullest = max(self._scanners.values(), key=lambda one: one.waiting)
        rest = fullest.pending()
        if len(rest) < 2:
            return False
        self._give(fullest, rest[: len(rest) // 2])
        self._give(scanner, rest[len(rest) // 2 :])
        return True

    def _give(self, scanner: DualScanner, requests: Sequence[int]) -> None:
        """One unit: it is read from its beginning, with all memory."""
        from array import array

        from blockwright.policies.offline.order import Unit

        scanner.replace([Unit(array("i", requests), 1.0, 1.0, 0, 0.0)] if requests else [])

    def _need_on(self, worker: str) -> Callable[[int], float]:
        def need(request: int) -> float:
            last = self._last.get(worker, -1)
            found = self._tree.shared(last, request) if last >= 0 else 0
            return self._tree.length[request] - found + self._estimates.output(request) / 2.0

        return need
