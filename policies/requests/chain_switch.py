"""Switches of running requests to another chain: when they gain enough, and for how long that has to hold.

Two estimates are compared: of the rest of the answer where the request is, and of all of its tokens on the other route.
Pure; ``policies/requests/book/chain_switching.py`` carries switches out.
"""

from __future__ import annotations

from collections.abc import Mapping

MARGIN = 3  # a switch must gain more than one part in this many of the estimate
HOLD = 1.0  # seconds for which a route must be that much worse than another one, before and between switches


def gains(stay: float, go: float) -> bool:
    """Return whether a switch gains enough. stay, go: estimates here and on the other route, in the same unit."""
    return go * MARGIN < stay * (MARGIN - 1)


def stays(stay: float, start: float) -> bool:
    """Return whether a request that has begun on a variant stays there although its own chain has been loaded meanwhile.

    Args:
        stay: estimated time of the rest of its answer where it is.
        start: estimated time until the own chain could go on with the answer, in the same unit.
    """
    return stay <= start


class WorseRoutes:
    """The routes whose work is so much more than another route's that requests may gain by leaving, since when."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def note(self, queues: Mapping[str, tuple[float, float]], now: float) -> list[str]:
        """Return the routes that have been worse for long enough; their time begins anew.

        queues: route id -> the time of all work there, and the least on a route that its requests could go to.
        """
        worse = {id for id, (here, least) in queues.items() if gains(here, least)}
        self._since = {id: self._since.get(id, now) for id in queues if id in worse}
        due = [id for id, since in self._since.items() if now - since >= HOLD]
        for id in due:
            self._since[id] = now
        return due


class ChainSwitches:
    """The switches of running requests between chains (see the module).

    limit: of one request, besides the ones that the end of a route forces; 0: none, and such a request waits for a route.
    """

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        self._worse: dict[str, WorseRoutes] = {}  # by application

    def worse(self, application: str, queues: Mapping[str, tuple[float, float]], now: float) -> list[str]:
        """Return the routes of an application and its variants that requests should leave (``WorseRoutes.note``)."""
        return self._worse.setdefault(application, WorseRoutes()).note(queues, now)

    def keep(self, applications: Mapping[str, object]) -> None:
        """Forget all other applications."""
        for name in self._worse.keys() - applications.keys():
            del self._worse[name]
