"""The order in which requests move back after parameters were restored.

Copied pages exist twice until their request has moved. So the pages in flight to a route are limited to its room beyond
all that goes there; if there is none, one request moves at a time. The others decode on in the pipeline meanwhile.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from ..model.chain import Route


class MovingBack:
    """The requests of one restore, in the order in which they were added. Counts are of tokens."""

    def __init__(self) -> None:
        self._queue: dict[str, Route] = {}
        self._rooms: dict[str, int] = {}  # by route: tokens that may be in flight to it
        self._under: defaultdict[str, dict[str, int]] = defaultdict(dict)  # by route: tokens in flight, of each request

    def add(self, request: str, route: Route, tokens: int, capacity: int) -> None:
        """Add a request. ``capacity``: total tokens of its new route, shared by all requests that go there."""
        self._queue[request] = route
        self._rooms[route.id] = self._rooms.get(route.id, capacity) - tokens

    @property
    def waiting(self) -> list[str]:
        """The requests whose turn has not come."""
        return [*self._queue]

    @property
    def moving(self) -> set[str]:
        """The requests that have begun to move and not ended."""
        return {request for under in self._under.values() for request in under}

    def begin(self, tokens: Mapping[str, int]) -> list[tuple[str, Route]]:
        """Return the requests that begin to move now, with their routes.

        ``tokens``: present length of each waiting request.
        """
        found = []
        for request, route in [*self._queue.items()]:
            under = self._under[route.id]
            if not under or sum(under.values()) + tokens[request] <= self._rooms[route.id]:
                del self._queue[request]
                under[request] = tokens[request]
                found.append((request, route))
        return found

    def end(self, request: str) -> None:
        """Remove a request that has moved, or no longer needs to. No-op if it is unknown."""
        self._queue.pop(request, None)
        for under in self._under.values():
            under.pop(request, None)
