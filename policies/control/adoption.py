"""Adoption: what a new head takes over from the members of the one before, without having a worker load anything again.

Members keep the controller's state as it was at each publication, and tell it: the newest one counts, so a change that was
half done goes forward if its publication left the head, else back. What workers hold they know best: what they lack is
loaded, what belongs to no application is unloaded, and workers that have not come back are down. Then everything that the
head before had asked is asked again. Where no member keeps a state, models are placed anew on workers that hold them
already. Owns no state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..cluster.worker_size import WorkerReport
from ..plain import Plain
from .events import (
    Application,
    Effect,
    Event,
    HeadChanged,
    HeldBlock,
    KvCapacity,
    Serve,
    Unload,
    WorkerDown,
    WorkerEnters,
    WorkerReported,
    WorkerStarting,
    WorkerTold,
    WorkerUp,
)
from .snapshot import of_this_release
from .state import ControllerState
from .worker_record import WorkerRecord

NOT_BACK = "it did not come to the new head"


@dataclass(frozen=True, slots=True)
class KeptState:
    """The controller's state as a member keeps it for the next head.

    epoch: of the head that it is from. version: of the publication that it belongs to. packed: the snapshot.
    """

    epoch: int
    version: int
    packed: bytes


@dataclass(frozen=True, slots=True)
class ToldWorker:
    """A living worker's account of itself. version: of the last publication that it took. pid: 0: it has no process here.

    capacity: None: the release before did not tell it.
    """

    name: str
    incarnation: int
    pid: int
    version: int
    report: WorkerReport | None
    held: tuple[HeldBlock, ...]
    kept: KeptState | None = None
    joined: bool = False  # by itself
    labels: dict[str, str] = field(default_factory=dict)
    capacity: KvCapacity | None = None


@dataclass(frozen=True, slots=True)
class Adopted:
    """The beginning of a new head.

    events: to be handled first, in order. left_over: what workers hold of applications, to be looked at when models are
    placed. strangers: workers that are not wanted any more, which are to be ended.
    """

    state: ControllerState
    events: tuple[Event, ...]
    left_over: tuple[WorkerTold, ...] = ()
    strangers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ToldGateway:
    """A living gateway's account of itself. version: of the last publication that it took."""

    address: str
    version: int
    kept: KeptState | None = None


@dataclass(frozen=True, slots=True)
class FirstWords:
    """The first words of a new head to actors that live or have just been started.

    lives: the living workers and their incarnations, for gateways. drops: the cluster's memory actor has groups to look at.
    """

    lives: tuple[tuple[str, int], ...]
    drops: bool


@dataclass(frozen=True, slots=True)
class StateKeeping:
    """The part of a controller in the succession of heads: members keep its state for the next one.

    adopted: what it takes over from the head before. grace: seconds that requests have to end where that head had begun to
    remove their model. keeper: the number of the process that starts heads; 0: none does.
    """

    adopted: Adopted | None = None
    grace: float = 0.0
    keeper: int = 0


def newest(kept: Iterable[KeptState | None]) -> KeptState | None:
    """Return the newest of the states that members keep."""
    return max(filter(None, kept), key=lambda one: (one.epoch, one.version), default=None)


def adopt(fresh: ControllerState, snapshot: dict[str, Plain] | None, workers: Sequence[ToldWorker], version: int) -> Adopted:
    """Return what a new head begins with.

    fresh: the state of a head that finds nothing. snapshot: the newest state that a member keeps, or None. version: the
    highest one of a publication that any member has. Raises ValueError or KeyError for a snapshot of a distant release.
    """
    told = {one.name: one for one in workers}
    if snapshot is None:
        return _anew(fresh, told, version)
    state = ControllerState.restore(of_this_release(snapshot, fresh))
    state.table.resume(version)
    same = {name for name, one in told.items() if name in state.workers and _lives_on(state.workers[name], one)}
    # What is there comes first: a death may end an addition, and then what others hold of it is unloaded, once.
    events = [event for name, one in told.items() if name in same for event in _accounts(one)]
    for name, record in state.workers.items():
        events += _return(record, told.get(name)) if name not in same else ()
    strangers = []
    for one in (one for name, one in told.items() if name not in state.workers):
        if one.joined:
            events += [WorkerEnters(one.name, one.labels), *_begin(one), *_accounts(one)]
        else:
            strangers.append(one.name)
    return Adopted(state, (*events, HeadChanged()), strangers=tuple(strangers))


