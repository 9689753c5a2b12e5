"""Applications on demand: those that do not fit beside the others, which are loaded when they are asked for.

*Parked* is what is served and has nothing in any worker. One parked application comes at a time, that which was asked for
first; the workers say what memory it lacks, the gateways what is in use, and ``policies/cluster/demand.py`` who gives way.
What is here and has too little room for a sequence *comes* in the same way, until that has been sent. Owns who is asked for
and the swap under way; what follows for blocks and routes is ``state.py``'s.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from ...policies.cluster.demand import (
    Coming,
    Occupant,
    Use,
    all_fit,
    back_in_vain,
    choose,
    coming,
    in_vain,
    lacking_bytes,
    withheld,
)
from ...policies.model.chain import Route
from ...policies.requests.dispatch import workers_of
from .additions import is_known
from .controller_parts import ControllerParts
from .messages import (
    ApplicationsWanted,
    AskUse,
    AwaitQuiet,
    DemandEvent,
    LoadFailed,
    LoadRefused,
    LookAgain,
    LookLater,
    Quiet,
    Used,
)
from .residency import PlannedRoute

LOOK = 0.03  # seconds between looks at what is in use, while something waits for it
WITHHELD = "parameters are dropped there in a burst, and what they took is for KV"
NOBODY = Use(0, float("inf"))  # what is not in the answers of gateways was never used


@dataclass(frozen=True, slots=True)
class Want:
    """An application that was asked for: since when, and for how many tokens."""

    since: float
    tokens: int


class OnDemand:
    """See the module. ``state``: whose applications they are."""

    def __init__(self, state: ControllerParts) -> None:
        self._state, self._served, self._residency = state, state.served, state.residency
        self.wanted: dict[str, Want] = {}  # parked, coming, or without room for what waits, by application
        self.coming = ""  # is being made resident
        self.leaving = ""  # takes no new requests, so that it can be parked for ``coming``
        self._lacks: dict[str, LoadRefused | None] = {}  # worker -> why ``coming`` is not there; None: withheld
        self._since: dict[str, float] = {}  # application -> when it became resident, of those that were on demand
        self._asking = self._looking = False
        self._changed = False  # something was loaded, or is gone: perhaps everything fits now
        self._alone = False  # nobody is left to give way to ``coming``, which was refused all the same
        self._alone_since: float | None = None  # and since when

    def handle(self, event: DemandEvent, now: float) -> None:
        match event:
            case LoadRefused(worker, incarnation, _, _):
                if self._state.current(worker, incarnation):
                    self._refused(event, now)
            case ApplicationsWanted(applications):
                for name, tokens in applications.items():
                    self._want(name, tokens, now)
            case Used(uses):
                self._asking = False
                if self.coming:
                    self._make_room(uses, now)
            case Quiet(application) if application == self.leaving:
                self.park(application)
                self._try_again()
            case LookAgain():
                self._looking, again, self._alone = False, self._alone, False
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
            self.park(name)  # where it was loaded nobody is left
            self.wanted[name] = Want(now, tokens)
        elif served.parked or not self._ended(name) or self._short(name, tokens):
            self.wanted[name] = Want(now, tokens)

    def _refused(self, event: LoadRefused, now: float) -> None:
        """A worker has no room for an application: what was coming asks for some, others are on demand from now on."""
        load, why, residency = event.load, event.why, self._residency[event.worker]
        late = load.holder in residency.late and load.holder != self.coming
        if self._state.overload.refused(event, late=late):
            if not late and back_in_vain(self._state.overload.coming_back(load.holder, now)):
                self._come_back(event, now)
            return  # what comes back after a burst, or comes late, waits for room
        extra = residency.lacks(load.holder) and not residency.lacks_replica(load.holder)
        if not self._state.on_demand or why.never or extra or self._state.workers[event.worker].extra:
            self._state.news(LoadFailed(event.worker, event.incarnation, load, why.message, why.never))
            return
        residency.loading = None
        self._state.touched[event.worker] = None
        if load.holder == self.coming:
            residency.refuse(load.holder, why.message)
            self._lacks[event.worker], residency.owned = event, why.owned
            self._ask()
        elif load.holder in self._served:
            self.park(load.holder)

    def _come_back(self, event: LoadRefused, now: float) -> None:
        """Others give way to what is dropped and has no room to come back, as to what comes on demand; where nobody uses it,
        it is on demand itself. Until then its pipeline serves, and nothing more can be dropped."""
        name, residency = event.load.holder, self._residency[event.worker]
        if self._state.on_demand and not self.coming and residency.resident.keys() - {name}:
            self.wanted.setdefault(name, Want(now, 0))
            self.coming = name
        if name == self.coming:
            self._lacks[event.worker], residency.owned = event, event.why.owned
            self._ask()

    def look(self, now: float) -> None:
        """Whether what was coming is there, or can come no more; then the next one comes."""
        dropped = self._dropped()
        if self.coming in dropped and not self._lacking():
            self._end()  # it is loaded, and the memory that is dropped is for what waits for it
        for name, want in list(self.wanted.items()) if not self.coming else ():
            if name in self._served and self._served[name].parked:
                self._bring(name)
            elif name not in self._served or (self._ended(name) and not self._short(name, want.tokens)):
                del self.wanted[name]
                continue
            elif not self._ended(name) or name in dropped:
                continue  # its worker is down, was asked what is left, or is a part of a pipeline
            self.coming = name
            break
        self._withhold()
        if self.coming and self._ended(self.coming) and not self._looking:
            self._ask()
        if self._changed and not self.coming:
            self._changed = False
            self._look_whether_all_fit()

    def goes_on(self, name: str, failed: str) -> bool:
        """It comes, and still can elsewhere though worker ``failed`` cannot load it."""
        if name == self.coming:
            self._lacks.pop(failed, None)
        return name == self.coming and bool(self._up(name))

    def forget(self, name: str) -> None:
        """It is served no more, or cannot be loaded."""
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
        """Out of the workers until it is asked for."""
        served = self._served[name]
        if name == self.leaving:
            self._stay()
        self._state.end_extras(lambda extra: extra.served is served)
        self._state.overload.forget(name)
        served.parked = served.on_demand = True
        self._state.vacate(served)

    def _bring(self, name: str) -> None:
        """Let the workers load it, again where they had no room; not where it never has."""
        self._served[name].parked = False
        self._state.offer(name, anew=False)
        self._state.catalog()

    def nowhere_but_in_pipelines(self, routes: Iterable[Route]) -> bool:
        """All of these routes pass workers on which parameters are dropped."""
        pipelines = self._pipelines()
        return all(withheld(workers_of(route), pipelines) for route in routes)

    def _withhold(self) -> None:
        """On workers of pipelines nothing is loaded but what is dropped there, if other workers are to have it, or it is on
        demand; it comes once they are pipelines no more."""
        for worker in self._state.touched:
            if (group := self._state.overload.group_of(worker)) is None:
                continue
            residency = self._residency[worker]
            for name in (one for one in residency.hops if one not in group.applications):
                if residency.lacks_replica(name) and (name == self.coming or self._elsewhere(name)):
                    residency.withhold(name, WITHHELD)
                    if name == self.coming:
                        self._lacks[worker] = None
                        self._ask()

    def _elsewhere(self, name: str) -> bool:
        """It belongs on workers that live and are in no pipeline."""
        routes, workers = [planned.route for planned in self._served[name].planned], self._state.workers
        return not self.nowhere_but_in_pipelines(r for r in routes if all(workers[one].alive for one in workers_of(r)))

    def _dropped(self) -> set[str]:
        """Applications that are served by pipelines, as parameters of them are dropped."""
        return {name for group in self._state.overload.groups.values() for name in group.applications}

    def _look_whether_all_fit(self) -> None:
        """What is loaded and stays is no longer on demand."""
        deployed = [one for one in self._served.values() if one.deployed]
        if any(one.on_demand for one in deployed) and all_fit((one.parked, one.in_force > 0) for one in deployed):
            for one in deployed:
                one.on_demand = False
            self._state.catalog()

    def _pipelines(self) -> list[Collection[str]]:
        return [group.workers for group in self._state.overload.groups.values()]

    def _ended(self, name: str) -> bool:
        """It is wherever it can be now. Where it is loaded in another place, what comes late is not waited for."""
        up = self._up(name)
        free = [p for p in up if not p.late]
        return bool(up) and all(map(is_known, free or up))

    def _up(self, name: str) -> list[PlannedRoute]:
        """Its routes over workers that are up and have not failed to load it."""
        return [p for p in self._served[name].planned if all(self._can(name, hop.worker) for hop in p.route.hops)]

    def _can(self, name: str, worker: str) -> bool:
        """Who lacks room for it, or waits for parameters to be back before it comes, has not failed."""
        lacks, residency = name == self.coming and worker in self._lacks, self._residency[worker]
        failed = name in residency.refused and not lacks and not residency.waits(name)
        return self._state.workers[worker].alive and not failed

    def _end(self) -> None:
        self.coming, self._lacks, self._alone_since = "", {}, None
        if self.leaving:
            self._stay()

    def _stay(self) -> None:
        """Nobody waits any more for what was leaving to be quiet."""
        self._state.table.resume("demand")
        self.leaving = ""

    def _ask(self) -> None:
        if self.coming and (self._lacking() or self._ended(self.coming)) and not self._asking:
            self._asking = True
            self._state.after.append(AskUse())

    def _lacking(self) -> dict[str, int]:
        """Bytes for parameters, by worker."""
        known = self._lacks.items()
        here = ((worker, one, self._residency[worker]) for worker, one in known)
        refused = [(worker, one) for worker, one, its in here if self.coming in its.refused and its.misses(self.coming)]
        return {worker: max(1, one.why.lacking) if one is not None else 1 for worker, one in refused}

    def _short(self, name: str, tokens: int) -> dict[str, int]:
        """Bytes for a sequence, by worker, that others can make free."""
        routes = [planned for planned in self._served[name].planned if planned.whole]
        rooms = [[hop.room(one.worker) for hop, one in zip(p.hops, p.route.hops, strict=True)] for p in routes]
        return lacking_bytes(tokens, rooms) or {}

    def _make_room(self, uses: Mapping[str, Use], now: float) -> None:
        """``uses``: of all gateways, by application."""
        use, here = uses.get(self.coming, NOBODY), self._ended(self.coming)
        lacking = self._short(self.coming, use.waits) if here else self._lacking()
        match coming(use, here=here, lacks=bool(lacking)):
            case Coming.SERVED:
                self._since[self.coming] = now
                self._changed = True
                planned = self._served[self.coming].planned
                self._state.overload.let_come([worker for one in planned for worker in workers_of(one.route)])
                del self.wanted[self.coming]
                self._end()
            case Coming.UNWANTED:
                del self.wanted[self.coming]
                self.park(self.coming)
                self._end()
            case Coming.CROWDED:
                self._give_way(lacking, uses, now)
            case Coming.WAITED_FOR:
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
                residents.append(Occupant(name, uses.get(name, NOBODY), age, owned, parts, name in dropped))
            else:
                for worker in lacking:
                    kept[worker] |= parts[worker]  # of what is being added
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
            self._state.table.pause(self._served[choice.drain].planned, True, "demand")  # workers go on
            self._state.after.append(AwaitQuiet(choice.drain))
        self._alone = not residents and not self.leaving  # it was refused while plans of those that went had not ended
        if self._alone and not self._ended(self.coming) and not any(map(self._shared, lacking)):
            self._alone_since = now if self._alone_since is None else self._alone_since
            if in_vain(now - self._alone_since):
                self._give_up()
                return
        else:
            self._alone_since = None
        self._look_later()

    def _step_back(self) -> None:
        """Offline requests hold nobody up who waits for what others use; gateways ask for them again."""
        name = self.coming
        del self.wanted[name]
        if not self._ended(name):
            self.park(name)
        self._end()

    def _shared(self, worker: str) -> bool:
        """Something else is there, or on its way."""
        residency = self._residency[worker]
        loading = residency.loading.holder if residency.loading is not None else self.coming
        return not {loading, *residency.resident} <= {self.coming}

    def _give_up(self) -> None:
        """It has all the memory, and that is too little."""
        for told in filter(None, [self._lacks[worker] for worker in self._lacking()]):
            self._state.news(LoadFailed(told.worker, told.incarnation, told.load, told.why.message, True))

    def _look_later(self) -> None:
        if not self._looking:
            self._looking = True
            self._state.after.append(LookLater(LOOK))

    def _try_again(self) -> None:
        self._lacks = {}
        if self.coming:
            self._bring(self.coming)
