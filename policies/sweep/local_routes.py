"""The routes through one worker: its part of each, with the numbers by which plans name runs and lists of deltas."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from ..adaptive.guessing import guessing_routes
from ..model.chain import PageLayout
from ..model.local_paths import LocalPaths
from ..model.runs import Border, LocalRoute, Run, Span
from ..model.tier_work import family_tiers
from ..plain import Plain, from_plain, to_plain
from ..requests.routes_changed import RoutesChanged
from .route_shapes import RouteShape, route_shapes
from .segments import Segment, family_segments

Deltas = tuple[tuple[int, bytes], ...]  # (depth, delta id) of a route's variants
K = TypeVar("K")


class LocalRoutes:
    """The planned routes of one worker, and the ones in force among them.

    Runs and lists of deltas keep their numbers while planned routes have them. A number is never reused, since open plans
    name it.
    """

    def __init__(self, worker: str, numerics: str, hidden_pages: str = "off", *, tier_fairness: bool = True) -> None:
        self._worker = worker
        self._numerics = numerics
        self._hidden_pages = hidden_pages
        self._tier_fairness = tier_fairness  # False: routes have no tier in the accounts
        self._paths = LocalPaths(worker, numerics, hidden_pages)
        self._version = 0
        self.keeps_hidden = False  # some planned route keeps the hidden states at its exit
        self._planned: dict[str, LocalRoute] = {}  # by route id
        self._in_force: dict[str, int] = {}  # route id -> version
        self._runs: dict[Run, int] = {}
        self._numbers: dict[str, list[int]] = {}  # numbers of the runs of each planned route
        self._deltas: dict[Deltas, int] = {}  # 0: no deltas
        self._following = [0, 1]  # the next numbers of a run and of a list of deltas
        self._tiers: dict[str, int] = {}  # route id -> place of its tier
        self._shapes: list[RouteShape] | None = None  # shapes of the routes in force; None: not computed yet
        self.borders: set[Border] = set()  # borders of spans, including those of pages: spans are split, never joined
        self._served: dict[str, str] = {}  # application -> model id of planned models
        self._exits: dict[tuple[str, str], Run | None] = {}  # (route id, model) -> as ``exit`` returned it
        self._whole: dict[str, LocalRoute | None] = {}  # model -> as ``whole`` returned it
        self.ended: set[str] = set()  # ids of former models that may have left data: see ``Parts.forget``

    @property
    def version(self) -> int:
        """The version of the last publication taken."""
        return self._version

    def change_numerics(self, numerics: str) -> None:
        """Seed the lineages of routes that change from now on with other numerics. The other routes keep their pages."""
        self._numerics = numerics
        self._paths.change_numerics(numerics)

    def begin(self) -> None:
        """Take the next publication whatever its version is: a life of the worker begins."""
        self._version = 0

    def change(self, event: RoutesChanged, kept: set[Border]) -> bool:
        """Adopt a publication; return False if it is older than the known one. ``kept``: borders of pages and sequences."""
        if event.version <= self._version:
            return False
        self._version = event.version
        self._planned = self._paths.cut(event.chains, event.planned, kept)
        self._in_force = {route.id: route.version for route in event.routes if route.id in self._planned}
        self._planned |= guessing_routes(event.chains, {name: self._planned[name] for name in self._in_force})
        every = self._planned.values()
        self._deltas = self._numbered(self._deltas, 1, (local.deltas for local in every if local.deltas))
        self._runs = self._numbered(self._runs, 0, (run for local in every for run in local.every_run))
        self._number_routes()
        self.keeps_hidden = any(local.exit is not None for local in every)
        tiers = family_tiers(event.chains) if self._tier_fairness else {}
        for name, local in self._planned.items():
            if local.deltas or local.route.application in tiers:
                delta = self._deltas[local.deltas] if local.deltas else 0
                self._planned[name] = replace(local, delta=delta, tier=tiers.get(local.route.application))
        self._shapes = None
        self.borders = kept | {(span.layer, span.lineages[0]) for local in every for span in local.spans}
        models = {chain.application: chain.served_as for chain in event.chains}
        self.ended = (self.ended | {*self._served.values()}) - {*models.values()}
        self._served = models
        self._exits = {}
        self._whole = {}
        return True

    def _numbered(self, known: dict[K, int], kind: int, wanted: Iterable[K]) -> dict[K, int]:
        """Return each of ``wanted`` with its known number, or a new one."""
        found: dict[K, int] = {}
        for one in dict.fromkeys(wanted):
            number = known.get(one, -1)
            if number < 0:
                number = self._following[kind]
                self._following[kind] += 1
            found[one] = number
        return found

    def home(self, route: str) -> LocalRoute | None:
        """Return a route in force that begins here, or None."""
        local = self.passing(route)
        return local if local is not None and not local.hop else None

    def guest(self, route: str) -> LocalRoute | None:
        """Return a route in force that begins elsewhere, or None."""
        local = self.passing(route)
        return local if local is not None and local.hop else None

    def passing(self, route: str) -> LocalRoute | None:
        """Return a route in force through this worker, or None."""
        return self._planned[route] if route in self._in_force else None

    def exit(self, local: LocalRoute, model: str) -> Run | None:
        """Return the head of a lower tier, by model id, if rows of ``local`` pass all that is below it; else None.

        Both routes are in force and run here from end to end.
        """
        key = local.route.id, model
        if key not in self._exits:
            self._exits[key] = self._find_exit(local, model)
        return self._exits[key]

    def _find_exit(self, local: LocalRoute, model: str) -> Run | None:
        heads = [self._exit(local, other, model) for other in self.all_in_force()]
        return next((head for head in heads if head is not None), None)

    def _exit(self, local: LocalRoute, other: LocalRoute, model: str) -> Run | None:
        body = other.runs[:-1]
        if self._served.get(other.route.application) != model or other.deltas or not body or not other.runs[-1].head:
            return None
        here = local.hop == other.hop == 0 and local.next_worker is None and other.next_worker is None
        below = body == local.runs[: len(body)] and len(body) < len(local.runs) - 1
        return other.runs[-1] if here and below else None

    def whole(self, model: str) -> LocalRoute | None:
        """Return a route in force that runs a model, by its id or by a version's name, here from end to end, or None."""
        if model not in self._whole:
            self._whole[model] = self._find_whole(model)
        return self._whole[model]

    def _find_whole(self, model: str) -> LocalRoute | None:
        names = {name for name, id in self._served.items() if model in (name, id)}
        served = [one for one in self.all_in_force() if one.route.application in names]
        return next((one for one in served if not one.hop and one.next_worker is None and one.runs[-1].head), None)

    def all_in_force(self) -> list[LocalRoute]:
        return [self._planned[name] for name in self._in_force]

    def shapes(self) -> list[RouteShape]:
        """Return the shapes of all routes in force. Do not change the list."""
        if self._shapes is None:
            self._shapes = route_shapes(self.all_in_force())
        return self._shapes

    @property
    def single(self) -> bool:
        """True if no more than one route can pass here."""
        return len(self._planned) < 2

    def planned(self) -> Sequence[LocalRoute]:
        """Return the routes in force and all that may come into force."""
        return list(self._planned.values())

    def known(self, route: str) -> LocalRoute | None:
        """Return a planned route, in force or not, or None."""
        return self._planned.get(route)

    def spans(self, applications: Container[str]) -> list[Span]:
        """Return the spans of the planned routes of these applications."""
        return [span for local in self._planned.values() if local.route.application in applications for span in local.spans]

    def segments(self) -> dict[Run, Segment]:
        """Return the segments of the planned families that lie whole on this worker, by run."""
        return family_segments(self._planned.values(), self._served)

    def number(self, run: Run) -> int:
        """Return the number by which plans name a run."""
        return self._runs[run]

    def numbers(self, route: str) -> list[int]:
        """Return the numbers of all runs of a planned route. Do not change the list."""
        return self._numbers[route]

    def _number_routes(self) -> None:
        self._numbers = {name: [self._runs[run] for run in local.runs] for name, local in self._planned.items()}
        self._tiers = self._places()

    def tier(self, route: str) -> int:
        """Return how many tiers of its family leave below a planned route.

        0: none does, the model has no tiers, or the route crosses workers.
        """
        return self._tiers.get(route, 0)

    @property
    def tiers(self) -> int:
        """The number of tiers of the family with most of them, at least 1."""
        return 1 + max(self._tiers.values(), default=0)

    def _places(self) -> dict[str, int]:
        """Return the place of each tier above the lowest: the number of shorter bodies with which its own begins."""
        bodies = {
            name: tuple(self._numbers[name][:-1])
            for name, local in self._planned.items()
            if not local.hop and local.next_worker is None and local.runs and local.runs[-1].head
        }
        every = {*bodies.values()}
        places = {body: sum([body[:n] in every for n in range(1, len(body))]) for body in every}  # variants share a body
        return {name: places[body] for name, body in bodies.items() if places[body]}

    @property
    def plain(self) -> bool:
        """True if no planned route has a delta."""
        return not self._deltas

    @property
    def runs(self) -> dict[int, Run]:
        """The runs of planned routes, by number."""
        return {number: run for run, number in self._runs.items()}

    def fork(self) -> LocalRoutes:
        copy = LocalRoutes(self._worker, self._numerics, self._hidden_pages, tier_fairness=self._tier_fairness)
        copy.keeps_hidden = self.keeps_hidden
        copy._version = self._version
        copy._planned = self._planned.copy()
        copy._in_force = self._in_force.copy()
        copy._tiers = self._tiers  # replaced as well
        copy._numbers = self._numbers
        copy._shapes = self._shapes
        copy._paths = self._paths.fork()
        copy._runs = self._runs.copy()
        copy._deltas = self._deltas.copy()
        copy.borders = self.borders.copy()
        copy._following, copy.ended = self._following.copy(), self.ended.copy()
        # a publication replaces these, so they can be shared
        copy._served = self._served
        copy._exits = self._exits
        copy._whole = self._whole
        return copy

    def snapshot(self) -> dict[str, Plain]:
        return {
            "worker": self._worker,
            "numerics": self._numerics,
            "hidden_pages": self._hidden_pages,
            "tier_fairness": self._tier_fairness,
            "version": self._version,
            "planned": to_plain(list(self._planned.values())),
            "in_force": self._in_force.copy(),
            "runs": to_plain(list(self._runs.items())),
            "borders": to_plain(self.borders),
            "deltas": to_plain(list(self._deltas.items())),
            "following": self._following.copy(),
            "served": self._served.copy(),
            "ended": to_plain(self.ended),
        }

    @classmethod
    def restore(cls, data: dict[str, Plain]) -> LocalRoutes:
        routes = cls(data["worker"], data["numerics"], data["hidden_pages"], tier_fairness=data["tier_fairness"])
        routes._version, routes._in_force = data["version"], dict(data["in_force"])
        routes._planned = {local.route.id: local for local in from_plain(list[LocalRoute], data["planned"])}
        routes._runs = dict(from_plain(list[tuple[Run, int]], data["runs"]))
        routes.borders = set(from_plain(list[Border], data["borders"]))
        routes._number_routes()
        routes.keeps_hidden = any(local.exit is not None for local in routes._planned.values())
        routes._deltas = dict(from_plain(list[tuple[Deltas, int]], data["deltas"]))
        routes._following = list(data["following"])
        routes._served, routes.ended = dict(data["served"]), set(data["ended"])
        return routes

    def check(self) -> None:
        assert self._in_force.keys() <= self._planned.keys(), "a route is in force and not known"
        every = self._planned.values()
        assert self._shapes in (None, route_shapes(self.all_in_force())), "shapes are not those of the routes"
        assert self.keeps_hidden == any(local.exit is not None for local in every), "a route's exit is overlooked"
        for (route, model), head in self._exits.items():
            assert route in self._planned, "an exit of no route is kept"
            assert head == self._find_exit(self._planned[route], model), "a kept exit differs from the route's"
        for model, whole in self._whole.items():
            assert whole == self._find_whole(model), "a kept route differs from the model's"
        assert self._runs.keys() == {run for local in every for run in local.every_run}, (
            "a run has no number, or one too long"
        )
        found = {name: [self._runs[run] for run in local.runs] for name, local in self._planned.items()}
        assert self._numbers == found, "a run of a route has a wrong number"
        assert self._tiers == self._places(), "a tier is at a wrong place in its family"
        assert self._deltas.keys() == {local.deltas for local in every if local.deltas}, "deltas of no route are kept"
        for numbers, following in zip(([*self._runs.values()], [*self._deltas.values()]), self._following, strict=True):
            assert len({*numbers}) == len(numbers), "a number is given twice"
            assert all(number < following for number in numbers), "a number will be given again"
        borders = {(span.layer, span.lineages[0]) for local in self._planned.values() for span in local.spans}
        assert borders <= self.borders, "a border of spans is not kept"
        assert all(self._deltas.get(local.deltas, 0) == local.delta for local in every), "a wrong number of deltas"


