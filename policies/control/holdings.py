"""Holdings: the applications, what of them belongs on each worker, and what is there; and every change of that.

Owns the records of applications, workers and routes, failures to load, and the effects of the event in hand. The parties
(models on demand, parameter drops, scaling) read it and change it by its methods, which know none of them: ``state.py``
calls the parties in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ..cluster.worker_size import SizeRules
from ..model.chain import Block
from ..model.tiers import folder_and_layers
from ..requests.dispatch import workers_of
from ..requests.load_failure import LoadFailure, blocked, reasons, without_folders
from .dropped_group import DroppedGroup
from .events import Effect, LoadFailed, Publish, Unload
from .placement import Placement
from .residency import PlannedRoute, Residency, Served
from .routes import Routes
from .worker_record import WorkerRecord


class Holdings:
    """The holdings of one cluster (see the module).

    memory, block_idle, sizes: see ``placement.py``. on_demand: applications that do not fit may be loaded when requests
    ask.
    """

    def __init__(
        self,
        workers: Sequence[str],
        memory: Mapping[str, int],
        block_idle: float = 0.0,
        *,
        on_demand: bool = True,
        sizes: SizeRules | None = None,
    ) -> None:
        self.on_demand = on_demand
        self.served: dict[str, Served] = {}  # every known application
        self.blocks: dict[str, tuple[Block, ...]] = {}  # of deployed applications
        self.table = Routes()
        self.workers = {name: WorkerRecord(name) for name in workers}
        self.residency = {name: Residency(self.served, self.table.touched) for name in workers}
        self.placement = Placement(self.served, self.residency, self.workers, memory, block_idle, sizes)
        self.groups: dict[str, DroppedGroup] = {}  # workers that serve as pipelines, since they dropped parameters
        self.final: set[tuple[str, str]] = set()  # (worker, application) where loading it again is in vain
        self.touched: dict[str, None] = {}  # workers concerned by the last event, except for a heartbeat's queue figures
        self.alive = 0  # number of live workers
        self.planned = 0  # number of published routes of deployed applications
        self.ever_ready = False  # some application has had a route in force
        self.never_ready: dict[str, None] = {}  # deployed applications that never had one
        self.after: list[Effect] = []  # effects after the publication that ends the event
        self._effects: list[Effect] = []
        self._failures = 0  # number of the last failure of an application to load anywhere

    # views -----------------------------------------------------------------------------------------------------------

    def current(self, worker: str, incarnation: int) -> bool:
        """Return whether a worker lives in this incarnation."""
        record = self.workers.get(worker)
        return record is not None and record.alive and record.incarnation == incarnation

    def group_of(self, worker: str) -> DroppedGroup | None:
        """Return the group in which a worker serves as a part of a pipeline, or None."""
        return next((group for group in self.groups.values() if worker in group.workers), None)

    # effects ---------------------------------------------------------------------------------------------------------

    def perform(self, effect: Effect) -> None:
        """Add an effect before the publication that ends the event."""
        self._effects.append(effect)

    def take_effects(self) -> list[Effect]:
        """Return the effects of the event, in order."""
        effects = [*self._effects, *self.after]
        self._effects = []
        self.after = []
        return effects

    def publish(self) -> None:
        """Bring routes into force and out of it; publish what changed."""
        first = self.table.settle()
        for name in self.table.applications:  # gained a route, or lost one
            self.never_ready.pop(name, None)
            self.ever_ready = True
        if first is not None:
            self.perform(Publish(self.table.version, first))

    # applications ----------------------------------------------------------------------------------------------------

    def catalog(self) -> None:
        """Update all that depends on the set of deployed applications.

        All known applications are cut into blocks: undeploying one moves no border, so the KV of the others stays.
        """
        deployed = {name: served for name, served in self.served.items() if served.deployed}
        self.blocks = {name: served.blocks for name, served in deployed.items()}
        shown = {name: served for name, served in deployed.items() if served.shown and not served.parked}
        self.planned = sum(len(served.planned) for served in shown.values())
        self.never_ready = {name: None for name, one in shown.items() if not (one.ever_ready or one.on_demand)}
        self.table.list_chains(self.served.values())

    def offer(self, name: str, *, anew: bool = True) -> None:
        """Offer an application to the workers. ``anew``: also to workers on which it failed for good."""
        self.served[name].deployed, self.served[name].failure = True, None
        if anew:
            self.may_load(name)
        for worker, residency in self.residency.items():
            if (worker, name) not in self.final:
                residency.want(name)
        self.touched.update(dict.fromkeys(self.workers))

    def let_come(self, workers: Iterable[str]) -> None:
        """Let workers that may be replicas again load what arrived meanwhile."""
        for worker in (one for one in workers if one in self.workers and self.group_of(one) is None):
            residency = self.residency[worker]
            for name in sorted(residency.late):
                residency.want(name)
                self.touched[worker] = None

    def vacate(self, served: Served, *, forget: bool = False) -> None:
        """Take an application's components out of the workers. ``forget``: for good."""
        name = served.application.name
        self.table.touch(served.planned)
        self.catalog()
        self.publish()  # before the components go
        for worker, residency in self.residency.items():
            self.unload(worker, served, residency.forget(name) if forget else residency.withdraw(name))
        self.touched.update(dict.fromkeys(self.workers))

    # failures to load ------------------------------------------------------------------------------------------------

    def failed(self, event: LoadFailed) -> None:
        """Record that a worker cannot load an application that is served."""
        failure = event.worker, event.load.holder
        self.residency[event.worker].refuse(event.load.holder, event.message)
        (self.final.add if event.final else self.final.discard)(failure)

    def note_failure(self, name: str) -> bool:
        """Record that an application could not be loaded; publish it if it can now load nowhere.

        The failure is final if retrying cannot help: it fits on no worker, or nothing would retry. Return whether the
        application then waits, unloaded, until it is asked for again.
        """
        served = self.served[name]
        refusals = self._refusals(served)
        if not served.here or not served.shown or served.in_force or not blocked(_workers(served), refusals):
            return False  # a pipeline may still serve it where replicas cannot be loaded
        self._failures += 1
        sources = (served.application.checkpoint, served.application.base)
        message = without_folders(reasons(refusals), [folder_and_layers(source)[0] for source in sources])
        final = blocked(_workers(served), {worker for worker in refusals if (worker, name) in self.final})
        served.failure = LoadFailure(name, self._failures, message, final or not served.on_demand)
        if not served.on_demand:
            self.catalog()
        return served.on_demand

    def may_load(self, name: str) -> None:
        """Forget on which workers an application failed for good: it is offered anew, or gone."""
        self.final = {one for one in self.final if one[1] != name}

    def clear_failures(self, worker: str) -> None:
        """Forget the failures of a worker that ended or starts anew: whatever belongs there is loaded again."""
        self.final = {one for one in self.final if one[0] != worker}
        those = [self.served[name] for name in self.residency[worker].hops]
        again = [s for s in those if s.failure is not None and s.here and not blocked(_workers(s), self._refusals(s))]
        for served in again:
            served.failure = None
        if again:
            self.catalog()

    def _refusals(self, served: Served) -> dict[str, str]:
        """Return why an application could not be loaded, by worker."""
        name = served.application.name
        return {worker: one.refused[name] for worker, one in self.residency.items() if name in one.refused}

    # routes ----------------------------------------------------------------------------------------------------------

    def end_extras(self, which: Callable[[PlannedRoute], bool]) -> None:
        """End routes through blocks deployed for a burst."""
        self.end_routes([extra for extra in self.placement.extras.values() if which(extra)])

    def end_routes(self, routes: Sequence[PlannedRoute]) -> None:
        """End routes, and unload what was loaded for them alone."""
        if routes:
            self.placement.end(routes)
            self.table.end(routes)
            self.catalog()
            self.publish()  # before the components go
        for ended in routes:
            for worker in workers_of(ended.route):
                self.unload(worker, ended.served, self.residency[worker].release(ended.route.application))

    def unload(self, worker: str, served: Served, depths: Iterable[int]) -> None:
        """Have a worker unload components of an application."""
        if gone := [served.application.components[d] for d in sorted(depths)]:
            ids = tuple(id for c in gone for id in (c.shared, c.delta) if id)
            self.perform(Unload(worker, self.workers[worker].incarnation, served.application.name, ids))
            self.touched[worker] = None

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
        hopeful = {name for name in resident if not (self.served[name].ever_ready or self.served[name].on_demand)}
        assert set(self.never_ready) == hopeful
        assert self.ever_ready or not any(served.ever_ready for served in self.served.values())
        self.table.check(self.served.values())


def _workers(served: Served) -> list[list[str]]:
    """Return the workers of each of its routes."""
    return [[hop.worker for hop in planned.route.hops] for planned in served.planned if not planned.ended]
