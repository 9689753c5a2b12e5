"""Applications on demand: models that do not fit beside the others and load when requests ask for them.

A *parked* application is served but in no worker's memory. One parked application is loaded at a time, in the order they
were asked for. Workers report the memory it lacks, gateways report the usage, and ``policies/cluster/demand.py`` chooses
the applications to unload. A loaded application with too little room for a waiting sequence is treated the same way, until
that sequence has been sent. Owns the requested applications and the swap in progress; ``state.py`` derives blocks and
routes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from ..cluster.demand import (
    DemandState,
    UnloadCandidate,
    Use,
    all_fit,
    choose,
    coming,
    in_vain,
    lacking_bytes,
    withheld,
)
from ..model.chain import Route
from ..requests.dispatch import workers_of
from .additions import is_known
from .events import (
    ApplicationsWanted,
    AskUsage,
    AwaitQuiet,
    DemandEvent,
    LoadFailed,
    LoadRefused,
    Quiet,
    Recheck,
    RecheckLater,
    UsageAnswer,
)
from .holdings import Holdings
from .parameter_drops import ParameterDrops
from .residency import WITHHELD, PlannedRoute

LOOK = 0.03  # seconds between checks of usage while something waits for it
NOBODY = Use(0, float("inf"))  # an application missing in the answers was never used


@dataclass(frozen=True, slots=True)
class WantedApplication:
    """A requested application: since when, and for how many tokens."""

    since: float
    tokens: int


class OnDemand:
    """The applications on demand of one cluster (see the module). ``drops`` end where an application is unloaded."""

    def __init__(self, holdings: Holdings, drops: ParameterDrops) -> None:
        self._holdings, self._drops = holdings, drops
        self._served = holdings.served
        self._residency = holdings.residency
        self.wanted: dict[
            str, WantedApplication
        ] = {}  # by application: parked, coming, or without room for waiting requests
        self.coming = ""  # the application being made resident
        self.leaving = ""  # the application being emptied to make room for ``coming``
        self._lacks: dict[str, LoadRefused | None] = {}  # worker -> why it has not loaded ``coming``; None: withheld
        self._since: dict[str, float] = {}  # application on demand -> when it became resident
        self._asking = self._looking = False
        self._changed = False  # something was loaded or is gone: perhaps all fit now
        self._alone = False  # no application is left to unload for ``coming``, still refused
        self._alone_since: float | None = None  # since when
        self._given_up: list[LoadFailed] = []  # loads for which there will never be room

    def handle(self, event: DemandEvent, now: float) -> None:
        match event:
            case ApplicationsWanted(applications):
                for name, tokens in applications.items():
                    self._want(name, tokens, now)
            case UsageAnswer(uses):
                self._asking = False
                if self.coming:
                    self._make_room(uses, now)
            case Quiet(application) if application == self.leaving:
                self.park(application)
                self._try_again()
            case Recheck():
                self._looking = False
                again = self._alone
                self._alone = False
                if again:
                    self._try_again()
                else:
                    self._ask()

    def _want(self, name: str, tokens: int, now: float) -> None:
        served, known = self._served.get(name), self.wanted.get(name)
        if known is not None:
            self.wanted[name] = replace(known, tokens=max(tokens, known.tokens))
        elif served is None or not served.deployed or (served.failure is not None and served.failure.final):
            return
        elif any(one.late for one in served.planned) and not any(one.whole for one in served.planned):
            self.park(name)  # no worker that had it loaded is left
            self.wanted[name] = WantedApplication(now, tokens)
        elif served.parked or not self._ended(name) or self._short(name, tokens):
            self.wanted[name] = WantedApplication(now, tokens)

    def refused(self, event: LoadRefused) -> bool:
        """Handle a worker's lack of room: ``coming`` asks for some; other applications are on demand from now on.

        Return False if no room is to be made, so that the load has failed.
        """
        load = event.load
        why = event.why
        residency = self._residency[event.worker]
        extra = residency.lacks(load.holder) and not residency.lacks_replica(load.holder)
        if not self._holdings.on_demand or why.never or extra or self._holdings.workers[event.worker].extra:
            return False
        residency.loading = None
        self._holdings.touched[event.worker] = None
        if load.holder == self.coming:
            residency.refuse(load.holder, why.message)
            self._lacks[event.worker], residency.owned = event, why.owned
            self._ask()
        elif load.holder in self._served:
            self.park(load.holder)
        return True

    def come_back(self, event: LoadRefused, now: float) -> None:
        """Make other applications give way to dropped parameters that have no room to return, as for one on demand.

        If no request uses the application, it becomes on demand itself. Until then its pipeline serves, and nothing more
        can be dropped.
        """
        name, residency = event.load.holder, self._residency[event.worker]
        if self._holdings.on_demand and not self.coming and residency.resident.keys() - {name}:
            self.wanted.setdefault(name, WantedApplication(now, 0))
            self.coming = name
        if name == self.coming:
            self._lacks[event.worker], residency.owned = event, event.why.owned
            self._ask()

    def tick(self) -> None:
        """Check whether ``coming`` has loaded or cannot load any more; then start the next one."""
        dropped = self._dropped()
        if self.coming in dropped and not self._lacking():
            self._end()  # it is loaded; dropped memory is for the requests waiting for it
        for name, want in list(self.wanted.items()) if not self.coming else ():
            if name in self._served and self._served[name].parked:
                self._bring(name)
            elif name not in self._served or (self._ended(name) and not self._short(name, want.tokens)):
                del self.wanted[name]
                continue
            elif not self._ended(name) or name in dropped:
                continue  # its worker is down or was asked for its room, or it is in a pipeline
            self.coming = name
            break
        self._withhold()
        if self.coming and self._ended(self.coming) and not self._looking:
            self._ask()
        if self._changed and not self.coming:
            self._changed = False
            self._look_whether_all_fit()

    def goes_on(self, name: str, failed: str) -> bool:
        """Return whether ``name`` is coming and can still load elsewhere, although worker ``failed`` cannot load it."""
        if name == self.coming:
            self._lacks.pop(failed, None)
        return name == self.coming and bool(self._up(name))

    def forget(self, name: str) -> None:
        """Forget an application that is no longer served or cannot be loaded."""
        self._changed = True
        self.wanted.pop(name, None)
        self._since.pop(name, None)
        if name == self.coming:
            self._end()
        elif name == self.leaving:
            self._stay()

    def check(self) -> None:
        """Raise AssertionError when an invariant is broken."""
        assert not self.coming or not self._served[self.coming].parked
        assert not self.leaving or (self.coming and not self._served[self.leaving].parked)
        assert not self.coming or self.coming in self.wanted

    def park(self, name: str) -> None:
        """Take an application out of the workers until it is asked for."""
        served = self._served[name]
        if name == self.leaving:
            self._stay()
        self._holdings.end_extras(lambda extra: extra.served is served)
        self._drops.forget(name)
        served.parked = served.on_demand = True
        self._holdings.vacate(served)

    def _bring(self, name: str) -> None:
        """Let the workers load an application, including workers that had no room, but not where it failed for good."""
        self._served[name].parked = False
        self._holdings.offer(name, anew=False)
        self._holdings.catalog()

    def nowhere_but_in_pipelines(self, routes: Iterable[Route]) -> bool:
        """Return whether all of these routes pass workers on which parameters are dropped."""
        pipelines = self._pipelines()
        return all(withheld(workers_of(route), pipelines) for route in routes)

    def _withhold(self) -> None:
        """Withhold loads on workers of pipelines, except of the dropped applications themselves.

        An application is withheld if other workers will have it or it is on demand; it loads once they are pipelines no
        more.
        """
        for worker in self._holdings.touched:
            if (group := self._holdings.group_of(worker)) is None:
                continue
            residency = self._residency[worker]
            for name in (one for one in residency.hops if one not in group.applications):
                if residency.lacks_replica(name) and (name == self.coming or self._elsewhere(name)):
                    residency.withhold(name, WITHHELD)
                    if name == self.coming:
                        self._lacks[worker] = None
                        self._ask()

    def _elsewhere(self, name: str) -> bool:
        """Return whether it belongs on live workers that are in no pipeline."""
        routes, workers = [planned.route for planned in self._served[name].planned], self._holdings.workers
        return not self.nowhere_but_in_pipelines(r for r in routes if all(workers[one].alive for one in workers_of(r)))

    def _dropped(self) -> set[str]:
        """Return the applications served by pipelines because their parameters are dropped."""
        return {name for group in self._holdings.groups.values() for name in group.applications}

    def _look_whether_all_fit(self) -> None:
        """Take loaded applications off demand loading if all fit together."""
        deployed = [one for one in self._served.values() if one.deployed]
        if any(one.on_demand for one in deployed) and all_fit((one.parked, one.in_force > 0) for one in deployed):
            for one in deployed:
                one.on_demand = False
            self._holdings.catalog()

    def _pipelines(self) -> list[Collection[str]]:
        return [group.workers for group in self._holdings.groups.values()]

    def _ended(self, name: str) -> bool:
        """Return whether it is loaded wherever it can be now. If it is loaded elsewhere, late loads are not waited for."""
        up = self._up(name)
        free = [p for p in up if not p.late]
        return bool(up) and all(map(is_known, free or up))

    def _up(self, name: str) -> list[PlannedRoute]:
        """Return its routes over workers that are up and have not failed to load it."""
        return [p for p in self._served[name].planned if all(self._can(name, hop.worker) for hop in p.route.hops)]

    def _can(self, name: str, worker: str) -> bool:
        """Return whether a worker is up and has not failed to load it.

        Lack of room, or a wait for parameters to be restored first, is no failure.
        """
        lacks, residency = name == self.coming and worker in self._lacks, self._residency[worker]
        failed = name in residency.refused and not lacks and not residency.waits(name)
        return self._holdings.workers[worker].alive and not failed

    def _end(self) -> None:
        self.coming = ""
        self._lacks = {}
        self._alone_since = None
        if self.leaving:
            self._stay()

    def _stay(self) -> None:
        """Stop emptying ``leaving``: it takes requests again."""
        self._holdings.table.resume("demand")
        self.leaving = ""

    def _ask(self) -> None:
        if self.coming and (self._lacking() or self._ended(self.coming)) and not self._asking:
            self._asking = True
            self._holdings.after.append(AskUsage())

    def _lacking(self) -> dict[str, int]:
        """Return the bytes lacking for parameters, by worker."""
        known = self._lacks.items()
        here = ((worker, one, self._residency[worker]) for worker, one in known)
        refused = [(worker, one) for worker, one, its in here if self.coming in its.refused and its.misses(self.coming)]
        return {worker: max(1, one.why.lacking) if one is not None else 1 for worker, one in refused}

    def _short(self, name: str, tokens: int) -> dict[str, int]:
        """Return the bytes lacking for a sequence, by worker, that other applications can free."""
        routes = [planned for planned in self._served[name].planned if planned.whole]
        rooms = [[hop.room(one.worker) for hop, one in zip(p.hops, p.route.hops, strict=True)] for p in routes]
        return lacking_bytes(tokens, rooms) or {}

    def _make_room(self, uses: Mapping[str, Use], now: float) -> None:
        """Advance ``coming`` by the usage at all gateways, given by application."""
        use, here = uses.get(self.coming, NOBODY), self._ended(self.coming)
        lacking = self._short(self.coming, use.waits) if here else self._lacking()
        match coming(use, here=here, lacks=bool(lacking)):
            case DemandState.SERVED:
                self._since[self.coming] = now
                self._changed = True
                planned = self._served[self.coming].planned
                self._holdings.let_come([worker for one in planned for worker in workers_of(one.route)])
                del self.wanted[self.coming]
                self._end()
            case DemandState.UNWANTED:
                del self.wanted[self.coming]
                self.park(self.coming)
                self._end()
            case DemandState.CROWDED:
                self._give_way(lacking, uses, now)
            case DemandState.WAITED_FOR:
                self._look_later()

    def _give_way(self, lacking: Mapping[str, int], uses: Mapping[str, Use], now: float) -> None:
        residents, those = [], {worker: self._residency[worker] for worker in lacking}
        kept = {worker: residency.wanted_parts(self.coming) for worker, residency in those.items()}
        dropped = self._dropped()
        for name, served in self._served.items():
            if name in (self.coming, self.leaving) or not any(name in residency.resident for residency in those.values()):
                continue
            parts = {worker: residency.parts(name) for worker, residency in those.items()}
            if served.here and served.shown:
                owned = {worker: residency.owned.get(name, 0) for worker, residency in those.items()}
                age = now - self._since.get(name, float("-inf"))
                residents.append(UnloadCandidate(name, uses.get(name, NOBODY), age, owned, parts, name in dropped))
            else:
                for worker in lacking:
                    kept[worker] |= parts[worker]  # parts of an addition
        offline = uses.get(self.coming, NOBODY).offline
        choice = choose(lacking, residents, now - self.wanted[self.coming].since, kept, offline=offline)
        for name in choice.unload:
            self.park(name)
        if choice.unload:
            self._try_again()
            return
        if choice.step_back:
            self._step_back()
            return
        if choice.drain and not self.leaving:
            self.leaving = choice.drain
            self._holdings.table.pause(self._served[choice.drain].planned, True, "demand")  # workers continue
            self._holdings.after.append(AwaitQuiet(choice.drain))
        self._alone = not residents and not self.leaving  # it was refused while plans of unloaded applications still ran
        if self._alone and not self._ended(self.coming) and not any(map(self._shared, lacking)):
            self._alone_since = now if self._alone_since is None else self._alone_since
            if in_vain(now - self._alone_since):
                self._give_up()
                return
        else:
            self._alone_since = None
        self._look_later()

    def _step_back(self) -> None:
        """Give up a load for offline requests only, since they must not hold up online ones; gateways will ask again."""
        name = self.coming
        del self.wanted[name]
        if not self._ended(name):
            self.park(name)
        self._end()

    def _shared(self, worker: str) -> bool:
        """Return whether something else is on a worker or being loaded there."""
        residency = self._residency[worker]
        loading = residency.loading.holder if residency.loading is not None else self.coming
        return not {loading, *residency.resident} <= {self.coming}

    def _give_up(self) -> None:
        """Fail ``coming`` for good: it has all the memory, and that is too little."""
        for lack in filter(None, [self._lacks[worker] for worker in self._lacking()]):
            self._given_up.append(LoadFailed(lack.worker, lack.incarnation, lack.load, lack.why.message, True))

    def take_given_up(self) -> list[LoadFailed]:
        """Return the loads that are given up for good since the last call."""
        given_up, self._given_up = self._given_up, []
        return given_up

    def _look_later(self) -> None:
        if not self._looking:
            self._looking = True
            self._holdings.after.append(RecheckLater(LOOK))

    def _try_again(self) -> None:
        self._lacks = {}
        if self.coming:
            self._bring(self.coming)
