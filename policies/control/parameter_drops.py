"""Parameter drops: parameters that exist twice are dropped in a burst and restored after it.

The cluster's memory actor decides which, and when (``policies/overload``); the controller carries it out here. A drop: the
pipeline comes into force, the routes that serve now are *paused* (gateways start nothing there), and gateways take their
requests off them. Then they are *suspended*: they stay planned, so that cached pages keep their spans, but what only they
need is unloaded, and KV gets that memory. A restore: the replicas' components are loaded again; when all are whole,
requests move to them, and the pipeline ends. If a member dies, the first whole replica ends the group. Claims the pipelines,
the pauses and the suspensions. Owns the groups that are no replicas, and their history.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence

from ..cluster.demand import back_in_vain
from ..model.chain import Hop, Route
from .claims import Claim, Claimant, ClaimKind, Defer, LetCome, NoteRefusal, PlanRoutes, TakeFrom, Trim, TryAgain, Withdrawal
from .drop_events import (
    AwaitSwitched,
    DropParameters,
    MemoryLacks,
    MemoryOrder,
    OverloadNote,
    RequestsSwitched,
    RestoreParameters,
    RoutesLeft,
)
from .dropped_group import DroppedGroup, GroupStage, ParameterChange, together
from .events import (
    Event,
    HeadChanged,
    LoadFailed,
    LoadRefused,
    NoWayBack,
    Park,
    Recheck,
    RecheckLater,
    Remove,
    Undeploy,
    WorkerDown,
)
from .holdings import Holdings
from .party import Conclusions, Party
from .route_switch import SwitchFigures, SwitchRoutes

RETRY = 0.5  # seconds until a load without room is retried
KEPT = 100  # changes kept for the view


class ParameterDrops(Party):
    """The parameter drops of one cluster (see the module)."""

    def __init__(self) -> None:
        self.groups: dict[str, DroppedGroup] = {}  # workers that serve as pipelines, since they dropped parameters
        self.changes: deque[ParameterChange] = deque(maxlen=KEPT)
        self.counts: Counter[str] = Counter()  # changes by kind
        self.failures: Counter[str] = Counter()  # by reason; for these and totals see ``drops_view.py``
        self.totals: defaultdict[str, float] = defaultdict(float)
        self.version = 0  # counts changes that the version of the routes does not show
        self.watched = False  # True if there is a memory actor: the setting is on
        self._of_order: dict[int, ParameterChange] = {}  # changes by the number of their open order
        self._number = 0  # number of the last order to gateways

    def group_of(self, worker: str) -> DroppedGroup | None:
        """Return the group in which a worker serves as a part of a pipeline, or None."""
        return next((group for group in self.groups.values() if worker in group.workers), None)

    def group_with(self, hops: Sequence[Hop]) -> DroppedGroup | None:
        """Return the group whose pipeline has these stages, or None."""
        return next((group for group in self.groups.values() if group.hops == tuple(hops)), None)

    def handle(self, event: Event, view: Holdings, now: float) -> Conclusions:
        """Return what follows from an event. An order must have been found possible (``drop_groups.refusal``)."""
        match event:
            case DropParameters() | RestoreParameters() | MemoryLacks():
                return self._ordered_by_memory(event, view, now)
            case RoutesLeft() | RequestsSwitched():
                return self._answered_by_gateways(event, view, now)
            case HeadChanged():
                return self._ask_again(view)
            case Recheck(worker, application) if worker in view.workers and application in view.served:
                return (TryAgain(application, worker),)
            case LoadRefused(worker, _, load) if view.restores(worker, load.holder):
                return self._refused(event, view, now)
            case LoadFailed(worker, _, load) if load.holder in view.dropped_on(worker):
                return (self._load_later(worker, load.holder, "load_failed"),)
            case WorkerDown(worker):
                return self._died(worker, now)
            case Undeploy(name) | Remove(name) | Park(name):
                return self._forget(name)
        return ()

    def _ordered_by_memory(self, order: MemoryOrder, view: Holdings, now: float) -> Conclusions:
        match order:
            case DropParameters(_, hops, why):
                group = self.group_with(hops)
                yield from self._drop(order, view, now) if group is None else self._stay(group, why, view, now)
            case RestoreParameters(name, sources):
                yield self._note("restore", name, now, "KV memory is little used")
                self.groups[name].sources = sources
                yield from self._load(self.groups[name])
            case MemoryLacks(nbytes, why):
                yield self._note("lacking", "", now, why)
                change = self.changes[-1]
                change.nbytes, change.ended = nbytes, now
                self.failures["lacking"] += 1

    def _answered_by_gateways(self, answer: RoutesLeft | RequestsSwitched, view: Holdings, now: float) -> Conclusions:
        number = answer.number
        group = next((group for group in self.groups.values() if group.order == number), None)
        match answer:
            case RoutesLeft(_, requests) if group is not None:
                self._of_order[number].left, self._of_order[number].requests = now, requests
                yield from self._left(group, view)
            case RoutesLeft():  # its group is gone, and asks for nothing more
                self._of_order.pop(number, None)
            case RequestsSwitched(_, figures) if (switched := self._of_order.pop(number, None)) is not None:
                switched.figures = list(figures)
                self._count(figures)
                if group is not None:
                    yield from self._exchanged(group, now)

    def _ask_again(self, view: Holdings) -> Conclusions:
        """Ask what the head before has asked without an answer; loads that it would have retried are retried."""
        for group in self.groups.values():
            if group.stage is GroupStage.LEAVING:
                yield SwitchRoutes(group.order, [*_ids(group.leaving)], [*_ids(group.pipelines)], dropped=True)
            elif group.stage is GroupStage.RETURNING:
                whole = [one for one in group.replicas if view.plan[one.id].whole]
                yield SwitchRoutes(group.order, [*_ids(group.pipelines)], [*_ids(whole)], dropped=False)
        leaving = {one.order for one in self.groups.values() if one.stage in (GroupStage.LEAVING, GroupStage.RETURNING)}
        yield from (AwaitSwitched(number) for number in self._of_order if number not in leaving)
        for worker, residency in view.residency.items():
            for name in (name for name in residency.refused if view.restores(worker, name)):
                yield RecheckLater(RETRY, worker, name)

    # drops -----------------------------------------------------------------------------------------------------------

    def _drop(self, order: DropParameters, view: Holdings, now: float) -> Conclusions:
        """Bring the pipelines into force and order gateways to switch to them."""
        workers = {hop.worker: None for hop in order.hops}
        before = [group for group in self.groups.values() if not workers.keys().isdisjoint(group.workers)]
        alone = workers.keys() - {worker for group in before for worker in group.workers}
        here = together(view.served, view.residency[order.hops[0].worker])
        names = before[0].applications if before else [one.application.name for one in here]
        replica = [one for name in names for one in view.served[name].planned if view.is_replica(one)]
        single = [one.route for one in replica if one.route.home in alone]
        name = "+".join(workers)
        pipelines = [Route(f"{one}@{name}#{self._number + 1}", 0, one, order.hops) for one in names]
        leaving = [*single, *(one for group in before for one in group.pipelines)]
        replicas = [*single, *(one for group in before for one in group.replicas)]
        for one in before:
            del self.groups[one.name]
        self.groups[name] = group = DroppedGroup(name, [*pipelines], replicas, [*leaving], before)
        why = f"group {name} serves as a pipeline, since parameters were dropped"
        yield PlanRoutes(Claimant.DROPS, why, tuple(pipelines))
        yield from (TakeFrom(worker, {}) for worker in workers)
        yield self._note("drop", name, now, order.why)
        yield from self._switch(group, leaving, pipelines, dropped=True)

    def _stay(self, group: DroppedGroup, why: str, view: Holdings, now: float) -> Conclusions:
        """Abort a restore and keep what it has loaded, or free that if it was aborted before."""
        if group.stage is GroupStage.LOADING:
            self._give_up(group, "broken off, as a burst came")
            yield self._note("break off", group.name, now, why)
            self.changes[-1].ended = now
            yield self._suspend(group.replicas)
            yield self._enter(group, GroupStage.PIPELINE)
            return
        yield self._note("trim", group.name, now, why)
        self.changes[-1].nbytes, self.changes[-1].ended = self._freed(group, view), now
        yield from self._release(group, view)
        self.version += 1

    def _switch(self, group: DroppedGroup, leaving: Sequence[Route], to: Sequence[Route], *, dropped: bool) -> Conclusions:
        """Order gateways to leave routes, which are paused with the next publication, for others."""
        assert group.change is not None, "who switches is changing"
        self._number += 1
        group.order = self._number
        self._of_order[group.order] = group.change
        yield Claim(Claimant.DROPS, ClaimKind.PAUSED, _ids(leaving), f"requests of group {group.name} leave it")
        yield self._resume(to)
        yield SwitchRoutes(group.order, [*_ids(leaving)], [*_ids(to)], dropped)

    def _left(self, group: DroppedGroup, view: Holdings) -> Conclusions:
        """Advance a group whose old routes are empty."""
        yield AwaitSwitched(group.order)
        if group.stage is GroupStage.LEAVING:
            yield self._suspend(group.leaving)
            nbytes = self._freed(group, view, _ids(group.leaving))
            yield from self._release(group, view)
            if group.change is not None:
                group.change.nbytes = nbytes
            yield self._enter(group, GroupStage.EXCHANGING)
        elif group.stage is GroupStage.RETURNING:
            yield from self._end(group, "serve as replicas again")

    def _exchanged(self, group: DroppedGroup, now: float) -> Conclusions:
        """Finish a drop: no request waits for pages of the old routes."""
        yield from self._forget_before(group)
        yield self._enter(group, GroupStage.PIPELINE)
        if group.change is not None:
            group.change.ended, group.change = now, None

    # what comes back -------------------------------------------------------------------------------------------------

    def _load(self, group: DroppedGroup) -> Conclusions:
        """Load the group's replicas again; they stay paused until they are whole."""
        yield from (TakeFrom(worker, group.sources.get(worker, {})) for worker in group.workers)
        yield Withdrawal(Claimant.DROPS, ClaimKind.SUSPENDED, _ids(group.replicas))
        yield self._enter(group, GroupStage.LOADING)

    def settle(self, view: Holdings, now: float) -> Conclusions:
        """Check whether a group's replicas are whole, before the publication that brings them into force.

        A change that was in progress and belongs to no group any more has ended.
        """
        changing = [group.change for group in self.groups.values()]
        for change in self.changes:
            if change.ended is None and all(change is not one for one in changing):
                change.ended = now
        for group in list(self.groups.values()) if view.table.unsettled else ():
            if group.stage is GroupStage.LOADING:
                whole = [one for one in group.replicas if view.plan[one.id].whole]
                every = {*group.applications} <= {replica.application for replica in whole}
                if len(whole) == len(group.replicas) or (group.rescued and every):
                    yield from self._return(group, whole, view)

    def _return(self, group: DroppedGroup, whole: Sequence[Route], view: Holdings) -> Conclusions:
        """Move requests to the whole replicas; the other replicas follow by themselves."""
        yield self._resume(group.replicas)
        if not all(view.plan[one.id].whole for one in group.pipelines):
            yield from self._end(group, "is given up: a replica is whole")
            return
        yield self._enter(group, GroupStage.RETURNING)
        yield from self._switch(group, group.pipelines, whole, dropped=False)

    def _refused(self, event: LoadRefused, view: Holdings, now: float) -> Conclusions:
        """Retry a refused load later that restores parameters or arrived while they were dropped; nothing gives way for it.

        Unless there was no room for longer than a burst takes.
        """
        worker, name = event.worker, event.load.holder
        late = name in view.residency[worker].late and name != view.urgent
        self.version += late  # the others' parameters can be dropped there meanwhile
        yield NoteRefusal(worker, name, event.why.message)
        yield self._load_later(worker, name, "no_room")
        if not late and back_in_vain(self._coming_back(name, now)):
            yield NoWayBack(event)

    def _coming_back(self, application: str, now: float) -> float:
        """Return the seconds since its parameters began to be restored; 0 if they are not."""
        groups = (one for one in self.groups.values() if one.stage is GroupStage.LOADING and application in one.applications)
        return next((now - one.change.at for one in groups if one.change is not None), 0.0)

    def _load_later(self, worker: str, application: str, why: str) -> RecheckLater:
        self.failures[why] += 1
        return RecheckLater(RETRY, worker, application)

    # what goes wrong -------------------------------------------------------------------------------------------------

    def _forget(self, application: str) -> Conclusions:
        """Remove an application that is no longer served: its groups end, or go on for the applications together with it."""
        for group in [one for one in self.groups.values() if application in one.applications]:
            if len(group.pipelines) == 1:
                self._give_up(group, "given up, as the model is not served any more")
                yield from self._end(group, "is given up: the model is not served any more")
                continue
            replicas = [one for one in group.replicas if one.application == application]
            gone = group.leave(application)
            yield Withdrawal(Claimant.DROPS, ClaimKind.SUSPENDED, _ids(replicas))
            yield self._resume([*replicas, *gone])
            yield self._withdraw(gone)
            self.version += 1

    def _died(self, worker: str, now: float) -> Conclusions:
        """Give up the changes of a group of which a member died."""
        if (group := self.group_of(worker)) is None:
            return
        why = f"is given up: worker {worker} died"
        self.failures["worker_died"] += 1
        self._give_up(group, f"given up, as worker {worker} died")
        if group.stage is GroupStage.LEAVING:  # nothing has been unloaded yet
            del self.groups[group.name]
            self._of_order.pop(group.order, None)
            yield self._resume(group.leaving)
            yield self._withdraw(group.pipelines)
            for one in group.before:
                self.groups[one.name] = one
            yield LetCome(tuple(group.workers))
            self.version += 1
            yield OverloadNote(group.name, why)
            yield from self._died(worker, now)
        elif group.stage is GroupStage.RETURNING:
            yield from self._end(group, why)
        elif not group.rescued:
            self._of_order.pop(group.order, None)
            group.rescued = True
            yield self._note("rescue", group.name, now, f"worker {worker} died")
            yield from self._forget_before(group)
            yield from self._load(group)

    def _forget_before(self, group: DroppedGroup) -> Conclusions:
        """End the pipelines that were merged into this group."""
        yield self._withdraw([one for before in group.before for one in before.pipelines])
        group.leaving, group.before = [], []

    def _give_up(self, group: DroppedGroup, why: str) -> None:
        """Abandon the group's change in progress."""
        if group.change is not None and not group.rescued:
            group.change.why += f"; {why}"
            group.change = None

    def _end(self, group: DroppedGroup, text: str) -> Conclusions:
        """End a group: its pipelines go, and its replicas are ordinary routes again."""
        del self.groups[group.name]
        yield Withdrawal(Claimant.DROPS, ClaimKind.SUSPENDED, _ids(group.replicas))
        yield self._resume([*group.replicas, *group.pipelines, *group.leaving])
        yield self._withdraw([*group.pipelines, *(one for before in group.before for one in before.pipelines)])
        yield LetCome(tuple(group.workers))
        self.version += 1
        yield OverloadNote(group.name, text)

    # claims ----------------------------------------------------------------------------------------------------------

    def _suspend(self, routes: Iterable[Route]) -> Claim:
        return Claim(Claimant.DROPS, ClaimKind.SUSPENDED, _ids(routes), "a pipeline serves instead, and KV has the memory")

    def _resume(self, routes: Iterable[Route]) -> Withdrawal:
        return Withdrawal(Claimant.DROPS, ClaimKind.PAUSED, _ids(routes))

    def _withdraw(self, pipelines: Iterable[Route]) -> Withdrawal:
        return Withdrawal(Claimant.DROPS, ClaimKind.PLANNED, _ids(pipelines))

    def _release(self, group: DroppedGroup, view: Holdings) -> Conclusions:
        """Unload what the pipelines do not need, and the parts of deferred applications: KV gets that memory."""
        for worker in group.workers:
            residency = view.residency[worker]
            for name in sorted(residency.late & residency.resident.keys()):
                yield Defer(worker, name, unload=True)
            for name in group.applications:
                yield Trim(worker, name)

    def _freed(self, group: DroppedGroup, view: Holdings, suspended: tuple[str, ...] = ()) -> int:
        """Count the bytes that the pipelines do not need, once these routes are suspended.

        Components that applications share go with the last of them, and are counted once.
        """
        nbytes = 0
        for worker in group.workers:
            freed = dict[bytes, int]()
            for name in group.applications:
                parts = view.served[name].application.components
                for one in (parts[depth] for depth in view.leftovers(worker, name, suspended)):
                    freed |= {one.shared: one.nbytes} | ({one.delta: one.delta_nbytes} if one.delta else {})
            nbytes += sum(freed.values())
        self.totals["dropped_bytes"] += nbytes
        return nbytes

    # history ---------------------------------------------------------------------------------------------------------

    def _count(self, figures: Sequence[SwitchFigures]) -> None:
        for one in figures:
            self.totals["stale_requests"] += one.stale
            self.totals["copied_bytes"] += one.nbytes
            self.totals["recomputed_tokens"] += one.recomputed
            self.totals["stall_seconds"] += one.stall_sum

    def _enter(self, group: DroppedGroup, stage: GroupStage) -> OverloadNote:
        group.stage = stage
        self.version += 1
        return OverloadNote(group.name, f"is {stage}")

    def _note(self, what: str, name: str, now: float, why: str) -> OverloadNote:
        self.changes.append(change := ParameterChange(what, name, now, why))
        self.counts[what] += 1
        if name and what in ("drop", "restore", "rescue"):
            self.groups[name].change = change
        return OverloadNote(name, f"{what}: {why}" if why else what)

    def check(self, view: Holdings) -> None:
        """Raise AssertionError when an invariant is broken, or a claim has no reason any more."""
        groups = self.groups.values()
        members = [worker for group in groups for worker in group.workers]
        assert len(members) == len({*members}), "a worker is in two groups"
        pipelines = {one.id for group in _with_merged(groups) for one in group.pipelines}
        assert {*view.claims.of(ClaimKind.PLANNED, Claimant.DROPS)} == pipelines, "a pipeline without a group"
        own = {one.id for group in groups for one in (*group.replicas, *group.leaving)}
        assert {*view.claims.of(ClaimKind.SUSPENDED, Claimant.DROPS)} <= own, "a route is suspended without a group"
        paused = own | {one.id for group in groups for one in group.pipelines}
        assert {*view.claims.of(ClaimKind.PAUSED, Claimant.DROPS)} <= paused, "a route is paused without a group"
        for group in groups:
            out = group.stage in (GroupStage.EXCHANGING, GroupStage.PIPELINE)
            assert all(view.plan[one.id].suspended is out for one in group.replicas) or group.before, group.name


def _ids(routes: Iterable[Route]) -> tuple[str, ...]:
    return tuple(one.id for one in routes)


def _with_merged(groups: Iterable[DroppedGroup]) -> Iterator[DroppedGroup]:
    """Return groups, and the ones that were merged into them."""
    for group in groups:
        yield group
        yield from _with_merged(group.before)
