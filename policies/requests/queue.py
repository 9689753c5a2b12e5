"""The waiting queue of a gateway: requests without a route, by priority, then by arrival.

It is kept by application, so that one that cannot run costs the others nothing. An arrival, a start or an end costs a
binary search; nothing is sorted anew.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from heapq import merge

Key = tuple[int, int]  # (priority, arrival number): lower goes first


class WaitingQueue:
    """The waiting queue of one gateway (see the module)."""

    def __init__(self) -> None:
        self._order: dict[str, list[tuple[Key, str]]] = {}  # application -> its requests, sorted; no list is empty
        self._since: dict[str, dict[str, tuple[Key, float]]] = {}  # the same, in the order in which they began to wait

    def add(self, request: str, application: str, key: Key, now: float) -> None:
        insort(self._order.setdefault(application, []), (key, request))
        self._since.setdefault(application, {})[request] = key, now

    def remove(self, request: str, application: str) -> None:
        """Remove a request. No-op if it does not wait."""
        since = self._since.get(application, {})
        if request in since:
            order = self._order[application]
            del order[bisect_left(order, (since.pop(request)[0], request))]
            if not order:
                del self._order[application], self._since[application]

    def applications(self) -> list[str]:
        """Return the applications that requests wait for."""
        return list(self._order)

    def in_order(self, applications: Iterable[str]) -> Iterator[str]:
        """Iterate over the requests of these applications as they are now, whatever is added or removed meanwhile."""
        return (request for _, request in merge(*[list(self._order.get(name, ())) for name in applications]))

    def longest_waiting(self, application: str) -> tuple[str, float] | None:
        """Return the request that has waited longest and the start of its wait, or None."""
        for request, (_, since) in self._since.get(application, {}).items():
            return request, since
        return None

    def ahead(self, key: Key) -> int:
        """Return the number of requests, of all applications, that go before one with this key."""
        return sum(bisect_left(order, (key, "")) for order in self._order.values())

    def __len__(self) -> int:
        return sum(map(len, self._order.values()))

    def check(self) -> None:
        """Raise AssertionError when an invariant is broken."""
        assert self._order.keys() == self._since.keys()
        for name, order in self._order.items():
            assert order == sorted((key, request) for request, (key, _) in self._since[name].items()) != []
