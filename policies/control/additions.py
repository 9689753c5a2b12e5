"""Additions: applications that are added while others are served, and the decision when they are ready or have failed.

Owns their names, the application that each replaces, and the deaths of workers that were loading them. Changes nothing of
what is served.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

from ..cluster.application_life import Incumbent, RouteProgress, check_settled, replaces, verdict, version_name
from .events import Application
from .residency import PlannedRoute, Served, serving
from .worker_record import WorkerRecord


class Additions:
    """The additions in progress (see the module)."""

    def __init__(self) -> None:
        self.replaces: dict[str, str] = {}  # application being added -> the one it replaces, or ""
        self._deaths: dict[str, int] = {}
        self._names: dict[str, int] = {}  # model -> applications added as it so far
        self._places: dict[str, int] = {}  # model -> its place among all, kept when the model is added again

    def __contains__(self, name: str) -> bool:
        return name in self.replaces

    def new_name(self, model: str, known: Collection[str]) -> str:
        """Return a name that no application had before, so that nothing on a worker or in a message is confused."""
        count = self._names.get(model, 0)
        while (name := version_name(model, count)) in known:
            count += 1
        return name

    def admit(self, application: Application, replace: bool, served: Mapping[str, Served]) -> tuple[str, str | None]:
        """Return the name of an addition and the application that it replaces.

        The latter is "" if it replaces none, and None if it is served already, under the returned name. Raises Conflict,
        LookupError (there is no such model to replace).
        """
        model = application.served_as
        known = serving(served, model)
        if known is None:
            replaced = replaces(model, None, replace)
        else:
            old = known.application
            same = old == dataclasses.replace(
                application, name=old.name, model=old.model, created=old.created, on_demand=old.on_demand
            )
            found = Incumbent(old.name, old.checkpoint, same, old.name in self, old.name in self.replaces.values())
            replaced = replaces(model, found, replace)
            if replaced is None:
                return old.name, None
        return self.new_name(model, served), replaced

    def check_settled(self, model: str, name: str) -> None:
        """Raise Conflict while another version is being added in place of this application."""
        check_settled(model, name in self.replaces.values())

    def name(self, model: str) -> int:
        """Count one more application of a model; return the model's place among all, even if it was removed meanwhile."""
        self._names[model] = self._names.get(model, 0) + 1
        return self._places.setdefault(model, len(self._places))

    def begin(self, name: str, replaces: str) -> None:
        self.replaces[name] = replaces

    def end(self, name: str) -> str:
        """End an addition; return the application that it replaces, or ""."""
        self._deaths.pop(name, None)
        return self.replaces.pop(name, "")

    def died(self, holder: str) -> None:
        """Note that a worker died while it loaded this application."""
        if holder in self.replaces:
            self._deaths[holder] = self._deaths.get(holder, 0) + 1

    def verdict(self, served: Served, workers: Mapping[str, WorkerRecord]) -> str | None:
        """Return "" if an addition is ready, the reason if it has failed, or None if undecided (``application_life.py``).

        An application on demand is ready without being loaded.
        """
        if served.parked:
            return ""
        up = [p for p in served.planned if all(workers[hop.worker].alive for hop in p.route.hops)]
        now = [p for p in up if not p.late] or up
        return verdict(self._deaths.get(served.application.name, 0), [_progress(planned) for planned in now])

    def check(self, hidden: Collection[str]) -> None:
        """Raise AssertionError when an invariant is broken."""
        assert set(hidden) == self.replaces.keys() >= self._deaths.keys()


def _progress(route: PlannedRoute) -> RouteProgress:
    settled = not any(hop.residency.room_stale or hop.residency.asking for hop in route.hops)
    return RouteProgress(not route.open, settled, [(hop.residency.room or 0, hop.page_bytes) for hop in route.hops])
