"""The facts about workers, from their lives and answers: the only code that changes their records.

What follows from it the parties say.
"""

from __future__ import annotations

from .events import (
    Fatal,
    KillWorker,
    KvCapacity,
    Loaded,
    LoadFailed,
    LoadLacks,
    LoadRefused,
    Unload,
    WorkerCannotStart,
    WorkerDown,
    WorkerHeartbeat,
    WorkerNews,
    WorkerReported,
    WorkerStarting,
    WorkerTold,
    WorkerUp,
)
from .holdings import Holdings
from .reconcile import Reconcile
from .worker_record import WorkerRecord


class WorkerFacts:
    """The news of one cluster's workers (see the module)."""

    def __init__(self, holdings: Holdings, reconcile: Reconcile, stall_timeout: float) -> None:
        self._holdings = holdings
        self._reconcile = reconcile
        self._stall_timeout = stall_timeout

    def take(self, event: WorkerNews, now: float) -> bool:
        """Record an event about a worker's life or from it; return whether parties may have to act on it."""
        worker = self._holdings.workers.get(event.worker)
        if worker is None:
            return False  # it was drained and forgotten
        match event:
            case WorkerStarting(_, incarnation, pid):
                worker.launched(incarnation, pid, now)
                self._holdings.changed[worker.name] = None
            case WorkerReported(_, incarnation, report):
                if incarnation < worker.last:
                    return False
                worker.report = report
                worker.reports += 1
                self._holdings.changed[worker.name] = None
            case WorkerUp(_, incarnation):
                self._rise(worker, incarnation)
            case WorkerDown(_, incarnation, cause):
                if not worker.ended_by(incarnation):
                    return False
                self._fall(worker, incarnation, cause, now)
            case WorkerCannotStart(_, incarnation, why):
                self._unfit(worker, incarnation, why)
                return False
            case _ if not (worker.alive and worker.incarnation == event.incarnation):
                return False
            case WorkerHeartbeat():
                self._beat(worker, event)
                return False
            case WorkerTold():
                self._told(worker, event)
            case LoadLacks():
                return False  # its load stays in progress
            case Loaded() | LoadFailed() | LoadRefused() | KvCapacity():
                self._answered(event)
        return isinstance(event, WorkerReported | WorkerDown | WorkerTold | LoadFailed | LoadRefused)  # what parties act on

    def _rise(self, worker: WorkerRecord, incarnation: int) -> None:
        self._holdings.alive += not worker.alive
        worker.rise(incarnation)
        self._begin_anew(worker)

    def _begin_anew(self, worker: WorkerRecord) -> None:
        """Record that a worker holds nothing: a life of it began or ended."""
        self._holdings.residency[worker.name].clear()
        self._reconcile.forgive(worker.name)
        self._holdings.changed[worker.name] = None

    def _fall(self, worker: WorkerRecord, incarnation: int, cause: str, now: float) -> None:
        self._holdings.alive -= worker.alive
        worker.fall(incarnation, cause, now)
        loading = self._holdings.residency[worker.name].loading
        worker.lost = loading.holder if loading is not None else ""
        self._begin_anew(worker)

    def doom(self, worker: WorkerRecord, now: float) -> None:
        """Say that the cluster cannot serve, if a worker that died will never live."""
        if worker.extra:
            return  # others serve without it
        some_last = self._holdings.ever_ready and any(other.settled(now) for other in self._holdings.workers.values())
        if why := worker.hopeless(proven=self._holdings.ever_ready, some_last=some_last):
            self._reconcile.perform(Fatal(f"{why}: {worker.cause}"))

    def _unfit(self, worker: WorkerRecord, incarnation: int, why: str) -> None:
        if worker.state != "starting" or incarnation != worker.last:
            return
        if self._holdings.ever_ready or worker.extra:
            self._reconcile.perform(KillWorker(worker.name, f"it cannot start: {why}"))  # it may succeed next time
        else:
            self._reconcile.perform(Fatal(f"worker {worker.name} cannot start: {why}"))

    def _told(self, worker: WorkerRecord, told: WorkerTold) -> None:
        """Correct what is known of a worker by what it tells a new head: it holds more, or less.

        What belongs to no application goes.
        """
        residency = self._holdings.residency[worker.name]
        residency.loading, residency.asking = None, False
        residency.room_stale = True
        self._holdings.changed[worker.name] = None
        if worker.condemned:  # perhaps it was not killed
            self._reconcile.perform(KillWorker(worker.name, "stalled"))
        held: dict[str, set[int]] = {name: set() for name in residency.resident}
        for block in told.held:
            served = self._holdings.served.get(block.holder)
            if served is not None and served.wanted and residency.hops.get(block.holder):
                held.setdefault(block.holder, set()).update(range(block.first, block.last))
            else:
                self._reconcile.perform(Unload(worker.name, told.incarnation, block.holder, block.ids))
        for name, depths in held.items():
            residency.correct(name, depths)
            if not self._holdings.restores(worker.name, name) and self._holdings.leftovers(worker.name, name):
                self._reconcile.unload(worker.name, self._holdings.served[name], residency.release(name))

    def _beat(self, worker: WorkerRecord, beat: WorkerHeartbeat) -> None:
        worker.waiting = beat.waiting
        worker.running = beat.running
        worker.routes = beat.routes
        if beat.sweep_age > self._stall_timeout and not worker.condemned:
            worker.condemned = True
            self._holdings.residency[worker.name].serve(False)
            self._holdings.changed[worker.name] = None
            self._reconcile.perform(KillWorker(worker.name, "stalled"))

    def _answered(self, event: Loaded | LoadFailed | LoadRefused | KvCapacity) -> None:
        name, residency = event.worker, self._holdings.residency[event.worker]
        self._holdings.changed[name] = None
        match event:
            case KvCapacity(_, _, nbytes, left_alone, owned):
                residency.set_room(nbytes, left_alone if self._holdings.on_demand else None, owned)
                residency.serve(self._holdings.workers[name].well)
                why = residency.cramped(name, self._holdings.never_ready)
                if why and not self._holdings.workers[name].extra:
                    self._reconcile.perform(Fatal(why))
            case Loaded():
                residency.loading, residency.room_stale = None, True
                self._loaded(event)
            case LoadRefused():
                residency.loading = None
            case LoadFailed(_, _, load, message, final):
                if residency.loading is not None and residency.loading.holder == load.holder:
                    residency.loading = None
                served = self._holdings.served.get(load.holder)
                if served is not None and served.shown:
                    residency.fail(load.holder, message)
                    (self._holdings.final.add if final else self._holdings.final.discard)((name, load.holder))

    def _loaded(self, event: Loaded) -> None:
        load, residency = event.load, self._holdings.residency[event.worker]
        self._holdings.workers[event.worker].loaded(event.nbytes, event.seconds)
        self._holdings.final.discard((event.worker, load.holder))  # it can be loaded after all
        served = self._holdings.served.get(load.holder)
        if served is not None and served.wanted and residency.hops.get(load.holder):
            residency.loaded(load)
            spare = not residency.needs(load) and self._holdings.leftovers(event.worker, load.holder)
            if spare and not self._holdings.restores(event.worker, load.holder):
                self._reconcile.unload(event.worker, served, residency.release(load.holder))  # its route ended meanwhile
        else:
            ids = (*load.ids, *filter(None, load.deltas))
            self._reconcile.perform(Unload(event.worker, event.incarnation, load.holder, ids))
