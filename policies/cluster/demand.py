"""Model swapping: which applications give way when one that is not resident is asked for: least recently used (S-LoRA, 4.1).

What nobody uses goes first. Where all that is resident is in use, the one that asks waits ``PATIENCE``; then the application
that has been resident for longest, and for a ``TURN`` at least, starts nothing new and goes when what runs has ended. So
everyone gets a turn, requests that wait for one application share its load, and swaps are bounded in time. The same makes
room for a sequence that is longer than what parameters leave.

Where parameters are dropped (``policies/overload``) the memory that this frees is for KV: nothing is loaded there until they
are back, or what dropped them gives way like any other. While it is in use that takes ``BURST_PATIENCE``, as most bursts end
earlier. Pure.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum, auto

PATIENCE = 0.3  # seconds that an application waits before one in use has to make room for it
BURST_PATIENCE = 10.0  # before one in use of which parameters are dropped has to
TURN = 1.0  # seconds that an application is resident before that is asked of it
SETTLING = 2.0  # seconds in which the memory of those that went becomes free


@dataclass(frozen=True, slots=True)
class Use:
    """Of an application at one gateway, or at all."""

    active: int  # requests that run or wait
    idle: float  # seconds since the last one came or ended; 0 while there are any
    waits: int = 0  # tokens of the longest that waits for a route, or for room on one; 0: none does
    offline: bool = False  # all that wait are offline: nobody in use makes room for them


@dataclass(frozen=True, slots=True)
class Occupant:
    """An application that may give way."""

    name: str
    use: Use
    age: float  # seconds since it came
    owned: Mapping[str, int]  # worker -> bytes of packed tensors that nobody else needs there
    parts: Mapping[str, Set[bytes]]  # worker -> ids of its components and deltas there
    dropped: bool = False  # it serves as a pipeline, as parameters of it are dropped


@dataclass(frozen=True, slots=True)
class GivingWay:
    """``unload``: now. ``drain``: takes no new requests from now on, and goes when it has none; "": none does.
    ``step_back``: nobody gives way, and who asks is not to hold up others who wait."""

    unload: tuple[str, ...] = ()
    drain: str = ""
    step_back: bool = False


@dataclass(frozen=True, slots=True)
class HopCapacity:
    """What a worker has for sequences on a hop of a route; sizes in bytes, but for ``page_size``."""

    worker: str
    page_size: int  # tokens
    page_bytes: int
    room: int
    most: int  # once no other application is there

    def need(self, tokens: int) -> int:
        """Of one sequence."""
        return -(-tokens // self.page_size) * self.page_bytes if self.page_bytes else 0


def lacking_bytes(tokens: int, routes: Iterable[Sequence[HopCapacity]]) -> dict[str, int] | None:
    """Bytes that must become free on each worker before one of these routes of an application holds a sequence: of the route
    that lacks least. Empty: one does already; None: none ever will."""
    found = []
    for hops in (hops for hops in routes if all(hop.need(tokens) <= hop.most for hop in hops)):
        lacking: dict[str, int] = {}
        for hop in (hop for hop in hops if hop.need(tokens) > hop.room):
            lacking[hop.worker] = max(hop.need(tokens) - hop.room, lacking.get(hop.worker, 0))
        found.append(lacking)
    return min(found, key=lambda lacking: sum(lacking.values()), default=None)


class Coming(Enum):
    """How it goes on for an application that comes, in the order in which that is looked at."""

    SERVED = auto()  # it is here, and what waited has been sent: it keeps its room
    UNWANTED = auto()  # it lacks room, and who asked for it is gone
    CROWDED = auto()  # others have to give way (``choose``)
    WAITED_FOR = auto()  # it is here, and what waits has not been sent yet
    LOADING = auto()


def coming(use: Use, *, here: bool, lacks: bool) -> Coming:
    """``use``: of the application that comes; ``here``: its routes are in force, and what its workers have left is known;
    ``lacks``: memory, for its parameters or for a sequence of it."""
    if here and not use.waits:
        return Coming.SERVED
    if lacks:
        return Coming.CROWDED if use.active else Coming.UNWANTED
    return Coming.WAITED_FOR if here else Coming.LOADING


def combined(uses: Iterable[Mapping[str, Use]]) -> dict[str, Use]:
    """What all gateways say of their applications."""
    found: dict[str, Use] = {}
    for name, use in (item for one in uses for item in one.items()):
        known = found.get(name, use)
        active = use.active + (known.active if name in found else 0)
        offline = all(one.offline for one in (use, known) if one.waits)
        waits = max(use.waits, known.waits)
        found[name] = Use(active, min(use.idle, known.idle), waits, offline and waits > 0)
    return found


def in_vain(alone: float) -> bool:
    """Whether an application that is refused though nothing else is there, ``alone`` seconds already, will never fit."""
    return alone >= SETTLING


def back_in_vain(waited: float) -> bool:
    """Whether what was dropped, and has no room to come back for ``waited`` seconds, waits for more than what runs: KV is
    little used in a restore, but parameters may have filled memory to the last chunk, and leave other gaps than before."""
    return waited >= BURST_PATIENCE


def all_fit(applications: Iterable[tuple[bool, bool]]) -> bool:
    """Whether all that are deployed are loaded beside each other (of each: parked, in force). Then none is on demand any
    more: it counts as what has fitted from the beginning."""
    return all(in_force and not parked for parked, in_force in applications)


def withheld(workers: Iterable[str], pipelines: Iterable[Container[str]]) -> list[str]:
    """On which of its workers an application is not loaded now: those that parameters were dropped on for KV. ``pipelines``:
    the workers of each that serves since then."""
    pipelines = list(pipelines)
    return sorted({worker for worker in workers if any(worker in members for members in pipelines)})


def choose(
    lacking: Mapping[str, int],
    residents: Iterable[Occupant],
    waited: float,
    kept: Mapping[str, Set[bytes]],
    *,
    offline: bool = False,
) -> GivingWay:
    """Who gives way so that ``lacking`` bytes become free on each of these workers, for an application that has ``waited``
    so many seconds. What two applications alone share is nobody's own: where nothing else helps they go one by one. Nobody
    goes all of whose parts are ``kept`` or have others in use; only where nobody else is left, for what lies between. Of
    those of which parameters are dropped none goes in vain: memory comes free with the last of them. For requests that are
    ``offline`` nobody in use gives way."""
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
        return GivingWay(tuple(unload))
    mute = [one.name for one in useful if one.name not in unload] or [one.name for one in idle if not (active or unload)]
    if mute:
        return GivingWay((*unload, mute[0]))
    if unload and any(nbytes > sum(one.owned.get(worker, 0) for one in active) for worker, nbytes in rest.items()):
        return GivingWay((unload[0],))  # only what several share is enough, and that comes free with the last of them
    if offline:
        return GivingWay(step_back=bool(residents))
    busy = [one for one in active if one.age >= TURN and waited >= (BURST_PATIENCE if one.dropped else PATIENCE)]
    if not busy:
        return GivingWay()
    useful = [one for one in busy if any(one.owned.get(worker) for worker in rest)]
    return GivingWay(drain=max(useful or busy, key=lambda one: one.age).name)


def _parts(those: Iterable[Occupant], worker: str) -> set[bytes]:
    return {part for one in those for part in one.parts.get(worker, ())}
