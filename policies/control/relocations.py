"""Relocations: routes that follow the traffic, so that activations cross from worker to worker as little as possible.

Workers count what passes. When a window is over and the order of the pairs of blocks with most traffic is another one, or
more crosses than at the last look, ``policies/cluster/relocation.py`` decides whether other routes save more than they
cost. They begin one after the other: a new route is claimed beside what serves; once it is whole, gateways move requests
from the old one, which runs until they have left; only then it ends. Whatever fails, the old routes serve, and it is
tried again later. Nothing is relocated while workers die or load, parameters are dropped, or a model is on demand, and no
route is that another party claims: what an operator spread as a pipeline stays, and so do copies. Owns the counts of
traffic and the steps to go.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ..cluster.assignment import WorkerCapacity, page_of
from ..cluster.relocation import FEW, Hops, RelocatableChains, Relocation, relocate
from ..cluster.traffic import UNMEASURED, LinkCost, crossing_seconds, top_pairs
from ..model.chain import Component, Hop, Route
from ..requests.dispatch import workers_of
from .claims import Claim, Claimant, ClaimKind, PlanRoutes, TryAgain, Withdrawal
from .drop_events import DropParameters, RoutesLeft
from .events import (
    DrainWorker,
    Event,
    HeadChanged,
    LoadFailed,
    Park,
    Remove,
    Rerouted,
    Retire,
    TrafficCounted,
    Undeploy,
    WorkerDown,
    WorkerLeaves,
)
from .holdings import Holdings
from .party import Conclusions, Party
from .residency import Served
from .route_switch import SwitchRoutes
from .traffic_counts import TrafficCounts

EVERY = 5.0  # seconds between two reports of a worker, at most
MOST_PAUSED = 32  # windows without a look after relocations that were given up, each twice as many as before
MORE = 1.5  # times what crossed when nothing better was found: it is worth another look
WHY = "activations cross less between workers there"
LEAVES = "its requests move to a route on which activations cross less"


class RelocationStage(StrEnum):
    """The progress of a step."""

    LOADING = "loading"
    LEAVING = "leaving"  # gateways take requests off the old routes


@dataclass(frozen=True, slots=True)
class OpenStep:
    """A step that has begun. number: of the order to gateways; 0: none yet."""

    application: str
    begun: tuple[str, ...]  # ids of new routes
    ended: tuple[str, ...]  # ids of routes that end
    stage: RelocationStage = RelocationStage.LOADING
    number: int = 0


@dataclass(frozen=True, slots=True)
class RelocationPlanned:
    """A decision to relocate, as shown to people. Seconds of transfers in a window, and of loading and moving."""

    at: float
    steps: int
    saved: float
    cost: float


class Relocations(Party):
    """The relocations of one cluster (see the module). window: seconds of traffic that a look is about; 0: none is made."""

    def __init__(self, window: float, link: LinkCost = UNMEASURED) -> None:
        self.window, self.link = window, link
        self.traffic = TrafficCounts()
        self.step: OpenStep | None = None
        self.last: RelocationPlanned | None = None
        self.counts = {"planned": 0, "done": 0, "given_up": 0}  # plans, and steps
        self._left: tuple[Relocation, ...] = ()  # steps to go
        self._since: float | None = None  # when the window began
        self._order: tuple[tuple[str, ...], ...] = ()  # of the pairs with most traffic, at the last look
        self._enough = 0.0  # seconds that must cross until the same order is worth another look
        self._given_up = 0  # relocations since the last one that was done
        self._paused = 0  # windows without a look, since relocations were given up
        self._route = 0  # number of the last new route
        self._number = 0  # number of the last order to gateways, counted downwards: drops of parameters count upwards

    def handle(self, event: Event, view: Holdings, now: float) -> Conclusions:
        match event:
            case TrafficCounted(worker, incarnation) if view.current(worker, incarnation):
                self.traffic.take(event)
                return self._look(view, now)
            case HeadChanged() if self.step is not None and self.step.stage is RelocationStage.LEAVING:
                return (self._order_to(self.step, view),)
            case RoutesLeft(number) if self.step is not None and number == self.step.number:
                return self._finish(self.step)
            case Remove(name):
                self.traffic.forget(name)
                return self._give_up_of(name)
            case Undeploy(name) | Park(name) | Retire(name):
                return self._give_up_of(name)
            case LoadFailed(worker, _, load) if self._loads(load.holder, worker, view):
                return (*self._give_up(), TryAgain(load.holder, worker))
            case WorkerDown(worker) | DrainWorker(worker, True) | WorkerLeaves(worker):
                return self._give_up_on((worker,), view)
            case DropParameters(_, hops):
                return self._give_up_on([hop.worker for hop in hops], view, also_old=True)
        return ()

    @property
    def every(self) -> float:
        """The seconds between two reports of a worker that count."""
        return min(EVERY, self.window / 4) if self.window else EVERY

    # when ------------------------------------------------------------------------------------------------------------

    def _look(self, view: Holdings, now: float) -> Conclusions:
        """Look at the traffic of a window that is over."""
        self._since = now if self._since is None else self._since
        if not self.window or now - self._since < self.window:
            return
        self._since = now
        self.traffic.retain({*view.workers})
        passages = self.traffic.passages()
        self.traffic.begin_window()
        if self._paused:
            self._paused -= 1
            return
        if self.step is not None or self._left or not _rests(view):
            return
        chains = {name: one.application for name, one in view.served.items() if one.deployed}
        order = top_pairs(passages, chains)
        seconds = crossing_seconds(passages, chains, self.link)
        crossed = sum([_crossed(view.served[name], those) for name, those in seconds.items()])
        if not crossed or (order == self._order and crossed <= self._enough):
            return
        self._order, self._enough = order, MORE * crossed
        moving = _moving(view, seconds)
        if not moving or (zoo := _zoo(view, seconds, moving)) is None:
            return
        plan = relocate(zoo, {name: [one.route.hops for one in view.served[name].planned] for name in moving})
        if plan is not None and not plan.worth:
            self._enough = crossed * plan.cost / plan.saved
        elif plan is not None:
            self.counts["planned"] += 1
            self.last = RelocationPlanned(now, len(plan.steps), plan.saved, plan.cost)
            self._left = plan.steps
            yield from self._begin(view)

    # steps -----------------------------------------------------------------------------------------------------------

    def _begin(self, view: Holdings) -> Conclusions:
        """Begin the next step, if all is as it was when it was planned."""
        step, self._left = self._left[0], self._left[1:]
        served = view.served.get(step.application)
        there = {} if served is None else {one.route.hops: one.route.id for one in served.planned}
        if not (_rests(view) and there.keys() >= {*step.end} and step.application in _movable(view)):
            self._left = ()
            return
        begun = tuple(self._new(step.application, hops) for hops in step.begin)
        self.step = OpenStep(step.application, tuple(one.id for one in begun), tuple(there[hops] for hops in step.end))
        if begun:
            yield PlanRoutes(Claimant.RELOCATIONS, WHY, begun, beside=True)

    def _new(self, name: str, hops: Hops) -> Route:
        self._route += 1
        return Route(f"{name}@{'+'.join(hop.worker for hop in hops)}#t{self._route}", 0, name, hops)

    def settle(self, view: Holdings, now: float) -> Conclusions:
        """Let requests leave the old routes once the new ones are whole; begin the next step once one is done."""
        if self.step is None:
            if self._left:
                yield from self._begin(view)
            return
        step = self.step
        if any(id not in view.plan for id in (*step.begun, *step.ended)):  # a worker is gone for good
            yield from self._give_up()
        elif step.stage is RelocationStage.LOADING and all(view.plan[id].whole for id in step.begun):
            self._number -= 1
            self.step = OpenStep(step.application, step.begun, step.ended, RelocationStage.LEAVING, self._number)
            yield Claim(Claimant.RELOCATIONS, ClaimKind.PAUSED, step.ended, LEAVES)
            yield self._order_to(self.step, view)

    def _order_to(self, step: OpenStep, view: Holdings) -> SwitchRoutes:
        """Return the order to gateways to leave the old routes of a step."""
        to = [one.route.id for one in view.served[step.application].planned if one.route.id not in step.ended]
        return SwitchRoutes(step.number, [*step.ended], to, dropped=False)

    def _finish(self, step: OpenStep) -> Conclusions:
        """End the old routes: no request is there any more."""
        self.step = None
        self._given_up = 0
        self.counts["done"] += 1
        yield Rerouted(step.application, step.ended, step.begun)
        yield Withdrawal(Claimant.RELOCATIONS, ClaimKind.PLANNED, step.begun)
        yield Withdrawal(Claimant.RELOCATIONS, ClaimKind.PAUSED, step.ended)

    # what goes wrong -------------------------------------------------------------------------------------------------

    def _loads(self, name: str, worker: str, view: Holdings) -> bool:
        """Return whether the step in progress loads an application on a worker."""
        step = self.step
        if step is None or step.application != name:
            return False
        return any(view.plan[id].is_on(worker) for id in step.begun if id in view.plan)

    def _give_up_of(self, name: str) -> Conclusions:
        """Give up what concerns an application that is served no more, or not as it was."""
        if (self.step is not None and self.step.application == name) or any(one.application == name for one in self._left):
            return self._give_up()
        return ()

    def _give_up_on(self, workers: Collection[str], view: Holdings, *, also_old: bool = False) -> Conclusions:
        """Give up new routes over workers; also_old: or over the ones of old routes."""
        ids = () if self.step is None else (*self.step.begun, *(self.step.ended if also_old else ()))
        here = {worker for id in ids if id in view.plan for worker in workers_of(view.plan[id].route)}
        ahead = {hop.worker for one in self._left for hops in one.begin for hop in hops}
        return () if here.isdisjoint(workers) and ahead.isdisjoint(workers) else self._give_up()

    def _give_up(self) -> Conclusions:
        """End the new routes; the old ones take requests again."""
        step, self.step = self.step, None
        self._left = ()
        if step is not None:
            self.counts["given_up"] += 1
            self._order = ()  # it may succeed another time
            self._given_up += 1
            self._paused = min(2**self._given_up, MOST_PAUSED)
            yield Withdrawal(Claimant.RELOCATIONS, ClaimKind.PLANNED, step.begun)
            yield Withdrawal(Claimant.RELOCATIONS, ClaimKind.PAUSED, step.ended)

    def check(self, view: Holdings) -> None:
        """Raise AssertionError when an invariant is broken, or a claim has no reason any more."""
        step = self.step
        begun = () if step is None else step.begun
        paused = () if step is None or not step.number else step.ended
        assert {*view.claims.of(ClaimKind.PLANNED, Claimant.RELOCATIONS)} == {*begun}, "a route of no relocation"
        assert {*view.claims.of(ClaimKind.PAUSED, Claimant.RELOCATIONS)} == {*paused}, "a route is paused for no relocation"
        assert step is None or {*step.ended} <= view.plan.keys(), "a route that a relocation replaces is gone"


def _rests(view: Holdings) -> bool:
    """Return whether nothing else changes what is loaded."""
    return not view.pipelines and all(
        one.deployed and one.shown and not (one.on_demand or one.draining) and all(route.whole for route in one.planned)
        for one in view.served.values()
        if not one.variant
    )


def _movable(view: Holdings) -> dict[str, Served]:
    """Return the applications whose routes may end: serving alone claims them, and no operator spread them."""
    found = {}
    for name, one in view.served.items():
        claims = [view.claims.on(ClaimKind.PLANNED, route.route.id) for route in one.planned]
        drained = any(worker in view.draining for route in one.planned for worker in workers_of(route.route))
        if not (one.variant or drained) and one.application.span == 1 and all({*by} == {Claimant.SERVING} for by in claims):
            found[name] = one
    return found


def _crossed(served: Served, seconds: Sequence[float]) -> float:
    """Return the seconds of transfers on an application's best route."""
    routes = [one.route.hops for one in served.planned]
    return min((sum([seconds[hop.first] for hop in hops[1:]]) for hops in routes), default=0.0)


