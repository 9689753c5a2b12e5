"""Whose turn it is to move back when parameters have come back (decision 58).

What is copied lies in two places until its request has moved, so only as much is under way to a route as it has room for
beyond all that goes there; one request at a time where that is nothing. The others decode on in the pipeline meanwhile.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from ..model.chain import Route


class MovingBack:
    """The requests of one restore, in the order in which they were added. Counts are of tokens."""

    def __init__(self) -> None:
        self._queue: dict[str, Route] = {}
        self._rooms: dict[str, int] = {}  # by route: what may be under way to it
        self._under: defaultdict[str, dict[str, int]] = defaultdict(dict)  # by route: what is, of each request

    def add(self, request: str, route: Route, tokens: int, capacity: int) -> None:
        """``capacity``: what its new route has room for in all, which all that go there will need a part of."""
        self._queue[request] = route
        self._rooms[route.id] = self._rooms.get(route.id, capacity) - tokens

    @property
    def waiting(self) -> list[str]:
        """Whose turn has not come."""
        return [*self._queue]

    @property
    def moving(self) -> set[str]:
        """Who has begun and not ended."""
        return {request for under in self._under.values() for request in under}

    def begin(self, tokens: Mapping[str, int]) -> list[tuple[str, Route]]:
        """Who begins to move now, and where to. ``tokens``: of each that waits, as many as it has by now."""
        found = []
        for request, route in [*self._queue.items()]:
            under = self._under[route.id]
            if not under or sum(under.values()) + tokens[request] <= self._rooms[route.id]:
                del self._queue[request]
                under[request] = tokens[request]
                found.append((request, route))
        return found

    def end(self, request: str) -> None:
        """It has moved, or need not any more; nothing where it is not known."""
        self._queue.pop(request, None)
        for under in self._under.values():
            under.pop(request, None)
