"""The queue of grammars that wait to be compiled, one at a time: tenants take turns by the processor time they have had.

A grammar has a short try at first. One that needs longer waits again, behind the ones that were not tried yet, so that slow
ones delay new ones by a short try each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from .fair_share import FairShare, Flow

OWN, ALL = "own", "all"  # queues that are full: the tenant's, or the one of all
FIRST_TRY, LATER_TRY = range(2)
LATER_TRY_EVERY = 16  # of this many grammars in sequence, one is a later try if any waits for one


class CompileQueue:
    """The queue of one process (see the module), of numbers that its owner gives out.

    ``most``: of all tenants. ``most_of_one``: of one of them.
    """

    def __init__(self, weights: Mapping[str, int], most: int, most_of_one: int) -> None:
        self._share = FairShare(weights, 1, 1)
        self._waiting: dict[Flow, deque[int]] = {}  # try, tenant -> grammars; none is empty
        self._most, self._most_of_one = most, most_of_one
        self._taken = 0

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def waiting_of(self, tenant: str) -> int:
        """Return how many grammars of a tenant wait."""
        return sum(len(waiting) for flow, waiting in self._waiting.items() if flow[1] == tenant)

    def full(self, tenant: str) -> str:
        """Return whose queue has no room for a grammar of a tenant, ``OWN`` or ``ALL``; "": there is room."""
        if self.waiting_of(tenant) >= self._most_of_one:
            return OWN
        return ALL if self.waiting >= self._most else ""

    def add(self, number: int, tenant: str, attempt: int = FIRST_TRY) -> None:
        """Add a grammar, whether there is room or not."""
        flow = attempt, tenant
        if flow not in self._waiting:
            self._share.join(flow, self._waiting)
            self._waiting[flow] = deque()
        self._waiting[flow].append(number)

    def remove(self, number: int) -> None:
        """Remove a grammar that is no longer wanted, if it still waits."""
        for flow, waiting in self._waiting.items():
            if number in waiting:
                waiting.remove(number)
                self._end_if_empty(flow)
                return

    def take(self) -> tuple[int, str, int] | None:
        """Take the grammar whose turn it is: its number, its tenant and which try it is; None: none waits."""
        self._taken += 1
        attempts = (LATER_TRY, FIRST_TRY) if self._taken % LATER_TRY_EVERY == 0 else (FIRST_TRY, LATER_TRY)
        for attempt in attempts:
            flows = [flow for flow in self._waiting if flow[0] == attempt]
            if flows:
                flow = min(flows, key=lambda flow: (self._share.counter(flow), self._waiting[flow][0]))
                number = self._waiting[flow].popleft()
                self._end_if_empty(flow)
                return number, flow[1], attempt
        return None

    def charge(self, tenant: str, attempt: int, seconds: float) -> None:
        """Charge a tenant for the processor time of a grammar that was taken."""
        self._share.charge_answer((attempt, tenant), max(1, round(seconds * 1e6)))
        if not self.waiting_of(tenant):
            self._share.forget(tenant, self._waiting)

    def _end_if_empty(self, flow: Flow) -> None:
        if not self._waiting[flow]:
            del self._waiting[flow]
            self._share.quit(flow)
