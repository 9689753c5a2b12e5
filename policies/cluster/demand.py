"""Model swapping: which applications are unloaded for one that is requested: least recently used first (S-LoRA, 4.1).

Unused applications go first. If all resident ones are in use, the requested one waits ``PATIENCE``. Then the application
that has been resident for longest, at least a ``TURN``, takes no new requests and goes when its running ones have ended.
So every application gets a turn, requests that wait for one application share its load, and swaps are bounded in time. The
same procedure makes room for a sequence that is longer than what parameters leave.

Where parameters are dropped (``policies/overload``), the freed memory is for KV: nothing is loaded there until they are
back, or until the application that dropped them gives way like any other. While it is in use that takes
``BURST_PATIENCE``, as most bursts end earlier. Pure.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum, auto

PATIENCE = 0.3  # seconds that an application waits until one in use must give way
BURST_PATIENCE = 10.0  # the same until one in use with dropped parameters must give way
TURN = 1.0  # least seconds of residence before an application must give way
SETTLING = 2.0  # seconds in which the memory of unloaded applications becomes free


@dataclass(frozen=True, slots=True)
class Use:
    """The usage of an application at one gateway, or at all."""

    active: int  # requests that run or wait
    idle: float  # seconds since the last one came or ended; 0 while there are any
    waits: int = 0  # tokens of the longest request without a route or room; 0: none waits
    offline: bool = False  # all waiting ones are offline: no application in use gives way to them


@dataclass(frozen=True, slots=True)
class UnloadCandidate:
    """An application that may give way."""

    name: str
    use: Use
    age: float  # seconds since it came
    owned: Mapping[str, int]  # worker -> bytes of packed tensors that only it needs there
    parts: Mapping[str, Set[bytes]]  # worker -> ids of its components and deltas there
    dropped: bool = False  # it serves as a pipeline, since its parameters are dropped


@dataclass(frozen=True, slots=True)
class UnloadDecision:
    """The decision.

    unload: applications to unload now. drain: one that takes no new requests from now on, and goes when it has none; "":
    none. step_back: none gives way, and the requested application must not hold up others that wait.
    """

    unload: tuple[str, ...] = ()
    drain: str = ""
    step_back: bool = False


@dataclass(frozen=True, slots=True)
class HopCapacity:
    """A worker's memory for sequences on a hop of a route; sizes in bytes, except ``page_size``."""

    worker: str
    page_size: int  # tokens
    page_bytes: int
    room: int
    bytes_alone: int  # with no other application there

    def need(self, tokens: int) -> int:
        """Return the bytes of one sequence."""
        return -(-tokens // self.page_size) * self.page_bytes if self.page_bytes else 0


def lacking_bytes(tokens: int, routes: Iterable[Sequence[HopCapacity]]) -> dict[str, int] | None:
    """Return the bytes to free on each worker before the least-lacking route holds a sequence of ``tokens``.

    Empty: one does already. None: none ever will.
    """
    found = []
    for hops in (hops for hops in routes if all(hop.need(tokens) <= hop.bytes_alone for hop in hops)):
        lacking: dict[str, int] = {}
        for hop in (hop for hop in hops if hop.need(tokens) > hop.room):
            lacking[hop.worker] = max(hop.need(tokens) - hop.room, lacking.get(hop.worker, 0))
        found.append(lacking)
    return min(found, key=lambda lacking: sum(lacking.values()), default=None)


class DemandState(Enum):
    """The state of a requested application, in the order in which it is checked."""

    SERVED = auto()  # it is here, and the waiting requests have been sent: it keeps its room
    UNWANTED = auto()  # it lacks room, and its requests are gone
    CROWDED = auto()  # others have to give way (``choose``)
    WAITED_FOR = auto()  # it is here, and its requests have not been sent yet
    LOADING = auto()


def coming(use: Use, *, here: bool, lacks: bool) -> DemandState:
    """Return the state of a requested application.

    use: its usage. here: its routes are in force, and the memory left on its workers is known. lacks: it lacks memory, for
    its parameters or for a sequence.
    """
    if here and not use.waits:
        return DemandState.SERVED
    if lacks:
        return DemandState.CROWDED if use.active else DemandState.UNWANTED
    return DemandState.WAITED_FOR if here else DemandState.LOADING


def combined(uses: Iterable[Mapping[str, Use]]) -> dict[str, Use]:
    """Return the usage at all gateways together."""
    found: dict[str, Use] = {}
    for name, use in (item for one in uses for item in one.items()):
        known = found.get(name, use)
        active = use.active + (known.active if name in found else 0)
        offline = all(one.offline for one in (use, known) if one.waits)
        waits = max(use.waits, known.waits)
        found[name] = Use(active, min(use.idle, known.idle), waits, offline and waits > 0)
    return found


def in_vain(alone: float) -> bool:
    """Return whether an application that has been refused for ``alone`` seconds, with nothing else there, will never fit."""
    return alone >= SETTLING


def back_in_vain(waited: float) -> bool:
    """Return whether a restore that has lacked room for ``waited`` seconds waits for more than running requests.

    KV is little used in a restore, but parameters may have filled memory to the last chunk and leave other gaps than
    before.
    """
    return waited >= BURST_PATIENCE


def all_fit(applications: Iterable[tuple[bool, bool]]) -> bool:
    """Return whether all deployed applications are loaded side by side (of each: parked, in force).

    If so, none is on demand any more: each counts as having fitted from the beginning.
    """
    return all(in_force and not parked for parked, in_force in applications)


def load_seconds(routes: Iterable[Iterable[tuple[int, float]]]) -> float:
    """Return the time of loading an application on the route that is there first (BlockLLM, 5.1: T_load), in seconds.

    Workers load at the same time. What has to give way first is not counted.

    Args:
        routes: for each of its workers, the bytes that are missing there, and its bytes loaded in a second (0: unknown).

    Returns:
        The seconds; 0: nothing is missing, or the speed of a worker is unknown on every route.
    """
    found = list[float]()
    for workers in routes:
        lacking = [(nbytes, speed) for nbytes, speed in workers if nbytes]
        if all(speed for _, speed in lacking):
            found.append(max((nbytes / speed for nbytes, speed in lacking), default=0.0))
    return min(found, default=0.0)


def withheld(workers: Iterable[str], pipelines: Iterable[Container[str]]) -> list[str]:
    """Return the workers on which an application is not loaded now, because parameters were dropped there for KV.

    ``pipelines``: the workers of each pipeline that serves since then.
    """
    pipelines = list(pipelines)
    return sorted({worker for worker in workers if any(worker in members for members in pipelines)})


def choose(
    lacking: Mapping[str, int],
    residents: Iterable[UnloadCandidate],
    waited: float,
    kept: Mapping[str, Set[bytes]],
    *,
    offline: bool = False,
) -> UnloadDecision:
    """Choose the applications that give way so that ``lacking`` bytes become free on each worker.

    waited: seconds that the requested application has waited. kept: parts that stay. offline: its requests are all
    offline, so that no application in use gives way. Parts that only two applications share belong to neither: if nothing
    else helps they go one by one. An application all of whose parts are ``kept`` or used by others in use is not unloaded;
    only if no other is left, for what lies between. An application with dropped parameters is not unloaded in vain: memory
    comes free with the last one.
    """
    residents = list(residents)
    burst = any(one.dropped and one.use.active for one in residents)
    order = sorted(residents, key=lambda one: (-one.use.idle, -one.age, one.name))
    rest = {worker: nbytes for worker, nbytes in lacking.items() if nbytes > 0}
    active = [one for one in order if one.use.active]
    idle = [one for one in order if not (one.use.active or (one.dropped and burst))]
    stay = [one for one in order if one not in idle]
    staying = {worker: _parts(stay, worker).union(kept.get(worker, ())) for worker in rest}
    useful = [one for one in idle if any(not one.parts.get(worker, set()) <= staying[worker] for worker in rest)]
    unload = []
    for one in useful:
        if not rest:
            break
        if any(one.owned.get(worker) for worker in rest):
            unload.append(one.name)
            left = ((worker, nbytes - one.owned.get(worker, 0)) for worker, nbytes in rest.items())
            rest = {worker: nbytes for worker, nbytes in left if nbytes > 0}
    if not rest:
        return UnloadDecision(tuple(unload))
    mute = [one.name for one in useful if one.name not in unload] or [one.name for one in idle if not (active or unload)]
    if mute:
        return UnloadDecision((*unload, mute[0]))
    if unload and any(nbytes > sum(one.owned.get(worker, 0) for one in active) for worker, nbytes in rest.items()):
        return UnloadDecision((unload[0],))  # only shared parts are enough, and they come free with the last application
    if offline:
        return UnloadDecision(step_back=bool(residents))
    busy = [one for one in active if one.age >= TURN and waited >= (BURST_PATIENCE if one.dropped else PATIENCE)]
    if not busy:
        return UnloadDecision()
    useful = [one for one in busy if any(one.owned.get(worker) for worker in rest)]
    return UnloadDecision(drain=max(useful or busy, key=lambda one: one.age).name)


def _parts(those: Iterable[UnloadCandidate], worker: str) -> set[bytes]:
    return {part for one in those for part in one.parts.get(worker, ())}
