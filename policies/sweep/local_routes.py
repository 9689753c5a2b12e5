"""The routes through one worker, as it sees them, and the numbers of their runs and of their lists of deltas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from blockwright.policies.model.chain import KvLayout
from blockwright.policies.model.runs import Border, LocalRoute, Run, localize
from blockwright.policies.plain import Plain, from_plain, to_plain
from blockwright.policies.sweep.events import RoutesChanged

Deltas = tuple[tuple[int, bytes], ...]  # (depth, delta id) of a route's variants


class LocalRoutes:
    """Planned routes and those of them that are in force. Runs and lists of deltas keep their numbers for good: plans name
    them."""

    def __init__(self, worker: str, numerics: str) -> None:
        self._worker, self._numerics = worker, numerics
        self._version = 0
        self._planned: dict[str, LocalRoute] = {}  # by route id
        self._in_force: dict[str, int] = {}  # route id -> version
        self._runs: dict[Run, int] = {}
        self.borders: set[Border] = set()  # of spans, all there ever were: pages are split, never joined
        self._deltas: dict[Deltas, int] = {(): 0}

    @property
    def version(self) -> int:
        """Of the last publication that was taken."""
        return self._version

    def change(self, event: RoutesChanged) -> bool:
        """Adopt what was published. False: it is older than what is known."""
        if event.version <= self._version:
            return False
        self._version = event.version
        self._planned = localize(self._worker, event.chains, event.planned, self._numerics, self.borders)
        for name, local in self._planned.items():
            if local.deltas:
                number = self._deltas.setdefault(local.deltas, len(self._deltas))
                self._planned[name] = replace(local, delta=number)
        self._in_force = {route.id: route.version for route in event.routes if route.id in self._planned}
        for local in self._planned.values():
            self.borders.update((span.layer, span.lineages[0]) for span in local.spans)
            for run in local.runs:
                self._runs.setdefault(run, len(self._runs))
        return True

    def home(self, route: str) -> LocalRoute | None:
        """A route in force that begins here."""
        local = self.passing(route)
        return local if local is not None and not local.hop else None

    def guest(self, route: str) -> LocalRoute | None:
        """A route in force that begins elsewhere."""
        local = self.passing(route)
        return local if local is not None and local.hop else None

    def passing(self, route: str) -> LocalRoute | None:
        """A route in force through this worker."""
        return self._planned[route] if route in self._in_force else None

    def all_in_force(self) -> list[LocalRoute]:
        return [self._planned[name] for name in self._in_force]

    @property
    def single(self) -> bool:
        """Whether no more than one route can come by here."""
        return len(self._planned) < 2

    def planned(self) -> Sequence[LocalRoute]:
        """Those in force and those that may come into force."""
        return list(self._planned.values())

    def number(self, run: Run) -> int:
        """Under which plans name a run."""
        return self._runs[run]

    @property
    def plain(self) -> bool:
        """Whether no route here ever had a delta."""
        return len(self._deltas) == 1

    @property
    def runs(self) -> dict[int, Run]:
        """Every run there ever was, by number."""
        return {number: run for run, number in self._runs.items()}

    def fork(self) -> LocalRoutes:
        copy = LocalRoutes(self._worker, self._numerics)
        copy._version, copy._planned, copy._in_force = self._version, self._planned.copy(), self._in_force.copy()
        copy._runs, copy._deltas, copy.borders = self._runs.copy(), self._deltas.copy(), self.borders.copy()
        return copy

    def snapshot(self) -> dict[str, Plain]:
        return {
            "worker": self._worker,
            "numerics": self._numerics,
            "version": self._version,
            "planned": to_plain(list(self._planned.values())),
            "in_force": self._in_force.copy(),
            "runs": to_plain(list(self._runs)),
            "borders": to_plain(self.borders),
            "deltas": to_plain(list(self._deltas)),
        }

    @classmethod
    def restore(cls, data: dict[str, Plain]) -> LocalRoutes:
        routes = cls(data["worker"], data["numerics"])
        routes._version, routes._in_force = data["version"], dict(data["in_force"])
        routes._planned = {local.route.id: local for local in from_plain(list[LocalRoute], data["planned"])}
        routes._runs = {run: number for number, run in enumerate(from_plain(list[Run], data["runs"]))}
        routes.borders = set(from_plain(list[Border], data["borders"]))
        routes._deltas = {deltas: number for number, deltas in enumerate(from_plain(list[Deltas], data["deltas"]))}
        return routes

    def check(self) -> None:
        assert self._in_force.keys() <= self._planned.keys(), "a route is in force and not known"
        assert list(self._runs.values()) == list(range(len(self._runs))), "runs are numbered wrongly"
        found = {(span.layer, span.lineages[0]) for local in self._planned.values() for span in local.spans}
        assert found <= self.borders, "a border of spans is not kept"
        assert list(self._deltas.values()) == list(range(len(self._deltas))), "lists of deltas are numbered wrongly"
        assert all(self._deltas[local.deltas] == local.delta for local in self._planned.values()), "a wrong number of deltas"
        assert all(run in self._runs for local in self._planned.values() for run in local.runs), "a run has no number"


def layouts(event: RoutesChanged) -> list[KvLayout]:
    """KV layouts of all chains, each once, in order of first use."""
    found = {c.kv.key: c.kv for chain in event.chains for c in chain.components if c.kv is not None}
    return list(found.values())
