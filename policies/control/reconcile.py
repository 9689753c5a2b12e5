"""Reconciling what is held with what is claimed: the only code that changes routes and residency for a party.

The order of an event, and why: claims are taken as they come, and what is not claimed any more is let go at once, so that
the next party sees it gone. Letting go means: routes are out of force and published before their components are unloaded,
since gateways must stop sending before a worker forgets. Only then workers go on, in the order in which they came: each has
one load in progress, and between two applications it is asked for the room that it has left, so that complete routes come
into force before the next one loads. Last comes the event's publication, and after it what gateways, people and the
supervisor are asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..requests.dispatch import workers_of
from ..requests.load_failure import LoadFailure
from .claims import (
    Change,
    Claim,
    ClaimKind,
    Defer,
    Describe,
    Discharge,
    Dismiss,
    Enlist,
    Know,
    Label,
    LetCome,
    NoteFailure,
    NoteRefusal,
    PlanRoutes,
    TakeFrom,
    Trim,
    TryAgain,
    Withdrawal,
)
from .events import AskCapacity, Effect, Load, Publish, Unload
from .holdings import Holdings, workers_over
from .loads import LoadBlock
from .residency import WITHHELD, PlannedRoute, Residency, Served
from .worker_record import WorkerRecord


class Reconcile:
    """The changes of one cluster's holdings (see the module)."""

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings
        self._claims = holdings.claims
        self._before: list[Effect] = []  # effects up to the publication that ends the event
        self._after: list[Effect] = []  # effects after it
        self._unlisted = False  # applications or routes differ from what the table lists
        self._known = 0  # number of applications ever known
        self._failures = 0  # number of the last failure of an application to load anywhere
        self._enlisted = len(holdings.workers)  # number of workers ever known

    # effects ---------------------------------------------------------------------------------------------------------

    def perform(self, effect: Effect) -> None:
        """Add an effect before the publication that ends the event."""
        self._before.append(effect)

    def follow(self, effect: Effect) -> None:
        """Add an effect after the publication that ends the event."""
        self._after.append(effect)

    def take_effects(self) -> list[Effect]:
        """Return the effects of the event, in order."""
        effects = [*self._before, *self._after]
        self._before, self._after = [], []
        return effects

    # what parties say ------------------------------------------------------------------------------------------------

    def apply(self, change: Change) -> None:
        """Make a party's change true."""
        holdings = self._holdings
        match change:
            case Claim():
                self._claim(change)
            case Withdrawal():
                self._withdraw(change)
            case PlanRoutes():
                self._plan(change)
            case Know():
                self._know(change)
            case Describe(name):
                self._describe(holdings.served[name], change)
            case TryAgain(name, "", anew):
                self._offer(name, anew=anew)
            case Dismiss(name, forget):
                self._dismiss(holdings.served[name], forget=forget)
            case NoteFailure():
                self._fail(change)
            case Enlist():
                self._enlist(change)
            case Discharge(name):
                self._discharge(name)
            case _:
                self._on_worker(change)

    def _on_worker(self, change: Change) -> None:
        """Make a change of one worker's loads true."""
        holdings = self._holdings
        match change:
            case NoteRefusal(worker, name, why, owned):
                residency = self._changed(worker)
                residency.refuse(name, why)
                residency.owned = residency.owned if owned is None else dict(owned)
            case Defer(worker, name, unload):
                if unload:
                    self.unload(worker, holdings.served[name], holdings.residency[worker].withdraw(name))
                holdings.residency[worker].withhold(name, WITHHELD)
            case LetCome(workers):
                self._let_come(workers)
            case TryAgain(name, worker):
                self._changed(worker).want(name)
            case Trim(worker, name):
                self.unload(worker, holdings.served[name], holdings.residency[worker].release(name))
            case TakeFrom(worker, sources):
                holdings.residency[worker].sources = dict(sources)
            case Label(worker, labels):
                holdings.workers[worker].labels |= labels

    def _claim(self, claim: Claim) -> None:
        for subject in claim.subjects:
            self._claims.add(claim.kind, subject, claim.by, claim.why)
        match claim.kind:
            case ClaimKind.WANTED:
                for name in (name for name in claim.subjects if not self._holdings.served[name].wanted):
                    self._holdings.served[name].wanted = True
                    self._offer(name, anew=False)
            case ClaimKind.PLANNED:
                for id in claim.subjects:
                    self._holdings.plan[id].beside = False
            case ClaimKind.SUSPENDED:
                self._suspend(claim.subjects)
            case ClaimKind.PAUSED | ClaimKind.DRAINED:
                self._pause(claim.subjects)
            case ClaimKind.UNVARIED:
                self._note(claim.subjects)

    def _withdraw(self, withdrawal: Withdrawal) -> None:
        kind = withdrawal.kind
        last = [one for one in withdrawal.subjects if self._claims.end(kind, one, withdrawal.by)]
        match kind:
            case ClaimKind.PLANNED:
                self._end([self._holdings.plan[id] for id in last])
            case ClaimKind.WANTED:
                for name in last:
                    self._vacate(self._holdings.served[name])
            case ClaimKind.SUSPENDED:
                self._return(withdrawal.subjects)
            case ClaimKind.PAUSED | ClaimKind.DRAINED:
                self._pause(withdrawal.subjects)
            case ClaimKind.UNVARIED:
                self._note(name for name in withdrawal.subjects if name in self._holdings.workers)

    # routes ----------------------------------------------------------------------------------------------------------

    def _plan(self, plan: PlanRoutes) -> None:
        for one in self._holdings.placement.plan(plan.routes):
            self._claims.add(ClaimKind.PLANNED, one.route.id, plan.by, plan.why)
            one.idle, one.beside = plan.idle, plan.beside
            for hop in (hop for hop in one.hops if hop.missing):
                hop.residency.want(one.route.application)
            self._note(workers_over([one]))
            self._holdings.table.touch([one])
            self._pause((one.route.id,))
        self._unlisted = True

    def _end(self, routes: list[PlannedRoute]) -> None:
        """End routes, and unload what was loaded for them alone."""
        if routes:
            self._forget_routes(routes)
            self._holdings.placement.end(routes)
            self._unlisted = True
            self.publish()  # before the components go
        for ended in routes:
            for worker in workers_of(ended.route):
                self.unload(worker, ended.served, self._holdings.residency[worker].release(ended.route.application))

    def _forget_routes(self, routes: Iterable[PlannedRoute]) -> None:
        """Forget all claims on routes that end, pauses included."""
        for one in routes:
            self._claims.forget(one.route.id)
            self._holdings.table.touch([one])
            self._holdings.table.pause(one.route.id, False)

    def _suspend(self, ids: Iterable[str]) -> None:
        """Take routes out of force before their components go; they stay planned."""
        routes = [self._holdings.plan[id] for id in ids]
        for one in routes:
            one.suspended = True
            for hop in one.hops:
                hop.residency.spare(one.route.application)
        self._note(workers_over(routes))
        self._holdings.table.touch(routes)
        self.publish()

    def _return(self, ids: Iterable[str]) -> None:
        """Load the components of suspended routes again."""
        for one in (self._holdings.plan[id] for id in ids if id in self._holdings.plan):
            one.suspended = False
            for hop in one.hops:
                hop.residency.want(one.route.application)
            self._note(workers_over([one]))
            self._holdings.table.touch([one])

    def _pause(self, subjects: Iterable[str]) -> None:
        """Pause routes that a party wants paused, themselves or with a worker, and no others."""
        for subject in subjects:
            residency = self._holdings.residency.get(subject)
            hops = () if residency is None else [hop for hops in residency.hops.values() for hop in hops]
            for id in [hop.route.route.id for hop in hops] if residency is not None else [subject]:
                if id in self._holdings.plan:
                    self._holdings.table.pause(id, bool(self._holdings.pausing(id)))

    # applications ----------------------------------------------------------------------------------------------------

    def _know(self, new: Know) -> None:
        name = new.application.name
        self._holdings.served[name] = Served(
            new.application, self._known, new.place, on_demand=new.on_demand, shown=not new.hidden
        )
        self._known += 1
        self._unlisted = True

    def _describe(self, served: Served, facts: Describe) -> None:
        if facts.shown and not served.shown:
            self._holdings.table.touch(served.planned)
        served.shown = served.shown if facts.shown is None else facts.shown
        served.draining = served.draining if facts.draining is None else facts.draining
        served.on_demand = served.on_demand if facts.on_demand is None else facts.on_demand
        served.load_seconds = served.load_seconds if facts.load_seconds is None else facts.load_seconds
        self._unlisted = True

    def _offer(self, name: str, *, anew: bool) -> None:
        """Have workers load an application, again where there was no room."""
        self._holdings.served[name].deployed, self._holdings.served[name].failure = True, None
        if anew:
            self._may_load(name)
        for worker, residency in self._holdings.residency.items():
            if (worker, name) not in self._holdings.final:
                residency.want(name)
        self._note(self._holdings.workers)
        self._unlisted = True

    def _dismiss(self, served: Served, *, forget: bool) -> None:
        """Take an application out of service and its components out of the workers. ``forget``: for good."""
        name = served.application.name
        served.deployed = False
        self._claims.end(ClaimKind.WANTED, name)
        if forget:
            del self._holdings.served[name]
            self._claims.forget(name)
            self._forget_routes(served.planned)
            for one in served.planned:
                del self._holdings.plan[one.route.id]
            self._holdings.placement.cut()
        self._may_load(name)
        self._vacate(served, forget=forget)

    def _vacate(self, served: Served, *, forget: bool = False) -> None:
        """Take an application's components out of the workers. ``forget``: for good."""
        name = served.application.name
        served.wanted = False
        self._holdings.table.touch(served.planned)
        self._unlisted = True
        self.publish()  # before the components go
        for worker, residency in self._holdings.residency.items():
            self.unload(worker, served, residency.forget(name) if forget else residency.withdraw(name))
        self._note(self._holdings.workers)

    def _fail(self, failure: NoteFailure) -> None:
        self._failures += 1
        served = self._holdings.served[failure.application]
        served.failure = LoadFailure(failure.application, self._failures, failure.message, failure.final)
        self._unlisted = True

    def _may_load(self, name: str) -> None:
        """Forget on which workers an application failed for good: it is offered anew, or gone."""
        self._holdings.final = {one for one in self._holdings.final if one[1] != name}

    # workers ---------------------------------------------------------------------------------------------------------

    def _note(self, workers: Iterable[str]) -> None:
        self._holdings.changed.update(dict.fromkeys(workers))

    def _changed(self, worker: str) -> Residency:
        """Return what a worker holds, for a change of it."""
        self._holdings.changed[worker] = None
        return self._holdings.residency[worker]

    def _let_come(self, workers: Iterable[str]) -> None:
        for worker in (one for one in workers if one in self._holdings.workers and not self._holdings.dropped_on(one)):
            for name in sorted(self._holdings.residency[worker].late):
                self._changed(worker).want(name)

    def _enlist(self, new: Enlist) -> None:
        """Add a worker; what is planned there loads when it is up."""
        holdings, name = self._holdings, new.worker
        record = WorkerRecord(name, self._enlisted, extra=True, joined=new.joined, labels=dict(new.labels))
        holdings.workers[name] = record
        holdings.residency[name] = Residency(holdings.served, holdings.table.unsettled)
        self._enlisted += 1
        self._claims.forget(name)
        self._unlisted = True
        holdings.changed[name] = None

    def _discharge(self, name: str) -> None:
        """Forget a worker, with all routes over it and all claims on it."""
        holdings = self._holdings
        self._claims.end(ClaimKind.DRAINED, name)
        self._claims.end(ClaimKind.UNVARIED, name)
        self._pause((name,))
        holdings.alive -= holdings.workers[name].alive
        holdings.residency[name].clear()
        self._end([one for served in holdings.served.values() for one in served.planned if one.is_on(name)])
        del holdings.workers[name], holdings.residency[name]
        holdings.changed.pop(name, None)

    def unload(self, worker: str, served: Served, depths: Iterable[int]) -> None:
        """Have a worker unload components of an application."""
        if gone := [served.application.components[d] for d in sorted(depths)]:
            ids = tuple(id for c in gone for id in (c.shared, c.delta) if id)
            self.perform(Unload(worker, self._holdings.workers[worker].incarnation, served.application.name, ids))
            self._holdings.changed[worker] = None

    def forgive(self, worker: str) -> None:
        """Forget the failures of a worker that ended or starts anew: whatever belongs there is loaded again."""
        self._holdings.final = {one for one in self._holdings.final if one[0] != worker}
        for served in self._holdings.hopeful(worker):
            served.failure = None
            self._unlisted = True

    # the end of an event ---------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Advance the workers that changed as far as possible without further news, in the order in which they came."""
        self.list_applications()
        workers = [self._holdings.workers[name] for name in self._holdings.changed]
        for worker in sorted(workers, key=lambda worker: worker.rank) if self._holdings.blocks else ():
            residency = self._holdings.residency[worker.name]
            if worker.well and residency.loading is None:
                self._advance(worker, residency)

    def _advance(self, worker: WorkerRecord, residency: Residency) -> None:
        if not residency.lacks(self._holdings.urgent) and residency.ask_room():
            self.perform(AskCapacity(worker.name, worker.incarnation))
        if residency.asking:
            return  # complete routes come into force before the next application loads
        load = residency.next_load()
        if load is None:
            worker.state = "ready"
            return
        worker.state = "loading"
        residency.loading = load = self._sourced(worker.name, load)
        self.perform(Load(worker.name, worker.incarnation, load))

    def _sourced(self, worker: str, load: LoadBlock) -> LoadBlock:
        """Return a load with the worker that sends it over a link, if it restores dropped parameters."""
        source = self._holdings.residency[worker].sources.get(load.first, "")
        return replace(load, source=source) if source and load.holder in self._holdings.dropped_on(worker) else load

    def list_applications(self) -> None:
        """Update all that depends on the set of deployed applications and their routes.

        All known applications are cut into blocks: undeploying one moves no border, so the KV of the others stays.
        """
        if not self._unlisted:
            return
        holdings = self._holdings
        self._unlisted = False
        deployed = {name: served for name, served in holdings.served.items() if served.deployed}
        holdings.blocks = {name: served.blocks for name, served in deployed.items()}
        shown = {name: served for name, served in deployed.items() if served.shown and not served.parked}
        holdings.planned = sum(len(served.planned) for served in shown.values())
        hopeful = [one for one in shown.values() if not (one.ever_ready or one.on_demand or one.application.variant_of)]
        holdings.never_ready = {one.application.name: None for one in hopeful}
        holdings.table.list_chains(holdings.served.values())

    def publish(self) -> None:
        """Bring routes into force and out of it; publish what changed."""
        self.list_applications()
        first = self._holdings.table.settle()
        for name in self._holdings.table.applications:  # gained a route, or lost one
            self._holdings.never_ready.pop(name, None)
            self._holdings.ever_ready = True
        if first is not None:
            self.perform(Publish(self._holdings.table.version, first))
