"""Placement of applications on workers: the planned routes of every application, and the blocks that follow from them.

It plans into the controller's records of applications and workers. ``policies/cluster`` decides where things go.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress

from ..adaptive.guessing import guesses_for, on_homes
from ..cluster.assignment import WorkerCapacity, page_of, routes_of_all, routes_on_new_worker, routes_where_it_fits
from ..cluster.worker_size import SizeRules, WorkerReport
from ..model.chain import Route
from ..model.partition import cut_blocks
from .claims import ClaimKind, Claims
from .events import Application
from .residency import PlannedRoute, Residency, Served
from .worker_record import WorkerRecord


class Placement:
    """The placement of one cluster (see the module).

    routes: every planned route, by id. by_room: models that do not fit everywhere are placed for the least fragmentation,
    instead of by locality. sizes: each worker reports what it has before anything is placed there; without,
    memory: worker -> bytes for parameters (as stored) and KV, if known.
    """

    def __init__(
        self,
        served: dict[str, Served],
        residency: Mapping[str, Residency],
        workers: Mapping[str, WorkerRecord],
        routes: dict[str, PlannedRoute],
        memory: Mapping[str, int],
        claims: Claims,
        sizes: SizeRules | None = None,
    ) -> None:
        self._served = served
        self._residency = residency
        self._workers = workers
        self._routes = routes
        self._memory = memory
        self._claims = claims
        self._sizes = sizes
        self.by_room = False

    def of_all(self, new: Mapping[str, Application]) -> list[Route]:
        """Return the routes of applications that are added together. Raises ValueError."""
        routes = routes_of_all(new, self._planned_rooms(new.values()), by_room=self.by_room)
        guessing = {name: one.drafts_for for name, one in new.items() if guesses_for(one.served_as, one.drafts_for)}
        return on_homes(routes, guessing) if guessing else routes

    def of_one(self, application: Application, *, on_demand: bool) -> tuple[list[Route], bool]:
        """Return the routes of a single addition, and whether others must be unloaded for it, which ``on_demand`` allows.

        Raises ValueError if it fits nowhere.
        """
        if guesses_for(application.served_as, application.drafts_for):
            return self._on_homes(application), False
        try:
            return routes_where_it_fits(application.name, application, self.rooms([application])), False
        except ValueError:
            if not on_demand:
                raise
            rooms = self.budgets()
            if all(room.free is None for room in rooms.values()):
                raise
            return routes_where_it_fits(application.name, application, rooms), True

    def _on_homes(self, guessing: Application) -> list[Route]:
        """Return the routes of a guessing chain beside the planned ones that it guesses for. Raises ValueError."""
        served = self._served.get(guessing.drafts_for)
        homes = {planned.route.home for planned in served.planned} if served is not None else set()
        if not homes:
            raise ValueError(f"{guessing.drafts_for} is on no worker, so nothing can guess for it")
        rooms = {worker: room for worker, room in self.rooms([guessing]).items() if worker in homes}
        return routes_where_it_fits(guessing.name, guessing, rooms)

    def of_one_alone(self, application: Application) -> list[Route]:
        """Return the routes of an application that is loaded on demand. If it fits nowhere, the workers refuse it then."""
        try:
            return self.of_one(application, on_demand=True)[0]
        except ValueError:
            return routes_of_all({application.name: application}, self._planned_rooms([application]))

    def has_room(self, application: Application) -> bool:
        """Return whether an application fits beside what is loaded, as far as the workers have reported."""
        try:
            return not self.of_one(application, on_demand=False)[1]
        except ValueError:
            return False

    def plan(self, routes: Sequence[Route]) -> list[PlannedRoute]:
        """Plan these routes: they belong on their workers from now on."""
        pages: dict[tuple[str, int, int], tuple[int, int]] = {}  # most routes of an application are cut alike
        planned = []
        for route in routes:
            served = self._served[route.application]
            one = PlannedRoute(route, served)
            for hop in route.hops:
                stretch = route.application, hop.first, hop.last
                if stretch not in pages:
                    pages[stretch] = page_of(served.application.components, hop)
                one.hops += (self._residency[hop.worker].plan(one, hop, pages[stretch]),)
            served.planned.append(one)
            self._routes[route.id] = one
            planned.append(one)
        self.cut()
        return planned

    def cut(self) -> None:
        """Cut the blocks anew.

        Shared components lie in equal blocks, so all cuts may change when an application comes or goes.
        """
        chains = {name: served.application.components for name, served in self._served.items()}
        hops = {name: {hop.first for p in served.planned for hop in p.hops} for name, served in self._served.items()}
        for name, cut in cut_blocks(chains, hops).items():
            self._served[name].blocks = cut

    def budgets(self) -> dict[str, WorkerCapacity]:
        """Return the room of each worker that may get more, for parameters and KV together."""
        return {worker: self._capacity(worker, self._whole(worker), ()) for worker in self._open()}

    # workers that are added or removed

    def on_new_worker(self, worker: str) -> list[Route]:
        """Return the routes that fit on a worker that has nothing. Nothing fits before it has reported."""
        if self._sizes is not None and self._report(worker) is None:
            return []
        there = {
            name: served.application
            for name, served in self._served.items()
            if served.deployed and not (served.draining or served.on_demand or served.variant or served.guesses)
        }
        return routes_on_new_worker(worker, self._bytes(worker), there)

    def of_stranded(self, without: str = "") -> list[Route]:
        """Return routes of applications that have none, or none but over the worker ``without``. What fits nowhere has none.

        A worker that left may have had a part of their only route.
        """
        routes: list[Route] = []
        for served in self._served.values():
            if not served.deployed or served.draining or served.variant or served.guesses:
                continue
            if all(one.is_on(without) for one in served.planned):
                with suppress(ValueError):
                    one = served.application
                    routes += self.of_one_alone(one) if served.on_demand else self.of_one(one, on_demand=False)[0]
        return routes

    def end(self, routes: Iterable[PlannedRoute]) -> None:
        """End these routes. Their components are still loaded."""
        for one in routes:
            del self._routes[one.route.id]
            one.ended = True
            one.served.planned.remove(one)
            for hop in one.hops:
                hop.residency.end(hop)
        self.cut()

    def _open(self) -> dict[str, Residency]:
        """Return the workers that may get more."""
        return {
            name: here
            for name, here in self._residency.items()
            if not self._claims.on(ClaimKind.CLOSED, name)
            and (self._sizes is None or self._workers[name].report is not None)
        }

    # what workers have

    def _report(self, worker: str) -> WorkerReport | None:
        """Return what a worker has; None if it has not reported, or has yet to be enlisted."""
        record = self._workers.get(worker)
        return None if record is None else record.report

    def _bytes(self, worker: str) -> int | None:
        """Return a worker's bytes for parameters, as stored, and KV; None if unknown."""
        report = self._report(worker)
        if report is None:
            return self._memory.get(worker)
        return report.memory // (self._sizes.widening if self._sizes is not None else 1)

    def _capacity(self, worker: str, free: int | None, held: Collection[bytes]) -> WorkerCapacity:
        report = self._report(worker)
        return WorkerCapacity(free, held) if report is None else WorkerCapacity(free, held, report.speed, report.device)

    def _whole(self, worker: str) -> int | None:
        """Return a worker's bytes for parameters and KV, or None if unknown."""
        here = self._residency[worker]
        known = None if here.room is None else here.room + sum(self._resident(here).values())
        there = self._bytes(worker)
        return known if there is None else there

    def rooms(self, new: Iterable[Application]) -> dict[str, WorkerCapacity]:
        """Return each worker's room as it reported it. ``new``: the applications to place.

        A worker that holds nothing has not been asked yet.
        """
        found, where = {}, self._where(new)
        for name, here in self._open().items():
            there = None if here.resident else self._bytes(name)
            free, promised = here.room if there is None else there, self._promised(here)
            free = None if free is None else free - sum(promised.values())
            resident = here.resident
            held = {t for t, at in where.items() if any(depth in resident.get(one, ()) for one, depth in at)}
            held |= promised.keys() & where.keys()
            found[name] = self._capacity(name, free, held)
        return found

    def _promised(self, here: Residency) -> dict[bytes, int]:
        """Return the tensors of suspended routes that a worker lacks: KV has their memory until they are loaded again."""
        lacking: dict[bytes, int] = {}
        for name, hops in here.hops.items():
            suspended = {depth for hop in hops if hop.route.suspended for depth in range(hop.first, hop.last)}
            for depth in suspended - here.resident.get(name, set()):
                lacking |= self._served[name].application.tensors(depth, depth + 1)
        held = self._resident(here) if lacking else {}
        return {tensor: nbytes for tensor, nbytes in lacking.items() if tensor not in held}

    def _where(self, new: Iterable[Application]) -> dict[bytes, list[tuple[str, int]]]:
        """Return, for each tensor of ``new``, the components (application, depth) of served applications that contain it."""
        found: dict[bytes, list[tuple[str, int]]] = {tensor: [] for one in new for tensor in one.tensors()}
        for name, served in self._served.items():
            for depth in range(len(served.application.components)):
                for tensor in found.keys() & served.application.tensors(depth, depth + 1).keys():
                    found[tensor].append((name, depth))
        return found

    def _resident(self, here: Residency) -> dict[bytes, int]:
        held: dict[bytes, int] = {}
        for name, depths in here.resident.items():
            for depth in depths:
                held.update(self._served[name].application.tensors(depth, depth + 1))
        return held

    def _planned_rooms(self, new: Iterable[Application]) -> dict[str, WorkerCapacity]:
        """Return each worker's room as it will be once all that belongs there is loaded."""
        wanted = {tensor for one in new for tensor in one.tensors()}
        found, alike = (
            {},
            dict[tuple[tuple[str, int, int], ...], tuple[int, set[bytes]]](),
        )  # workers with the same plan
        for name, here in self._open().items():
            memory = self._bytes(name)
            if memory is None:
                found[name] = self._capacity(name, None, ())
                continue
            stretches = tuple((one, hop.first, hop.last) for one, hops in here.hops.items() for hop in hops)
            if stretches not in alike:
                held: dict[bytes, int] = {}
                for one, first, last in stretches:
                    held.update(self._served[one].application.tensors(first, last))
                alike[stretches] = sum(held.values()), held.keys() & wanted
            used, shared = alike[stretches]
            found[name] = self._capacity(name, memory - used, shared)
        return found
