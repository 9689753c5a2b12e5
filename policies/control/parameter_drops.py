"""Parameter drops: parameters that exist twice are dropped in a burst and restored after it.

The cluster's memory actor decides which, and when (``policies/overload``); the controller carries it out here. A drop: the
pipeline comes into force, the routes that serve now are *paused* (gateways start nothing there), and gateways take their
requests off them. Then they are *suspended*: they stay planned, so that cached pages keep their spans, but what only they
need is unloaded, and KV gets that memory. A restore: the replicas' components are loaded again; when all are whole,
requests move to them, and the pipeline ends. If a member dies, the first whole replica ends the group. Owns the groups
that are no replicas, and their history.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import replace

from ..model.chain import Route
from .drop_events import (
    AwaitSwitched,
    BreakOffRestore,
    DropParameters,
    LoadAgain,
    LoadLater,
    MemoryLacks,
    OverloadEvent,
    OverloadNote,
    RequestsSwitched,
    RestoreParameters,
    RoutesLeft,
    SwitchGateways,
    TrimParameters,
)
from .dropped_group import DroppedGroup, GroupStage, ParameterChange, together
from .events import LoadRefused
from .holdings import Holdings
from .loads import LoadBlock
from .placement import Placement
from .residency import WITHHELD, PlannedRoute
from .route_switch import SwitchFigures

RETRY = 0.5  # seconds until a load without room is retried
KEPT = 100  # changes kept for the view


class ParameterDrops:
    """The parameter drops of one cluster (see the module)."""

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings
        self.groups = holdings.groups
        self.changes: deque[ParameterChange] = deque(maxlen=KEPT)
        self.counts: Counter[str] = Counter()  # changes by kind
        self.failures: Counter[str] = Counter()  # by reason; for these and totals see ``drops_view.py``
        self.totals: defaultdict[str, float] = defaultdict(float)
        self.version = 0  # counts changes that the version of the routes does not show
        self.watched = False  # True if there is a memory actor: the setting is on
        self._of_order: dict[int, ParameterChange] = {}  # changes by the number of their open order
        self._number = 0  # number of the last order to gateways

    def handle(self, event: OverloadEvent, now: float) -> None:
        """Apply an event. An order must have been found possible (``drop_groups.refusal``)."""
        match event:
            case DropParameters():
                self._drop(event, now)
            case RestoreParameters(name, sources):
                self._note("restore", name, now, "KV memory is little used")
                self.groups[name].sources = sources
                self._load(self.groups[name])
            case BreakOffRestore(name):
                self._give_up(self.groups[name], "broken off, as a burst came")
                self._note("break off", name, now, "a burst came").ended = now
                self._suspend(self.groups[name].replicas)
                self._enter(self.groups[name], GroupStage.PIPELINE)
            case TrimParameters(name, why):
                change = self._note("trim", name, now, why)
                change.nbytes, change.ended = self._release(self.groups[name]), now
                self.version += 1
            case MemoryLacks(nbytes, why):
                change = self._note("lacking", "", now, why)
                change.nbytes, change.ended = nbytes, now
                self.failures["lacking"] += 1
            case RoutesLeft(number, requests):
                if (group := self._ordered(number)) is not None:
                    self._of_order[number].left, self._of_order[number].requests = now, requests
                    self._left(group)
            case RequestsSwitched(number, figures):
                if (switched := self._of_order.pop(number, None)) is not None:
                    switched.figures = list(figures)
                    self._count(figures)
                    if (group := self._ordered(number)) is not None:
                        self._exchanged(group, now)
            case LoadAgain(worker, application):
                if worker in self._holdings.workers and application in self._holdings.served:
                    self._holdings.residency[worker].want(application)
                    self._holdings.touched[worker] = None

    # drops -----------------------------------------------------------------------------------------------------------

    def _drop(self, order: DropParameters, now: float) -> None:
        """Bring the pipelines into force and order gateways to switch to them."""
        holdings, workers = self._holdings, {hop.worker: None for hop in order.hops}
        before = [group for group in self.groups.values() if not workers.keys().isdisjoint(group.workers)]
        alone = workers.keys() - {worker for group in before for worker in group.workers}
        served = before[0].served if before else together(holdings.served, holdings.residency[order.hops[0].worker])
        replica = [one for each in served for one in each.planned if is_replica(one, holdings.placement)]
        single = [one for one in replica if one.route.home in alone]
        name, names = "+".join(workers), [one.application.name for one in served]
        routes = [Route(f"{one}@{name}#{self._number + 1}", 0, one, order.hops) for one in names]
        pipelines = holdings.placement.plan(routes)
        leaving = [*single, *(one for group in before for one in group.pipelines)]
        replicas = [*single, *(one for group in before for one in group.replicas)]
        for one in before:
            del self.groups[one.name]
        self.groups[name] = group = DroppedGroup(name, pipelines, replicas, leaving, before)
        holdings.table.touch(pipelines)
        holdings.catalog()
        self._note("drop", name, now, order.why)
        self._switch(group, leaving, pipelines, dropped=True)

    def _switch(
        self, group: DroppedGroup, leaving: Sequence[PlannedRoute], to: Sequence[PlannedRoute], *, dropped: bool
    ) -> None:
        """Order gateways to leave routes, which are paused with the next publication, for others."""
        assert group.change is not None, "who switches is changing"
        self._number += 1
        group.order = self._number
        self._of_order[group.order] = group.change
        self._holdings.table.pause(leaving, True, "drop")
        self._holdings.table.pause(to, False, "drop")
        ended, target = ([one.route.id for one in routes] for routes in (leaving, to))
        self._holdings.after.append(SwitchGateways(group.order, ended, target, dropped))

    def _left(self, group: DroppedGroup) -> None:
        """Advance a group whose old routes are empty."""
        self._holdings.after.append(AwaitSwitched(group.order))
        if group.stage is GroupStage.LEAVING:
            self._suspend(group.leaving)
            nbytes = self._release(group)
            if group.change is not None:
                group.change.nbytes = nbytes
            self._enter(group, GroupStage.EXCHANGING)
        elif group.stage is GroupStage.RETURNING:
            self._end(group, "serve as replicas again")

    def _exchanged(self, group: DroppedGroup, now: float) -> None:
        """Finish a drop: no request waits for pages of the old routes."""
        self._forget_before(group)
        self._enter(group, GroupStage.PIPELINE)
        if group.change is not None:
            group.change.ended, group.change = now, None

    # what comes back -------------------------------------------------------------------------------------------------

    def _load(self, group: DroppedGroup) -> None:
        """Load the group's replicas again; they stay paused until they are whole."""
        self._resume(group)
        self._enter(group, GroupStage.LOADING)

    def _resume(self, group: DroppedGroup) -> None:
        for replica in group.replicas:
            replica.suspended = False
            for worker in (hop.worker for hop in replica.route.hops if hop.worker in self._holdings.workers):
                self._holdings.residency[worker].want(replica.route.application)
                self._holdings.touched[worker] = None
        self._holdings.table.touch(group.replicas)

    def sourced(self, worker: str, load: LoadBlock | None) -> LoadBlock | None:
        """Return a load with the worker that sends it over a link, if it restores dropped parameters."""
        group = self._holdings.group_of(worker) if load is not None else None
        if load is None or group is None or load.holder not in group.applications:
            return load
        return replace(load, source=group.sources.get(worker, {}).get(load.first, ""))

    def tick(self, now: float) -> None:
        """Check whether a group's replicas are whole, before the publication that brings them into force.

        A change that was in progress and belongs to no group any more has ended.
        """
        changing = [group.change for group in self.groups.values()]
        for change in self.changes:
            if change.ended is None and all(change is not one for one in changing):
                change.ended = now
        for group in list(self.groups.values()) if self._holdings.table.touched else ():
            if group.stage is GroupStage.LOADING:
                whole = [replica for replica in group.replicas if replica.whole]
                every = {*group.applications} <= {replica.route.application for replica in whole}
                if len(whole) == len(group.replicas) or (group.rescued and every):
                    self._return(group, whole)

    def _return(self, group: DroppedGroup, whole: Sequence[PlannedRoute]) -> None:
        """Move requests to the whole replicas; the other replicas follow by themselves."""
        self._holdings.table.pause(group.replicas, False, "drop")
        if not all(pipeline.whole for pipeline in group.pipelines):
            self._end(group, "is given up: a replica is whole")
            return
        self._enter(group, GroupStage.RETURNING)
        self._switch(group, group.pipelines, whole, dropped=False)

    def refused(self, news: LoadRefused, *, late: bool) -> bool:
        """Schedule a retry of a refused load that restores parameters or is ``late``; nothing gives way for it.

        A late load arrived while parameters were dropped there. Return False if the load belongs to no drop.
        """
        worker, application = news.worker, news.load.holder
        if not late and not self._loads(worker, application):
            return False
        residency = self._holdings.residency[worker]
        residency.loading = None
        residency.refuse(application, news.why.message)
        self._holdings.touched[worker] = None
        self.version += late  # the others' parameters can be dropped there meanwhile
        self._load_later(worker, application, "no_room")
        return True

    def coming_back(self, application: str, now: float) -> float:
        """Return the seconds since its parameters began to be restored; 0 if they are not."""
        groups = (one for one in self.groups.values() if one.stage is GroupStage.LOADING and application in one.applications)
        return next((now - one.change.at for one in groups if one.change is not None), 0.0)

    def failed(self, worker: str, application: str) -> None:
        """Schedule a retry of a load that failed on a worker, if it restores dropped parameters."""
        if self._loads(worker, application):
            self._load_later(worker, application, "load_failed")

    def _load_later(self, worker: str, application: str, why: str) -> None:
        self.failures[why] += 1
        self._holdings.after.append(LoadLater(worker, application, RETRY))

    def _loads(self, worker: str, application: str) -> bool:
        group = self._holdings.group_of(worker)
        return group is not None and application in group.applications

    # what goes wrong -------------------------------------------------------------------------------------------------

    def died(self, worker: str, now: float) -> None:
        """Handle the death of a worker that is a member of a group."""
        if (group := self._holdings.group_of(worker)) is not None:
            self._abort(group, worker, now)

    def forget(self, application: str) -> None:
        """Remove an application that is no longer served: its groups end, or go on for the applications together with it."""
        for group in [one for one in self.groups.values() if application in one.applications]:
            if len(group.pipelines) == 1:
                self._give_up(group, "given up, as the model is not served any more")
                self._end(group, "is given up: the model is not served any more")
                continue
            replicas = [one for one in group.replicas if one.route.application == application]
            gone = group.leave(application)
            for one in replicas:
                one.suspended = False
            self._holdings.table.pause([*replicas, *gone], False, "drop")
            self._holdings.end_routes(gone)
            self.version += 1

    def _abort(self, group: DroppedGroup, worker: str, now: float) -> None:
        why = f"is given up: worker {worker} died"
        self.failures["worker_died"] += 1
        self._give_up(group, f"given up, as worker {worker} died")
        if group.stage is GroupStage.LEAVING:  # nothing has been unloaded yet
            del self.groups[group.name]
            self._of_order.pop(group.order, None)
            self._holdings.table.pause(group.leaving, False, "drop")
            self._holdings.end_routes(group.pipelines)
            for one in group.before:
                self.groups[one.name] = one
            self._holdings.let_come(group.workers)
            self.version += 1
            self._tell(group.name, why)
            self.died(worker, now)
        elif group.stage is GroupStage.RETURNING:
            self._end(group, why)
        elif not group.rescued:
            self._of_order.pop(group.order, None)
            group.rescued = True
            self._note("rescue", group.name, now, f"worker {worker} died")
            self._forget_before(group)
            self._load(group)

    def _forget_before(self, group: DroppedGroup) -> None:
        """End the pipelines that were merged into this group."""
        self._holdings.end_routes([one for before in group.before for one in before.pipelines])
        group.leaving, group.before = [], []

    def _give_up(self, group: DroppedGroup, why: str) -> None:
        """Abandon the group's change in progress."""
        if group.change is not None and not group.rescued:
            group.change.why += f"; {why}"
            group.change = None

    def _end(self, group: DroppedGroup, text: str) -> None:
        """End a group: its pipelines go, and its replicas are ordinary routes again."""
        del self.groups[group.name]
        self._resume(group)
        self._holdings.table.pause([*group.replicas, *group.pipelines, *group.leaving], False, "drop")
        self._holdings.end_routes([*group.pipelines, *(one for before in group.before for one in before.pipelines)])
        self._holdings.let_come(group.workers)
        self.version += 1
        self._tell(group.name, text)

    # routes and memory -----------------------------------------------------------------------------------------------

    def _suspend(self, routes: Sequence[PlannedRoute]) -> None:
        """Take routes out of force before their components go; they stay planned."""
        for one in routes:
            one.suspended = True
            for hop in one.hops:
                hop.residency.spare(one.route.application)
            self._holdings.touched.update((hop.worker, None) for hop in one.route.hops)
        self._holdings.table.touch(routes)
        self._holdings.publish()

    def _release(self, group: DroppedGroup) -> int:
        """Unload what the pipelines do not need; return the bytes.

        Components that applications share go with the last of them, and are counted once.
        """
        nbytes = 0
        for worker in group.workers:
            self._give_back_late(worker)
            freed = dict[bytes, int]()
            for served in group.served:
                parts = served.application.components
                gone = self._holdings.residency[worker].release(served.application.name)
                for one in (parts[depth] for depth in gone):
                    freed |= {one.shared: one.nbytes} | ({one.delta: one.delta_nbytes} if one.delta else {})
                self._holdings.unload(worker, served, gone)
            nbytes += sum(freed.values())
        self.totals["dropped_bytes"] += nbytes
        return nbytes

    def _give_back_late(self, worker: str) -> None:
        """Unload the loaded parts of late applications, to leave that memory to KV."""
        residency = self._holdings.residency[worker]
        for name in sorted(residency.late & residency.resident.keys()):
            self._holdings.unload(worker, self._holdings.served[name], residency.withdraw(name))
            residency.withhold(name, WITHHELD)

    def _count(self, figures: Sequence[SwitchFigures]) -> None:
        for one in figures:
            self.totals["stale_requests"] += one.stale
            self.totals["copied_bytes"] += one.nbytes
            self.totals["recomputed_tokens"] += one.recomputed
            self.totals["stall_seconds"] += one.stall_sum

    def _ordered(self, number: int) -> DroppedGroup | None:
        return next((group for group in self.groups.values() if group.order == number), None)

    def _enter(self, group: DroppedGroup, stage: GroupStage) -> None:
        group.stage = stage
        self.version += 1
        self._tell(group.name, f"is {stage}")

    def _note(self, what: str, name: str, now: float, why: str) -> ParameterChange:
        self.changes.append(change := ParameterChange(what, name, now, why))
        self.counts[what] += 1
        if name and what in ("drop", "restore", "rescue"):
            self.groups[name].change = change
        self._tell(name, f"{what}: {why}" if why else what)
        return change

    def _tell(self, group: str, text: str) -> None:
        self._holdings.after.append(OverloadNote(group, text))

    def check(self) -> None:
        """Raise AssertionError when an invariant is broken."""
        members = [worker for group in self.groups.values() for worker in group.workers]
        assert len(members) == len({*members}), "a worker is in two groups"
        suspended = {one.route.id for group in self.groups.values() for one in (*group.replicas, *group.leaving)}
        for served in self._holdings.served.values():
            for one in served.planned:
                assert not one.suspended or one.route.id in suspended, f"route {one.route.id} is suspended without a holder"
        for group in self.groups.values():
            out = group.stage in (GroupStage.EXCHANGING, GroupStage.PIPELINE)
            assert all(replica.suspended is out for replica in group.replicas) or group.before, group.name


def is_replica(one: PlannedRoute, placement: Placement) -> bool:
    """Return whether a route is a whole chain on one worker that was not deployed for a burst."""
    return len(one.hops) == 1 and one.route.id not in placement.extras