def layouts(event: RoutesChanged) -> list[PageLayout]:
    """Return the layouts of KV and hidden states of all chains, each once, in order of first use."""
    # by object first: few differ, and each key is computed anew
    objects = {id(c.kv): c.kv for chain in event.chains for block in chain.blocks for c in block.components}
    found: dict[str, PageLayout] = {layout.key: layout for layout in objects.values() if layout is not None}
    hidden = [layout for chain in event.chains if chain.family and (layout := chain.hidden) is not None]
    found.update((layout.key, layout) for layout in hidden)
    return list(found.values())


def merged(known: RoutesChanged, update: RoutesChanged) -> RoutesChanged:
    """Return a worker's part as a whole after ``update``.

    It is ``known`` itself if the update is older, or a difference to a version that this worker does not have. Routes that
    ended are planned again if the same update says so.
    """
    if update.version <= known.version or update.since > known.version:
        return known
    if not update.since:
        return update
    ended = {*update.ended}
    planned = {route.id: route for route in known.planned if route.id not in ended}
    planned.update((route.id, route) for route in update.planned)
    in_force = {route.id: route for route in known.routes if route.id not in ended}
    in_force.update((route.id, route) for route in update.routes)
    chains = {chain.application: chain for chain in [*known.chains, *update.chains]}
    names = dict.fromkeys(route.application for route in planned.values())
    return RoutesChanged(update.version, [chains[name] for name in names], [*in_force.values()], [*planned.values()])
