"""Holdings: the applications, what of them belongs on each worker, what is there, and who claims it.

The parties read it. Only ``reconcile.py`` and ``worker_news.py`` change it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from ..cluster.worker_size import SizeRules
from ..model.chain import Block
from ..model.tiers import folder_and_layers
from ..requests.dispatch import workers_of
from ..requests.load_failure import blocked, reasons, without_folders
from .claims import Claimant, ClaimKind, Claims, ComponentClaim
from .placement import Placement
from .residency import PlannedRoute, Residency, Served
from .routes import Routes
from .worker_record import WorkerRecord


class Holdings:
    """The holdings of one cluster (see the module).

    memory, sizes, by_room: see ``placement.py``. on_demand: applications that do not fit may be loaded when requests ask.
    """

    def __init__(
        self,
        workers: Sequence[str],
        memory: Mapping[str, int],
        *,
        on_demand: bool = True,
        sizes: SizeRules | None = None,
        by_room: bool = False,
    ) -> None:
        self.on_demand = on_demand
        self.claims = Claims()
        self.served: dict[str, Served] = {}  # every known application
        self.blocks: dict[str, tuple[Block, ...]] = {}  # of deployed applications
        self.plan: dict[str, PlannedRoute] = {}  # every planned route, by id
        self.table = Routes()
        self.workers = {name: WorkerRecord(name, rank) for rank, name in enumerate(workers)}
        self.residency = {name: Residency(self.served, self.table.unsettled) for name in workers}
        self.placement = Placement(self.served, self.residency, self.workers, self.plan, memory, self.claims, sizes)
        self.placement.by_room = by_room
        self.final: set[tuple[str, str]] = set()  # (worker, application) where loading it again is in vain
        self.changed: dict[str, None] = {}  # workers concerned by the event in hand, except for a heartbeat's queue figures
        self.alive = 0  # number of live workers
        self.planned = 0  # number of published routes of deployed applications
        self.ever_ready = False  # some application has had a route in force
        self.never_ready: dict[str, None] = {}  # deployed applications that never had one

    def current(self, worker: str, incarnation: int) -> bool:
        """Return whether a worker lives in this incarnation."""
        record = self.workers.get(worker)
        return record is not None and record.alive and record.incarnation == incarnation

    # claims ----------------------------------------------------------------------------------------------------------

    @property
    def pipelines(self) -> list[PlannedRoute]:
        """The routes that serve instead of replicas, since parameters are dropped."""
        return [self.plan[id] for id in self.claims.of(ClaimKind.PLANNED, Claimant.DROPS)]

    def dropped_on(self, worker: str) -> set[str]:
        """Return the applications of which parameters are dropped on a worker, or come back."""
        return {one.route.application for one in self.pipelines if one.is_on(worker)}

    @property
    def urgent(self) -> str:
        """The application that loads before others report their room, or ""."""
        return next(iter(self.claims.of(ClaimKind.URGENT, Claimant.DEMAND)), "")

    @property
    def draining(self) -> Collection[str]:
        """The workers that take nothing new."""
        return self.claims.of(ClaimKind.DRAINED, Claimant.DRAINS)

    def copies(self, which: Callable[[PlannedRoute], bool]) -> tuple[str, ...]:
        """Return the ids of routes through blocks deployed for a burst."""
        return tuple(id for id in self.claims.of(ClaimKind.PLANNED, Claimant.COPIES) if which(self.plan[id]))

    def is_replica(self, one: PlannedRoute) -> bool:
        """Return whether a route is a whole chain on one worker that was not deployed for a burst."""
        return len(one.hops) == 1 and Claimant.COPIES not in self.claims.on(ClaimKind.PLANNED, one.route.id)

    def pausing(self, route: str) -> tuple[Claimant, ...]:
        """Return the parties that want a planned route paused."""
        found = dict.fromkeys(self.claims.on(ClaimKind.PAUSED, route))
        for hop in self.plan[route].route.hops:
            found |= dict.fromkeys(self.claims.on(ClaimKind.DRAINED, hop.worker))
        return tuple(found)

    def restores(self, worker: str, application: str) -> bool:
        """Return whether a load brings dropped parameters back, or was deferred for them: nothing gives way for it."""
        late = application in self.residency[worker].late and application != self.urgent
        return late or application in self.dropped_on(worker)

    def leftovers(self, worker: str, application: str, but: Collection[str] = ()) -> set[int]:
        """Return the depths that a worker holds and no route needs, ``but`` for these routes."""
        residency = self.residency[worker]
        hops = (hop for hop in residency.hops.get(application, ()) if not hop.route.suspended)
        needed = {depth for hop in hops if hop.route.route.id not in but for depth in range(hop.first, hop.last)}
        return residency.resident.get(application, set()) - needed

    def claims_on(self, worker: str) -> list[ComponentClaim]:
        """Return the claims on a worker's memory, in order of applications and routes."""
        found = []
        for name, hops in self.residency[worker].hops.items():
            for hop in (hop for hop in hops if hop.route.wanted):
                by, why = self._claimed(hop.route)
                id = hop.route.route.id
                found.append(ComponentClaim(name, hop.first, hop.last, id, by, why, not hop.missing, self.pausing(id)))
        return found

    def _claimed(self, one: PlannedRoute) -> tuple[Claimant, str]:
        """Return who wants a route's components, and why: the second half of a sentence."""
        planned = self.claims.on(ClaimKind.PLANNED, one.route.id)
        for by in (Claimant.DROPS, Claimant.COPIES):
            if by in planned:
                return by, planned[by]
        if one.late:
            return Claimant.SERVING, "it came while parameters were dropped there, and loads when they are back"
        wanted = self.claims.on(ClaimKind.WANTED, one.route.application)
        return next((by, wanted[by]) for by in Claimant if by in wanted)

    # failures to load ------------------------------------------------------------------------------------------------

    def blocked(self, name: str) -> tuple[str, bool] | None:
        """Return why an application can load nowhere, and whether that is final; None if it can.

        It is final if retrying cannot help: it fits on no worker, or nothing would retry.
        """
        served = self.served[name]
        refusals = self.refusals(name)
        if not served.planned:
            return None  # every worker of its routes has left; it is placed again when there is room
        if not served.wanted or not served.shown or served.in_force or not blocked(self._workers(served), refusals):
            return None  # a pipeline may still serve it where replicas cannot be loaded
        sources = (served.application.checkpoint, served.application.base)
        message = without_folders(reasons(refusals), [folder_and_layers(source)[0] for source in sources])
        final = blocked(self._workers(served), {worker for worker in refusals if (worker, name) in self.final})
        return message, final or not served.on_demand

    def hopeful(self, worker: str) -> list[Served]:
        """Return the applications that could load nowhere, and can again since this worker's failures are forgotten."""
        those = [self.served[name] for name in self.residency[worker].hops]
        return [
            one
            for one in those
            if one.failure is not None
            and one.wanted
            and not blocked(self._workers(one), self.refusals(one.application.name))
        ]

    def refusals(self, name: str) -> dict[str, str]:
        """Return why an application could not be loaded, by worker."""
        return {worker: one.refused[name] for worker, one in self.residency.items() if name in one.refused}

    @staticmethod
    def _workers(served: Served) -> list[list[str]]:
        """Return the workers of each of its routes."""
        return [list(workers_of(planned.route)) for planned in served.planned]

    def check(self) -> None:
        """Raise AssertionError when an invariant is broken. Reads everything."""
        for name, worker in self.workers.items():
            assert bool(worker.incarnation) == worker.alive, name
            assert worker.incarnation in (0, worker.last), name
            self.residency[name].check(worker.well)
        assert self.workers.keys() == self.residency.keys()
        assert self.alive == sum(worker.alive for worker in self.workers.values())
        assert list(self.blocks) == [name for name, served in self.served.items() if served.deployed]
        resident = [name for name in self.blocks if self.served[name].shown and not self.served[name].parked]
        assert self.planned == sum(len(self.served[name].planned) for name in resident)
        whole = [self.served[name] for name in resident if not self.served[name].application.variant_of]
        hopeful = {one.application.name for one in whole if not (one.ever_ready or one.on_demand)}
        assert set(self.never_ready) == hopeful
        assert self.ever_ready or not any(served.ever_ready for served in self.served.values())
        self.table.check(self.served.values())
        self._check_claims()

    def _check_claims(self) -> None:
        """Check that what is there is what is claimed."""
        self.claims.check()
        claims, plan = self.claims, self.plan
        assert plan.keys() == {one.route.id for served in self.served.values() for one in served.planned}
        assert claims.subjects(ClaimKind.PLANNED) == plan.keys(), "planned routes are not the claimed ones"
        assert claims.subjects(ClaimKind.SUSPENDED) == {id for id, one in plan.items() if one.suspended}
        assert claims.subjects(ClaimKind.WANTED) == {name for name, served in self.served.items() if served.wanted}
        assert claims.subjects(ClaimKind.PAUSED) <= plan.keys(), "a pause outlives its route"
        assert claims.subjects(ClaimKind.DRAINED) | claims.subjects(ClaimKind.UNVARIED) <= self.workers.keys()
        assert claims.subjects(ClaimKind.URGENT) <= self.served.keys()
        assert self.table.paused == {id for id in plan if self.pausing(id)}
        for worker, residency in self.residency.items():
            for name in residency.resident:
                spare = not self.restores(worker, name) and self.leftovers(worker, name)
                assert not spare, f"worker {worker} holds {name} {spare} without a claim"


def workers_over(routes: Iterable[PlannedRoute]) -> list[str]:
    """Return the workers of routes, each once, in order."""
    return list(dict.fromkeys(hop.worker for one in routes for hop in one.route.hops))
