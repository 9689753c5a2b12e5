"""Applications that are added while others are served: which are under way, when they are whole, why they cannot be.

Owns their names, what each replaces, and the deaths of workers that were loading them. Changes nothing of what is served.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

from blockwright.actors.controller.messages import Application
from blockwright.actors.controller.residency import PlannedRoute, Residency, Served, page_of, serving
from blockwright.actors.controller.worker_record import WorkerRecord
from blockwright.policies.model.partition import place

DEADLY = 2  # workers that died while they loaded it: it is given up
REMEDY = "remove another application, or give workers more memory (--set memory=...)"


class Conflict(Exception):
    """With what is served, or is being added; one sentence."""


class Additions:
    """See the module."""

    def __init__(self) -> None:
        self.replaces: dict[str, str] = {}  # application that is being added -> the one that it replaces, or ""
        self._deaths: dict[str, int] = {}
        self._names: dict[str, int] = {}  # model -> applications that have been added as it

    def __contains__(self, name: str) -> bool:
        return name in self.replaces

    def new_name(self, model: str, known: Collection[str]) -> str:
        """None before has had it, so that nothing on a worker or in a message is taken for another's."""
        count = self._names.get(model, 0)
        while (name := f"{model}~{count + 1}" if count else model) in known:
            count += 1
        return name

    def admit(self, application: Application, replace: bool, served: Mapping[str, Served]) -> tuple[str, str | None]:
        """Under which name it is added, and the application that it replaces, or ""; None: it is served already, as that.

        Raises Conflict, LookupError (there is no such model to replace).
        """
        model = application.served_as
        known = serving(served, model)
        if known is None:
            if replace:
                raise LookupError(f"model {model!r} is not served, so it cannot be replaced")
            return self.new_name(model, served), ""
        old = known.application
        if dataclasses.replace(application, name=old.name, model=old.model, created=old.created) == old:
            return old.name, None
        if old.name in self:
            raise Conflict(f"model {model!r} is being added from {old.checkpoint}; wait for that")
        self.check_settled(model, old.name)
        if not replace:
            raise Conflict(f"model {model!r} is served already, from {old.checkpoint}; choose another name")
        return self.new_name(model, served), old.name

    def check_settled(self, model: str, name: str) -> None:
        """Raises Conflict while another version is being added in place of this application."""
        if name in self.replaces.values():
            raise Conflict(f"model {model!r} is being replaced; wait for that")

    def name(self, model: str) -> None:
        """One more application is served as this model, or will be."""
        self._names[model] = self._names.get(model, 0) + 1

    def begin(self, name: str, replaces: str) -> None:
        self.replaces[name] = replaces

    def end(self, name: str) -> str:
        """What it replaces, or ""."""
        self._deaths.pop(name, None)
        return self.replaces.pop(name, "")

    def died(self, holder: str) -> None:
        """A worker, while it loaded this."""
        if holder in self.replaces:
            self._deaths[holder] = self._deaths.get(holder, 0) + 1

    def verdict(self, served: Served, workers: Mapping[str, WorkerRecord]) -> str | None:
        """ "": all of its routes are whole whose workers are up, and there is one. None: not yet. Else why it cannot be."""
        if (deaths := self._deaths.get(served.application.name, 0)) >= DEADLY:
            return f"{deaths} workers died while they loaded it"
        if served.parked:
            return ""
        up = [p for p in served.planned if all(workers[hop.worker].alive for hop in p.route.hops)]
        if not up or not all(map(is_known, up)):
            return None
        for hop in (hop for planned in up for hop in planned.hops):
            room = hop.residency.room or 0
            if room < hop.page_bytes:
                return f"it leaves {room} bytes for its sequences, less than one page of {hop.page_bytes} bytes; {REMEDY}"
        return ""

    def check(self, hidden: Collection[str]) -> None:
        """Raise AssertionError when an invariant is broken."""
        assert set(hidden) == self.replaces.keys() >= self._deaths.keys()


def is_known(route: PlannedRoute) -> bool:
    """It is whole, and its workers have said since what is left of their memory."""
    return not route.open and not any(hop.residency.room_stale or hop.residency.asking for hop in route.hops)


def check_fit(application: Application, residency: Mapping[str, Residency], served: Mapping[str, Served]) -> None:
    """Against what each worker has besides its parameters, where that is known. Raises ValueError."""
    chains, spans = {application.name: application.components}, {application.name: application.span}
    for hop in (hop for route in place(chains, list(residency), spans) for hop in route.hops):
        here = residency[hop.worker]
        held = set[bytes]()
        for name, depths in here.resident.items():
            for depth in depths:
                held.update(served[name].application.tensors(depth, depth + 1))
        wanted = application.tensors(hop.first, hop.last)
        need = sum(n for hash, n in wanted.items() if hash not in held) + page_of(application, hop)[1]
        if here.room is not None and need > here.room:
            raise ValueError(
                f"it needs {need} bytes on worker {hop.worker} beyond what it shares, but only {here.room} are left besides "
                f"parameters: {need - here.room} bytes are missing; {REMEDY}"
            )
