"""Applications on demand: those that do not fit beside the others, which are loaded when they are asked for.

*Parked* is what is served and has nothing in any worker. One parked application comes at a time, that which was asked for
first; the workers say what memory it lacks, the gateways what is in use, and ``policies/cluster/demand.py`` who gives way.
Owns who is asked for and the swap under way; what follows for blocks and routes is ``state.py``'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from blockwright.actors.controller.additions import is_known
from blockwright.actors.controller.messages import (
    ApplicationsWanted,
    AskUse,
    AwaitQuiet,
    DemandEvent,
    Effect,
    Loaded,
    LoadFailed,
    LoadRefused,
    LookAgain,
    LookLater,
    Quiet,
    Room,
    Used,
)
from blockwright.actors.controller.residency import PlannedRoute, Residency, Served
from blockwright.actors.controller.routes import Routes
from blockwright.actors.controller.worker_record import WorkerRecord
from blockwright.actors.worker.messages import NoRoom
from blockwright.policies.cluster.demand import Occupant, Use, choose

LOOK = 0.03  # seconds between looks at what is in use, while something waits for it


class DroppedParameters(Protocol):
    """``ParameterDrops``, as far as it matters here."""

    def forget(self, application: str) -> None: ...

    def group_of(self, worker: str) -> object | None: ...

    def refused(self, news: LoadRefused) -> bool: ...


class ControllerParts(Protocol):
    """``ControllerState``, as far as its parts look."""

    on_demand: bool
    served: dict[str, Served]
    residency: dict[str, Residency]
    workers: dict[str, WorkerRecord]
    table: Routes
    touched: dict[str, None]
    after: list[Effect]

    @property
    def overload(self) -> DroppedParameters: ...

    def current(self, name: str, incarnation: int) -> bool: ...

    def news(self, event: Loaded | LoadFailed | Room) -> None: ...

    def end_extras(self, which: Callable[[PlannedRoute], bool]) -> None: ...

    def offer(self, name: str) -> None: ...

    def catalog(self) -> None: ...

    def vacate(self, served: Served, *, forget: bool = False) -> None: ...


class OnDemand:
    """See the module. ``state``: whose applications they are."""

    def __init__(self, state: ControllerParts) -> None:
        self._state, self._served, self._residency = state, state.served, state.residency
        self.wanted: dict[str, float] = {}  # parked, or coming, and asked for -> since when
        self.coming = ""  # is being made resident
        self.leaving = ""  # takes no new requests, so that it can be parked for ``coming``
        self._lacks: dict[str, NoRoom] = {}  # worker -> why ``coming`` could not be loaded there
        self._since: dict[str, float] = {}  # application -> when it became resident, of those that were on demand
        self._asking = self._looking = False

    def handle(self, event: DemandEvent, now: float) -> None:
        match event:
            case LoadRefused(worker, incarnation, _, _):
                if self._state.current(worker, incarnation):
                    self._refused(event)
            case ApplicationsWanted(applications):
                for name in applications:
                    if name in self._served and self._served[name].parked and self._served[name].deployed:
                        self.wanted.setdefault(name, now)
            case Used(uses):
                self._asking = False
                if self.coming:
                    self._make_room(uses, now)
            case Quiet(application) if application == self.leaving:
                self.leaving = ""
                self._pause(application, False)
                self._park(application)
                self._try_again()
            case LookAgain():
                self._looking = False
                self._ask()

    def _refused(self, event: LoadRefused) -> None:
        """A worker has no room for an application: what was coming asks for some, others are on demand from now on."""
        if self._state.overload.refused(event):
            return  # what comes back after a burst waits for room
        load, why, residency = event.load, event.why, self._residency[event.worker]
        if not self._state.on_demand or why.never or self._state.workers[event.worker].extra:
            self._state.news(LoadFailed(event.worker, event.incarnation, load, why.message))
            return
        residency.loading = None
        self._state.touched[event.worker] = None
        if load.holder == self.coming:
            residency.refuse(load.holder, why.message)
            self._lacks[event.worker] = why
            self._ask()
        elif load.holder in self._served:
            self._park(load.holder)

    def look(self, now: float) -> None:
        """Whether what was coming is there, or can come no more; then the next one comes."""
        if (name := self.coming) and self._ended(name):
            self.wanted.pop(name, None)
            self._since[name] = now
            self._end()
        if not self.coming:
            self.wanted = {name: at for name, at in self.wanted.items() if name in self._served}
            if waiting := [name for name in self.wanted if self._served[name].parked]:
                self.coming = waiting[0]
                self._bring(self.coming)

    def forget(self, name: str) -> None:
        """It is served no more, or cannot be loaded."""
        self.wanted.pop(name, None)
        self._since.pop(name, None)
        if name == self.coming:
            self._end()
        elif name == self.leaving:
            self.leaving = ""

    def check(self) -> None:
        """Raise AssertionError when an invariant is broken."""
        assert not self.coming or not self._served[self.coming].parked
        assert not self.leaving or (self.coming and not self._served[self.leaving].parked)
        assert all(name == self.coming or self._served[name].parked for name in self.wanted if name in self._served)

    def _park(self, name: str) -> None:
        served = self._served[name]
        self._state.end_extras(lambda extra: extra.served is served)
        self._state.overload.forget(name)
        served.parked = served.on_demand = True
        self._state.vacate(served)

    def _bring(self, name: str) -> None:
        """Let the workers load it, again where they had no room."""
        self._served[name].parked = False
        self._state.offer(name)
        self._state.catalog()

    def _pause(self, name: str, paused: bool) -> None:
        """Gateways start no request of it, workers go on; or as before."""
        self._state.table.pause(self._served[name].planned, paused)

    def _ended(self, name: str) -> bool:
        up = [p for p in self._served[name].planned if all(self._state.workers[hop.worker].alive for hop in p.route.hops)]
        return bool(up) and all(map(is_known, up))

    def _end(self) -> None:
        self.coming, self._lacks = "", {}
        if self.leaving:
            self._pause(self.leaving, False)
            self.leaving = ""

    def _ask(self) -> None:
        if self._lacking() and not self._asking:
            self._asking = True
            self._state.after.append(AskUse())

    def _lacking(self) -> dict[str, int]:
        """Bytes by worker."""
        return {w: max(1, why.lacking) for w, why in self._lacks.items() if self.coming in self._residency[w].refused}

    def _make_room(self, uses: Mapping[str, Use], now: float) -> None:
        """``uses``: of all gateways, by application; what is not in it was never used."""
        lacking = self._lacking()
        if not lacking:
            return
        nobody = Use(0, float("inf"))
        if not uses.get(self.coming, nobody).active:  # who asked for it is gone
            self.wanted.pop(self.coming, None)
            self._park(self.coming)
            self._end()
            return
        residents = []
        for name, served in self._served.items():
            here = any(name in self._residency[worker].resident for worker in lacking)
            if here and served.here and served.shown and name not in (self.coming, self.leaving):
                owned = {worker: self._lacks[worker].owned.get(name, 0) for worker in lacking}
                age = now - self._since.get(name, float("-inf"))
                residents.append(Occupant(name, uses.get(name, nobody), age, owned))
        choice = choose(lacking, residents, now - self.wanted.get(self.coming, now))
        for name in choice.unload:
            self._park(name)
        if choice.unload:
            self._try_again()
            return
        if choice.drain and not self.leaving:
            self.leaving = choice.drain
            self._pause(choice.drain, True)
            self._state.after.append(AwaitQuiet(choice.drain))
        if not self._looking:
            self._looking = True
            self._state.after.append(LookLater(LOOK))

    def _try_again(self) -> None:
        self._lacks = {}
        if self.coming:
            self._bring(self.coming)