def _moving(view: Holdings, seconds: Mapping[str, Sequence[float]]) -> list[str]:
    """Return the few applications that a look considers: the ones that cross most, and the ones with least traffic."""
    movable = _movable(view)
    crossing = {name: found for name, one in movable.items() if (found := _crossed(one, seconds[name]))}
    most = sorted(crossing, key=lambda name: (-crossing[name], name))[: FEW // 2]
    others = sorted((name for name in movable if name not in crossing), key=lambda name: (max(seconds[name]), name))
    return [*most, *others[: FEW - len(most)]] if most else []


def _zoo(view: Holdings, seconds: Mapping[str, Sequence[float]], moving: Sequence[str]) -> RelocatableChains | None:
    """Return what may move, and the room for it beside what stays; None if the room of a worker is not known."""
    rooms = {worker: room for worker, room in view.placement.budgets().items() if worker not in view.draining}
    whole = {worker: room.free for worker, room in rooms.items() if room.free is not None}
    if len(whole) < len(rooms):
        return None
    chains = {name: view.served[name].application.components for name in moving}
    fixed = [
        (view.served[one.route.application].application.components, hop)
        for one in view.plan.values()
        if one.route.application not in chains and not one.served.variant
        for hop in one.route.hops
        if hop.worker in whole
    ]
    return _with_room(view, chains, {name: seconds[name] for name in moving}, rooms, whole, fixed)


def _with_room(
    view: Holdings,
    chains: Mapping[str, Sequence[Component]],
    seconds: Mapping[str, Sequence[float]],
    rooms: Mapping[str, WorkerCapacity],
    whole: Mapping[str, int],
    fixed: Sequence[tuple[Sequence[Component], Hop]],
) -> RelocatableChains:
    """Return the chains with what KV leaves to parameters.

    It keeps a sequence of the greatest length, if that has room as things are, else a page.
    """
    sizes = [(view.served[name].application, page_of(parts, Hop("", 0, len(parts)))) for name, parts in chains.items()]
    page = max((nbytes for _, (_, nbytes) in sizes), default=0)
    longest = max((-(-one.max_length // size) * nbytes for one, (size, nbytes) in sizes if size), default=0)
    kinds = {worker: room.kind for worker, room in rooms.items()}
    speeds = {worker: speed for worker in whole if (speed := view.workers[worker].load_speed)}
    now = RelocatableChains(chains, whole, seconds, kinds, fixed)
    routes = {name: [one.route.hops for one in view.served[name].planned] for name in chains}
    free = [now.draft(routes).free(worker) for worker in whole]
    kept = longest if min(free) >= longest else page
    memory = {worker: nbytes - kept for worker, nbytes in whole.items()}
    spare = dict.fromkeys(whole, kept - page)
    return RelocatableChains(chains, memory, seconds, kinds, fixed, spare, speeds=speeds)
