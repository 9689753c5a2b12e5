"""Applications on demand: models that do not fit beside the others and load when requests ask for them.

A *parked* application is served but in no worker's memory. One parked application is loaded at a time, in the order they
were asked for. Workers report the memory it lacks, gateways report the usage, and ``policies/cluster/demand.py`` chooses
the applications to unload. A loaded application with too little room for a waiting sequence is treated the same way, until
that sequence has been sent. An application that has served is parked, too, if a restarted worker has no room for it. Then
it is loaded again without a request once there is room, and nothing gives way for it.
A variant neither owns what it borrows nor uses it: when its donor goes, it goes, and its requests go on elsewhere or wait.
Claims the components of what is loaded on demand, their turn before others, a pause of what is being emptied, and workers
without variants. Owns the requested applications and the swap in progress.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from ..cluster.demand import (
    DemandState,
    UnloadCandidate,
    UnloadDecision,
    Use,
    all_fit,
    choose,
    coming,
    in_vain,
    lacking_bytes,
)
from ..requests.dispatch import workers_of
from .claims import (
    Change,
    Claim,
    Claimant,
    ClaimKind,
    Defer,
    Describe,
    LetCome,
    NoteFailure,
    NoteRefusal,
    TryAgain,
    Withdrawal,
)
from .events import (
    AllFit,
    ApplicationsWanted,
    AskUsage,
    AwaitQuiet,
    Event,
    HeadChanged,
    LoadFailed,
    LoadRefused,
    NoWayBack,
    Park,
    Quiet,
    Recheck,
    RecheckLater,
    Remove,
    Undeploy,
    UsageAnswer,
)
from .holdings import Holdings
from .party import Conclusions, Party
from .residency import PlannedRoute

LOOK = 0.03  # seconds between checks of usage while something waits for it
NOBODY = Use(0, float("inf"))  # an application missing in the answers was never used
ASKED_FOR = "requests asked for it"
RETURN = 1.0  # seconds until an application that served before is loaded again; doubled with each try
RETURNS = 8  # most tries; later only requests bring it


@dataclass(frozen=True, slots=True)
class WantedApplication:
    """A requested application: since when, and for how many tokens."""

    since: float
    tokens: int


class OnDemand(Party):
    """The applications on demand of one cluster (see the module)."""

    def __init__(self) -> None:
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
        self._paused: tuple[str, ...] = ()  # routes of ``leaving``
        self._unvaried: tuple[str, ...] = ()  # workers without variants until ``coming`` is loaded
        self._returning: dict[str, int] = {}  # application that served before a worker lacked room -> tries to load it

    def handle(self, event: Event, view: Holdings, now: float) -> Conclusions:
        match event:
            case ApplicationsWanted(applications):
                for name, tokens in applications.items():
                    yield from self._want(name, tokens, view, now)
            case UsageAnswer(uses):
                self._asking = False
                if self.coming:
                    yield from self._make_room(uses, view, now)
            case HeadChanged():
                yield from self._ask_again()
            case Quiet(name) if name == self.leaving:
                yield from self._park(name)
                yield from self._try_again(view)
            case Recheck("", ""):
                self._looking = False
                again = self._alone
                self._alone = False
                yield from self._try_again(view) if again else self._ask(view)
            case Recheck("", name):
                yield from self._return(name, view, now)
            case Park(name):
                yield Describe(name, on_demand=True)
                yield Withdrawal(Claimant.DEMAND, ClaimKind.WANTED, (name,))
            case Undeploy(name) | Remove(name) if name in view.served:
                yield from self._forget(name)
            case LoadRefused(worker, _, load) if not view.restores(worker, load.holder):
                yield from self._refused(event, view)
            case LoadFailed(worker, _, load) if load.holder in view.served and view.served[load.holder].shown:
                yield from self._failed(worker, load.holder, view)
            case NoWayBack(refused):
                yield from self._come_back(refused, view, now)

    def _ask_again(self) -> Conclusions:
        """Ask what the head before has asked without an answer."""
        if self._asking:
            yield AskUsage()
        if self._looking:
            yield RecheckLater(LOOK)
        if self.leaving:
            yield AwaitQuiet(self.leaving)
        for name, tries in list(self._returning.items()):
            yield from self._return_later(name, tries - 1)

    def _want(self, name: str, tokens: int, view: Holdings, now: float) -> Conclusions:
        served, known = view.served.get(name), self.wanted.get(name)
        if known is not None:
            self.wanted[name] = replace(known, tokens=max(tokens, known.tokens))
        elif served is None or not served.deployed or (served.failure is not None and served.failure.final):
            return
        elif any(one.late for one in served.planned) and not any(one.whole for one in served.planned):
            yield from self._park(name)  # no worker that had it loaded is left
            self.wanted[name] = WantedApplication(now, tokens)
        elif served.parked or not self._ended(name, view) or self._short(name, tokens, view):
            self.wanted[name] = WantedApplication(now, tokens)

    # loads that do not fit -------------------------------------------------------------------------------------------

    def _refused(self, event: LoadRefused, view: Holdings) -> Conclusions:
        """Handle a worker's lack of room: ``coming`` asks for some; other applications are on demand from now on."""
        worker, name = event.worker, event.load.holder
        why = event.why
        residency = view.residency[worker]
        extra = residency.lacks(name) and not residency.lacks_replica(name)
        if not view.on_demand or why.never or extra or view.workers[worker].extra:
            yield LoadFailed(worker, event.incarnation, event.load, why.message, why.never)  # no room is to be made
        elif name == self.coming:
            yield NoteRefusal(worker, name, why.message, why.owned)
            self._lacks[worker] = event
            yield from self._ask(view, lacking=residency.misses(name))
        elif (served := view.served.get(name)) is not None and served.deployed and not served.variant:
            if served.ever_ready and not served.on_demand:
                yield from self._return_later(name, 0)
            yield from self._park(name)

    def _return_later(self, name: str, tries: int) -> Conclusions:
        """Let an application that has served be loaded again later, unless it was tried often enough."""
        if tries < RETURNS:
            self._returning[name] = tries + 1
            yield RecheckLater(RETURN * 2**tries, "", name)

    def _return(self, name: str, view: Holdings, now: float) -> Conclusions:
        """Load an application that has served before, if there is room and nothing else is loaded on demand.

        Nothing gives way for it, since no request asks for it.
        """
        tries, served = self._returning.pop(name, 0), view.served.get(name)
        if not tries or served is None or not (served.parked or name == self.coming):
            return  # it is gone, or requests have brought it
        yield from self._return_later(name, tries)
        if not (self.coming or self.wanted) and view.placement.has_room(served.application):
            self.wanted[name] = WantedApplication(now, 0)

    def _come_back(self, event: LoadRefused, view: Holdings, now: float) -> Conclusions:
        """Make other applications give way to dropped parameters that have no room to return, as for one on demand.

        If no request uses the application, it becomes on demand itself. Until then its pipeline serves, and nothing more
        can be dropped.
        """
        worker, name = event.worker, event.load.holder
        if view.on_demand and not self.coming and view.residency[worker].resident.keys() - {name}:
            self.wanted.setdefault(name, WantedApplication(now, 0))
            yield self._come(name)
        if name == self.coming:
            self._lacks[worker] = event
            yield NoteRefusal(worker, name, event.why.message, event.why.owned)
            yield from self._ask(view)

    def _failed(self, worker: str, name: str, view: Holdings) -> Conclusions:
        """Let an application load elsewhere that a worker cannot load, or find that it can load nowhere."""
        if name == self.coming:
            self._lacks.pop(worker, None)
            if self._up(name, view):
                return
        yield from self._forget(name)
        if (blocked := view.blocked(name)) is not None:
            yield NoteFailure(name, *blocked)
            if view.served[name].on_demand:
                yield from self._park(name)

    def _forget(self, name: str) -> Iterator[Change]:
        """Forget an application that is no longer served or cannot be loaded."""
        self._changed = True
        self.wanted.pop(name, None)
        self._since.pop(name, None)
        self._returning.pop(name, None)
        if name == self.coming:
            yield from self._end()
        elif name == self.leaving:
            yield self._stay()

    def check(self, view: Holdings) -> None:
        """Raise AssertionError when an invariant is broken, or a claim has no reason any more."""
        assert not self.coming or not view.served[self.coming].parked
        assert not self.leaving or (self.coming and not view.served[self.leaving].parked)
        assert not self.coming or self.coming in self.wanted
        assert view.urgent == self.coming, "an application is urgent without being loaded"
        assert self.coming or not view.claims.of(ClaimKind.UNVARIED, Claimant.DEMAND), "variants stay away for no load"
        for name in view.claims.of(ClaimKind.WANTED, Claimant.DEMAND):
            assert view.served[name].on_demand, f"{name} is claimed on demand and is not on demand"
        leaving = view.served[self.leaving].planned if self.leaving else ()
        paused = view.claims.of(ClaimKind.PAUSED, Claimant.DEMAND)
        assert {*paused} <= {one.route.id for one in leaving}, "routes are paused for a swap that is over"

    # claims ----------------------------------------------------------------------------------------------------------

    def _park(self, name: str) -> Conclusions:
        """Take an application out of the workers until it is asked for."""
        if name == self.leaving:
            yield self._stay()
        yield Park(name)

    def _bring(self, name: str, view: Holdings) -> Change:
        """Let the workers load an application, including workers that had no room, but not where it failed for good."""
        parked = view.served[name].parked
        return Claim(Claimant.DEMAND, ClaimKind.WANTED, (name,), ASKED_FOR) if parked else TryAgain(name)

    def _come(self, name: str) -> Change:
        self.coming = name
        return Claim(Claimant.DEMAND, ClaimKind.URGENT, (name,), ASKED_FOR)

    def _end(self) -> Iterator[Change]:
        """End the load in progress."""
        yield Withdrawal(Claimant.DEMAND, ClaimKind.URGENT, (self.coming,))
        self.coming = ""
        self._lacks = {}
        self._alone_since = None
        if self._unvaried:
            yield Withdrawal(Claimant.DEMAND, ClaimKind.UNVARIED, self._unvaried)
            self._unvaried = ()
        if self.leaving:
            yield self._stay()

    def _leave(self, name: str, view: Holdings) -> Change:
        """Begin to empty an application; workers continue."""
        self.leaving = name
        self._paused = tuple(one.route.id for one in view.served[name].planned)
        return Claim(Claimant.DEMAND, ClaimKind.PAUSED, self._paused, "it gives way to a model on demand")

    def _stay(self) -> Change:
        """Stop emptying ``leaving``: it takes requests again."""
        self.leaving = ""
        return Withdrawal(Claimant.DEMAND, ClaimKind.PAUSED, self._paused)

    def _try_again(self, view: Holdings) -> Conclusions:
        self._lacks = {}
        if self.coming:
            yield self._bring(self.coming, view)

    # the order of loads ----------------------------------------------------------------------------------------------

    def settle(self, view: Holdings, now: float) -> Conclusions:
        """Check whether ``coming`` has loaded or cannot load any more; then start the next one."""
        if not (view.changed or self.coming or self.wanted or self._changed):
            return
        dropped = {one.route.application for one in view.pipelines}
        if self.coming in dropped and not self._lacking(view):
            yield from self._end()  # it is loaded; dropped memory is for the requests waiting for it
        for name, want in list(self.wanted.items()) if not self.coming else ():
            if name not in view.served or (
                not view.served[name].parked and self._ended(name, view) and not self._short(name, want.tokens, view)
            ):
                del self.wanted[name]
            elif view.served[name].parked:
                yield self._come(name)
                yield self._bring(name, view)
                return  # asked again when it is claimed
            elif self._ended(name, view) and name not in dropped:
                yield self._come(name)
                break  # else its worker is down or was asked for its room, or it is in a pipeline
        if deferred := list(self._defer(view)):
            yield from deferred
            if any(one.application == self.coming for one in deferred):
                yield from self._ask(view, lacking=True)
        else:
            yield from self._look(view)

    def _look(self, view: Holdings) -> Conclusions:
        """Ask for the usage when it decides; see whether all fit when nothing is to be loaded."""
        if self.coming and self._ended(self.coming, view) and not self._looking:
            yield from self._ask(view)
        if self._changed and not self.coming:
            self._changed = False
            yield from self._look_whether_all_fit(view)

    def _defer(self, view: Holdings) -> Iterator[Defer]:
        """Defer loads on workers of pipelines, except of the dropped applications themselves.

        An application is deferred if other workers will have it or it is on demand; it loads once they are pipelines no
        more.
        """
        for worker in view.changed if view.pipelines else ():
            if not (dropped := view.dropped_on(worker)):
                continue
            residency = view.residency[worker]
            for name in (one for one in residency.hops if one not in dropped):
                if residency.lacks_replica(name) and (name == self.coming or self._elsewhere(name, view)):
                    yield Defer(worker, name)
                    if name == self.coming:
                        self._lacks[worker] = None

    def _elsewhere(self, name: str, view: Holdings) -> bool:
        """Return whether it belongs on live workers that are in no pipeline."""
        routes = [workers_of(planned.route) for planned in view.served[name].planned]
        up = [workers for workers in routes if all(view.workers[one].alive for one in workers)]
        return any(not any(view.dropped_on(one) for one in workers) for workers in up)

    def _look_whether_all_fit(self, view: Holdings) -> Conclusions:
        """Take loaded applications off demand loading if all fit together."""
        deployed = [one for one in view.served.values() if one.deployed and not one.variant]  # these follow the others
        those = [one.application.name for one in deployed if one.on_demand]
        if those and all_fit((one.parked, one.in_force > 0) for one in deployed):
            yield AllFit(tuple(those))
            for name in those:
                yield Describe(name, on_demand=False)
            yield Withdrawal(Claimant.DEMAND, ClaimKind.WANTED, tuple(those))

    # what is there ---------------------------------------------------------------------------------------------------

    def _ended(self, name: str, view: Holdings) -> bool:
        """Return whether it is loaded wherever it can be now. If it is loaded elsewhere, late loads are not waited for."""
        up = self._up(name, view)
        free = [p for p in up if not p.late]
        return bool(up) and all(one.known for one in free or up)

    def _up(self, name: str, view: Holdings) -> list[PlannedRoute]:
        """Return its routes over workers that are up and have not failed to load it."""
        return [p for p in view.served[name].planned if all(self._can(name, hop.worker, view) for hop in p.route.hops)]

    def _can(self, name: str, worker: str, view: Holdings) -> bool:
        """Return whether a worker is up and has not failed to load it.

        Lack of room, or a wait for parameters to be restored first, is no failure.
        """
        lacks, residency = name == self.coming and worker in self._lacks, view.residency[worker]
        failed = name in residency.refused and not lacks and not residency.waits(name)
        return view.workers[worker].alive and not failed

    def _ask(self, view: Holdings, *, lacking: bool = False) -> Iterator[AskUsage]:
        """Ask for the usage if it decides what is done next. ``lacking``: a worker has just refused ``coming``."""
        if self.coming and (lacking or self._lacking(view) or self._ended(self.coming, view)) and not self._asking:
            self._asking = True
            yield AskUsage()

    def _lacking(self, view: Holdings) -> dict[str, int]:
        """Return the bytes lacking for parameters, by worker."""
        known = self._lacks.items()
        here = ((worker, one, view.residency[worker]) for worker, one in known)
        refused = [(worker, one) for worker, one, its in here if self.coming in its.refused and its.misses(self.coming)]
        return {worker: max(1, one.why.lacking) if one is not None else 1 for worker, one in refused}

    def _short(self, name: str, tokens: int, view: Holdings) -> dict[str, int]:
        """Return the bytes lacking for a sequence, by worker, that other applications can free."""
        routes = [planned for planned in view.served[name].planned if planned.whole]
        rooms = [[hop.room(one.worker) for hop, one in zip(p.hops, p.route.hops, strict=True)] for p in routes]
        return lacking_bytes(tokens, rooms) or {}

    # who gives way ---------------------------------------------------------------------------------------------------

    def _make_room(self, uses: Mapping[str, Use], view: Holdings, now: float) -> Conclusions:
        """Advance ``coming`` by the usage at all gateways, given by application."""
        name = self.coming
        use, here = uses.get(name, NOBODY), self._ended(name, view)
        lacking = self._short(name, use.waits, view) if here else self._lacking(view)
        match coming(use, here=here, lacks=bool(lacking)):
            case DemandState.SERVED:
                self._since[name] = now
                self._changed = True
                yield LetCome(tuple(worker for one in view.served[name].planned for worker in workers_of(one.route)))
                del self.wanted[name]
                yield from self._end()
            case DemandState.UNWANTED:
                del self.wanted[name]
                yield from self._park(name)
                yield from self._end()
            case DemandState.CROWDED:
                yield from self._give_way(lacking, uses, view, now, here=here)
            case DemandState.WAITED_FOR:
                yield from self._look_later()

    def _give_way(
        self, lacking: Mapping[str, int], uses: Mapping[str, Use], view: Holdings, now: float, *, here: bool
    ) -> Conclusions:
        """Have others give way: unused applications, then variants, whose requests hold memory, then a used application.

        here: ``coming`` is loaded, and lacks room for a sequence.
        """
        residents, choice = self._choice(lacking, uses, view, now)
        for name in choice.unload:
            yield from self._park(name)
        if choice.unload:
            yield from self._try_again(view)
            return
        if choice.step_back:
            yield from self._step_back(view)
            return
        if not here and (varied := self._varied(lacking, view)):
            self._unvaried += varied
            yield Claim(
                Claimant.DEMAND, ClaimKind.UNVARIED, varied, "a model on demand lacks room, and nothing unused is left"
            )
            yield from self._try_again(view)
            return
        if choice.drain and not self.leaving:
            yield self._leave(choice.drain, view)
            yield AwaitQuiet(choice.drain)
        self._alone = not residents and not self.leaving  # it was refused while plans of unloaded applications still ran
        if self._alone and not self._ended(self.coming, view) and not any(self._shared(one, view) for one in lacking):
            self._alone_since = now if self._alone_since is None else self._alone_since
            if in_vain(now - self._alone_since):
                yield from self._give_up(view)
                return
        else:
            self._alone_since = None
        yield from self._look_later()

    def _varied(self, workers: Iterable[str], view: Holdings) -> tuple[str, ...]:
        """Return the workers on which variants serve. These end before the load waits for requests, perhaps for theirs."""
        on = [worker for worker in workers if not view.claims.on(ClaimKind.UNVARIED, worker)]
        return tuple(one for one in on if any(view.served[name].variant for name in view.residency[one].resident))

    def _choice(
        self, lacking: Mapping[str, int], uses: Mapping[str, Use], view: Holdings, now: float
    ) -> tuple[list[UnloadCandidate], UnloadDecision]:
        """Return the applications that could give way, and which of them do."""
        residents, those = [], {worker: view.residency[worker] for worker in lacking}
        kept = {worker: residency.wanted_parts(self.coming) for worker, residency in those.items()}
        dropped = {one.route.application for one in view.pipelines}
        for name, served in view.served.items():
            if served.variant:
                continue  # it goes with what it borrows
            if name in (self.coming, self.leaving) or not any(name in residency.resident for residency in those.values()):
                continue
            parts = {worker: residency.parts(name) for worker, residency in those.items()}
            if served.wanted and served.shown:
                owned = {worker: residency.owned.get(name, 0) for worker, residency in those.items()}
                age = now - self._since.get(name, float("-inf"))
                residents.append(UnloadCandidate(name, uses.get(name, NOBODY), age, owned, parts, name in dropped))
            else:
                for worker in lacking:
                    kept[worker] |= parts[worker]  # parts of an addition
        offline = uses.get(self.coming, NOBODY).offline
        waited = now - self.wanted[self.coming].since
        return residents, choose(lacking, residents, waited, kept, offline=offline)

    def _step_back(self, view: Holdings) -> Conclusions:
        """Give up a load for offline requests only, since they must not hold up online ones; gateways will ask again."""
        name = self.coming
        del self.wanted[name]
        if not self._ended(name, view):
            yield from self._park(name)
        yield from self._end()

    def _shared(self, worker: str, view: Holdings) -> bool:
        """Return whether something else is on a worker or being loaded there."""
        residency = view.residency[worker]
        loading = residency.loading.holder if residency.loading is not None else self.coming
        there = {loading, *residency.resident} - {self.coming}
        return any(name not in view.served or not view.served[name].variant for name in there)

    def _give_up(self, view: Holdings) -> Iterator[LoadFailed]:
        """NoteFailure ``coming`` for good: it has all the memory, and that is too little."""
        for lack in filter(None, [self._lacks[worker] for worker in self._lacking(view)]):
            yield LoadFailed(lack.worker, lack.incarnation, lack.load, lack.why.message, True)

    def _look_later(self) -> Iterator[RecheckLater]:
        if not self._looking:
            self._looking = True
            yield RecheckLater(LOOK)