def first_words(state: ControllerState) -> FirstWords:
    """Return what a new head says once the actors that it needs have been started."""
    lives = tuple((name, one.incarnation) for name, one in state.workers.items() if one.alive)
    return FirstWords(lives, bool(state.overload.groups))


def configured(state: ControllerState, adopted: Adopted | None, applications: Sequence[Application]) -> tuple[Event, ...]:
    """Return the events of the applications that the settings name: none if the head before had begun to serve. They are
    served then, or an operator has removed them.
    """
    return () if adopted is not None and state.serving.began else (Serve(tuple(applications)),)


def unclaimed(state: ControllerState, adopted: Adopted | None) -> tuple[Effect, ...]:
    """Return the unloads of what workers hold of no application, once all are known that the settings name."""
    left_over = () if adopted is None else adopted.left_over
    held = [(told, block) for told in left_over for block in told.held if block.holder not in state.served]
    return tuple(Unload(told.worker, told.incarnation, block.holder, block.ids) for told, block in held)


def _anew(fresh: ControllerState, told: Mapping[str, ToldWorker], version: int) -> Adopted:
    """Return a beginning without a state of the head before: a cold start on warm workers."""
    fresh.table.resume(version)
    known = [one for name, one in told.items() if name in fresh.workers]
    events = [event for one in known for event in _begin(one)]
    strangers = tuple(name for name in told if name not in fresh.workers)
    return Adopted(fresh, tuple(events), tuple(map(_account, known)), strangers)


def _lives_on(record: WorkerRecord, told: ToldWorker) -> bool:
    """Return whether it is the life that the head before knew."""
    return record.alive and record.incarnation == told.incarnation


def _return(record: WorkerRecord, told: ToldWorker | None) -> list[Event]:
    """Return the events of a worker that the head before knew in another life."""
    if told is None:
        lives = record.alive or record.state == "starting"
        return [WorkerDown(record.name, record.last, NOT_BACK)] if lives else []
    former: list[Event] = [WorkerDown(record.name, record.incarnation, NOT_BACK)] if record.alive else []
    return [*former, *came_back(told)]


def unwanted(state: ControllerState, worker: str, unclaimed: Mapping[str, Sequence[bytes]]) -> dict[str, list[bytes]]:
    """Return the part of what a worker has kept of a former life that no planned route needs there, by application.

    unclaimed: by application, ids of components and deltas. The rest is about to be loaded, which reads nothing.
    """
    found: dict[str, list[bytes]] = {}
    for holder, ids in unclaimed.items():
        hops = state.residency[worker].hops.get(holder, ()) if holder in state.served else ()
        wanted = set[bytes]()
        for hop in (hop for hop in hops if hop.route.wanted):
            for one in state.served[holder].application.components[hop.first : hop.last]:
                wanted.update((one.shared, one.delta))
        if left := [id for id in ids if id not in wanted]:
            found[holder] = left
    return found


def came_back(told: ToldWorker) -> list[Event]:
    """Return the events of a worker that came when it was thought to be down."""
    return [*_begin(told), *_accounts(told)]


def _begin(told: ToldWorker) -> list[Event]:
    """Return the events of a life that the head before did not tell of."""
    who = told.name, told.incarnation
    reported: list[Event] = [] if told.report is None else [WorkerReported(*who, told.report)]
    return [WorkerStarting(*who, told.pid), *reported, WorkerUp(*who)]


def _accounts(told: ToldWorker) -> list[Event]:
    """Return the events of what a worker tells. Its capacity comes first, so that whole routes are in force at once: the
    state that members keep may be older than they are, and a worker gives back what runs on a route that is not.
    """
    capacity: list[Event] = [] if told.capacity is None else [told.capacity]
    return [*capacity, _account(told)]


def _account(told: ToldWorker) -> WorkerTold:
    return WorkerTold(told.name, told.incarnation, told.held)
