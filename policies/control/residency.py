"""Residency: the components that one worker holds, in its current incarnation, and the ones that it lacks.

Owns the resident components, the load in progress, refusals, the room left to KV, and the count of missing components for
each hop of a planned route. A change costs work only for the components and routes concerned.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from ..adaptive.guessing import guesses_for
from ..cluster.adapter_base import WholeModel
from ..cluster.application_life import first_missing, serving_one
from ..cluster.demand import HopCapacity
from ..model.chain import Block, Chain, Hop, Route
from ..requests.admission import capacity_tokens, cramped
from ..requests.dispatch import UNKNOWN
from ..requests.load_failure import LoadFailure
from .events import Application
from .loads import LoadBlock

WITHHELD = "parameters are dropped there in a burst, and what they took is for KV"


@dataclass(slots=True, eq=False)
class Served:
    """An application that is served, with its state."""

    application: Application
    rank: int  # its place among all that were ever served, which is the order of loading
    place: int  # its model's place among all
    blocks: tuple[Block, ...] = ()
    chain: Chain | None = None  # as published; None: it was not shown yet
    planned: list[PlannedRoute] = field(default_factory=list)  # its routes when every worker is up and loaded
    deployed: bool = True
    on_demand: bool = False  # did not fit beside the others; loaded when requests ask for it
    wanted: bool = False  # a party claims its components
    shown: bool = True  # its chain and routes are published; False during an addition
    draining: bool = False  # takes no new requests
    ever_ready: bool = False  # has had a route in force
    in_force: int = 0  # number of routes in force
    failure: LoadFailure | None = None  # why it can load nowhere, at the last try
    load_seconds: float = 0.0  # of loading what its workers lacked while it was parked, if it has variants; 0: unknown

    @property
    def variant(self) -> bool:
        """True if it only serves in another's place, where its components are for others."""
        return bool(self.application.variant_of)

    @property
    def guesses(self) -> bool:
        """True if it only guesses hidden states where a pipeline begins."""
        return guesses_for(self.application.served_as, self.application.drafts_for)

    @property
    def parked(self) -> bool:
        """True if it is on demand, and in no worker now."""
        return self.deployed and not self.wanted


@dataclass(slots=True, eq=False)
class PlannedRoute:
    """A route that comes into force as soon as ``open`` is 0."""

    route: Route  # version 0
    served: Served
    hops: tuple[PlannedHop, ...] = ()
    open: int = 0  # hops that their worker does not serve yet
    idle: float = 0.0  # through a block deployed for a burst: seconds without use until it ends
    beside: bool = False  # planned beside routes that serve: nothing gives way for what it lacks
    ended: bool = False  # belongs nowhere any more
    suspended: bool = False  # a pipeline serves instead: lacking parts are not loaded, unneeded ones can go

    @property
    def whole(self) -> bool:
        return self.open == 0 and self.wanted and self.served.shown

    @property
    def wanted(self) -> bool:
        """True if its components are to be loaded."""
        return self.served.wanted and not (self.ended or self.suspended)

    @property
    def known(self) -> bool:
        """True if all of it is loaded, and its workers have reported the room that is left since."""
        return not self.open and not any(hop.residency.room_stale or hop.residency.asking for hop in self.hops)

    @property
    def late(self) -> bool:
        """True if one of its workers loads it only after the parameters dropped there are restored."""
        return any(self.route.application in hop.residency.late for hop in self.hops)

    def is_on(self, worker: str) -> bool:
        return any(hop.worker == worker for hop in self.route.hops)

    def capacity(self) -> int:
        """Return the tokens of one sequence that the route's workers can hold: the least of its hops.

        It is computed from raw bytes, so it can be slightly too high: the worker, which knows its back end's padding,
        refuses the excess.
        """
        return min(capacity_tokens(hop.residency.room or 0, hop.page_size, hop.page_bytes) for hop in self.hops)

    def capacity_alone(self) -> int:
        """Return the same with no other application there; 0: none is unloaded."""
        return min(hop.tokens_alone for hop in self.hops)


@dataclass(slots=True, eq=False)
class PlannedHop:
    """A range of an application's components that belongs on a worker, with its page size from ``page_of``."""

    route: PlannedRoute
    residency: Residency
    first: int
    last: int
    page_size: int  # tokens
    page_bytes: int
    missing: int  # number of missing components

    @property
    def held(self) -> bool:
        """True if the worker serves the hop."""
        return not self.missing and self.residency.serving

    @property
    def bytes_alone(self) -> int:
        """Bytes left to KV with no other application there, by the worker's last report; 0: none is unloaded."""
        known = self.residency.left_alone
        return 0 if known is None else known.get(self.route.route.application, UNKNOWN)

    @property
    def tokens_alone(self) -> int:
        return UNKNOWN if self.bytes_alone == UNKNOWN else capacity_tokens(self.bytes_alone, self.page_size, self.page_bytes)

    def room(self, worker: str) -> HopCapacity:
        """Return the hop's room, for the code that makes more. ``worker``: its name."""
        return HopCapacity(worker, self.page_size, self.page_bytes, self.residency.room or 0, self.bytes_alone)


def serving(served: Mapping[str, Served], model: str) -> Served | None:
    """Return the application that takes a model's new requests, or, if there is none, the one that will."""
    return serving_one(s for s in served.values() if s.application.served_as == model)


def is_hidden(application: Application) -> bool:
    """Return whether it is a variant or only drafts: it comes and goes with its model, and has no name for people."""
    return bool(application.variant_of or application.drafts_for)


def whole_models(served: Mapping[str, Served]) -> list[WholeModel]:
    """Return the models that an adapter can be put on: whole served models, then removed ones that adapters still hold."""
    here = [one.application for one in served.values() if one.deployed]
    wholes = [
        WholeModel(one.application.served_as, one.application.checkpoint, family=one.application.family)
        for one in served.values()
        if one.deployed and not (one.draining or one.application.changed or is_hidden(one.application))
    ]
    known = {whole.checkpoint for whole in wholes}
    held = {one.base: WholeModel(one.base_model, one.base, served=False) for one in here if one.base}
    return [*wholes, *(whole for checkpoint, whole in held.items() if checkpoint not in known)]


def not_served(served: Mapping[str, Served], model: str, besides: str = "") -> LookupError:
    """Return the error for an unknown model; it lists the known ones that have a name for people, without ``besides``."""
    shown = {one.application.served_as for one in served.values() if not is_hidden(one.application)}
    there = ", ".join(sorted(shown - {besides}))
    return LookupError(f"model {model!r} does not exist; there are: {there}")


class Residency:
    """The residency of one worker (see the module).

    ``unsettled`` collects the routes that gained or lost a hop, or whose capacity may have changed.
    """

    def __init__(self, served: Mapping[str, Served], unsettled: dict[str, PlannedRoute]) -> None:
        self.hops: dict[str, list[PlannedHop]] = {}  # application -> its hops here, withdrawn applications included
        self.resident: dict[str, set[int]] = {}  # application -> depths of its resident components
        self.refused: dict[str, str] = {}  # application -> why it could not be loaded here
        self.sources: dict[int, str] = {}  # depth -> worker that sends dropped parameters back
        self.late: set[str] = set()  # applications that came while parameters were dropped here, until fully loaded
        self.loading: LoadBlock | None = None  # the one load in progress
        self.room: int | None = None  # bytes left to KV at the last report
        self.left_alone: dict[str, int] | None = {}  # application -> bytes left to KV with it alone; None: none is unloaded
        self.owned: dict[str, int] = {}  # application -> bytes of packed tensors freed with it, as last reported
        self.room_stale = True  # parameters have changed since the report, or there is none
        self.asking = False  # a question about room is in flight
        self.serving = False  # the worker is healthy and its room is known: complete hops count
        self._partial: set[str] = set()  # applications that are partly loaded
        self._queue: list[tuple[int, str]] = []  # heap of (rank, application): all that may lack components, and some others
        self._queued: set[str] = set()  # applications in the heap
        self._served, self._unsettled = served, unsettled

    def plan(self, route: PlannedRoute, hop: Hop, page: tuple[int, int]) -> PlannedHop:
        """Add a hop of a new route. page: its size in tokens and in bytes."""
        name = route.route.application
        here = self.resident.get(name, ())
        missing = sum(depth not in here for depth in range(hop.first, hop.last))
        planned = PlannedHop(route, self, hop.first, hop.last, *page, missing)
        route.open += not planned.held
        self.hops.setdefault(name, []).append(planned)
        return planned

    def end(self, hop: PlannedHop) -> None:
        """Remove a hop of a route that has ended. What came late and misses nothing any more waits for no restore."""
        name = hop.route.route.application
        self.hops[name].remove(hop)
        if name in self.late and not self.misses(name):
            self.late.discard(name)
            self.refused.pop(name, None)
            self._sort(name)

    def clear(self) -> None:
        """Reset to an empty worker: an incarnation began or ended."""
        self.serve(False)
        for name in self.resident:
            for hop in self.hops.get(name, ()):
                hop.missing = hop.last - hop.first
        self.resident = {}
        self.refused = {}
        self.loading = None
        self.late.clear()
        self.room = None
        self.room_stale = True
        self.asking = False
        self.left_alone, self.owned = {}, {}
        self._partial.clear()
        self._queue = [(served.rank, name) for name, served in self._served.items() if served.wanted]
        heapq.heapify(self._queue)
        self._queued = {name for _, name in self._queue}

    def serve(self, well: bool) -> None:
        """Set whether the worker can serve at all; complete hops follow, once the room is known."""
        serving = well and self.room is not None
        if serving != self.serving:
            self.serving = serving
            for name in self.resident:
                for hop in self.hops.get(name, ()):
                    if not hop.missing:
                        self._turn(hop, serving)

    def set_room(self, nbytes: int, left_alone: dict[str, int] | None, owned: dict[str, int]) -> None:
        changed = (nbytes, left_alone) != (self.room, self.left_alone)
        self.room = nbytes
        self.left_alone = left_alone
        self.owned = owned
        self.asking = False
        if changed and self.serving:
            for name in self.resident:
                self._unsettled.update((hop.route.route.id, hop.route) for hop in self.hops.get(name, ()) if not hop.missing)

    def cramped(self, worker: str, applications: Iterable[str]) -> str:
        """Return why no application can be served, if parameters leave no room for one KV page; else ""."""
        held = ((name, hop) for name in applications for hop in self.hops.get(name, ()) if hop.held)
        return next(filter(None, (cramped(worker, name, self.room or 0, hop.page_bytes) for name, hop in held)), "")

    def loaded(self, load: LoadBlock) -> None:
        """Note loaded components of a deployed application."""
        self._gain(load.holder, range(load.first, load.last))

    def correct(self, name: str, held: set[int]) -> None:
        """Note what the worker really holds of an application."""
        here = self.resident.get(name, set())
        lost = here - held
        here -= lost
        for hop in self.hops.get(name, ()) if lost else ():
            if not hop.missing and self.serving and any(hop.first <= depth < hop.last for depth in lost):
                self._turn(hop, False)
            hop.missing += sum(hop.first <= depth < hop.last for depth in lost)
        if lost and not here:
            self.resident.pop(name, None)
        if held:
            self._gain(name, held)
        elif lost:
            self._sort(name)
        if lost and self._wants(name) and name not in self._queued:
            self._queued.add(name)
            heapq.heappush(self._queue, (self._served[name].rank, name))

    def _gain(self, name: str, depths: Iterable[int]) -> None:
        here = self.resident.setdefault(name, set())
        new = [depth for depth in depths if depth not in here]
        here.update(new)
        for hop in self.hops.get(name, ()):
            found = sum(hop.first <= depth < hop.last for depth in new)
            hop.missing -= found
            if found and not hop.missing and self.serving:
                self._turn(hop, True)
        if not any(hop.missing for hop in self._needed(name)):
            self.late.discard(name)
        self._sort(name)

    def refuse(self, name: str, why: str) -> None:
        self.refused[name] = why
        self._sort(name)

    def fail(self, name: str, why: str) -> None:
        """Note that an application cannot be loaded here; what came late does not wait for a restore any more."""
        self.late.discard(name)
        self.refuse(name, why)

    def withhold(self, name: str, why: str) -> None:
        """Withhold an application until the parameters dropped here are restored."""
        self.late.add(name)
        self.refuse(name, why)

    def waits(self, name: str) -> bool:
        """Return whether it is late and not to be loaded now: until then it belongs to other workers only."""
        return name in self.late and name in self.refused

    def want(self, name: str) -> None:
        """Ask for what a (re)deployed application lacks, also after a refusal."""
        self.refused.pop(name, None)
        if name not in self._queued:
            self._queued.add(name)
            heapq.heappush(self._queue, (self._served[name].rank, name))
        self._sort(name)

    def spare(self, name: str) -> None:
        """Stop loading components that only suspended routes of the application lack here."""
        self._sort(name)

    def withdraw(self, name: str) -> set[int]:
        """Withdraw an undeployed application; return the depths that were resident and can go."""
        depths = self.resident.pop(name, set())
        for hop in self.hops.get(name, ()) if depths else ():
            if not hop.missing and self.serving:
                self._turn(hop, False)
            hop.missing = hop.last - hop.first
        self._partial.discard(name)
        self.late.discard(name)
        self.room_stale = self.room_stale or bool(depths)
        return depths

    def release(self, name: str) -> set[int]:
        """Return the depths that no route needs here any more, after one has ended or was suspended."""
        here = self.resident.get(name, set())
        gone = here - {depth for hop in self._needed(name) for depth in range(hop.first, hop.last)}
        here -= gone
        for hop in self.hops.get(name, ()) if gone else ():  # hops of suspended routes
            if not hop.missing and self.serving and any(hop.first <= depth < hop.last for depth in gone):
                self._turn(hop, False)
            hop.missing += sum(hop.first <= depth < hop.last for depth in gone)
        if not here:
            self.resident.pop(name, None)
        self._sort(name)
        self.room_stale = self.room_stale or bool(gone)
        return gone

    def forget(self, name: str) -> set[int]:
        """Forget an application for good; return the depths that were resident and can go."""
        depths = self.withdraw(name)
        self.hops.pop(name, None)
        self.refused.pop(name, None)
        if name in self._queued:
            self._queued.discard(name)
            self._queue = [entry for entry in self._queue if entry[1] != name]
            heapq.heapify(self._queue)
        return depths

    def next_load(self) -> LoadBlock | None:
        """Return the first missing block, in order of applications and depth."""
        while self._queue:
            name = self._queue[0][1]
            if self._wants(name):
                return self._first_missing(name)
            heapq.heappop(self._queue)
            self._queued.discard(name)
        return None

    def ask_room(self) -> bool:
        """Return whether to ask for the room now: parameters have changed, and no application is half loaded."""
        due = self.room_stale and not self.asking and not self._partial and bool(self.resident)
        if due:
            self.asking, self.room_stale = True, False
        return due

    def needs(self, load: LoadBlock) -> bool:
        """Return whether a route needs all of a loaded block here."""
        return any(hop.first <= load.first and load.last <= hop.last for hop in self._needed(load.holder))

    def lacks(self, name: str) -> bool:
        """Return whether components of the application are to be loaded here, and can be."""
        return name in self._served and self._wants(name)

    def misses(self, name: str) -> bool:
        """Return whether components that belong here are missing, loadable or not."""
        return any(hop.missing for hop in self._needed(name))

    def lacks_replica(self, name: str) -> bool:
        """Return the same as ``lacks``, except for blocks deployed for a burst and routes beside ones that serve."""
        needed = (hop for hop in self._needed(name) if hop.missing)
        return self.lacks(name) and any(not (hop.route.idle or hop.route.beside) for hop in needed)

    def parts(self, name: str) -> set[bytes]:
        """Return the ids of the resident components and deltas of an application."""
        return self._ids(name, self.resident.get(name, ()))

    def wanted_parts(self, name: str) -> set[bytes]:
        """Return the ids of the components and deltas that are to be resident."""
        return self._ids(name, {depth for hop in self._needed(name) for depth in range(hop.first, hop.last)})

    def _ids(self, name: str, depths: Iterable[int]) -> set[bytes]:
        components = self._served[name].application.components
        return {id for depth in depths for id in (components[depth].shared, components[depth].delta) if id}

    def holds(self, name: str, first: int, last: int) -> bool:
        """Return whether components ``first`` to ``last`` (exclusive) of the application are resident."""
        return self.resident.get(name, set()).issuperset(range(first, last))

    def check(self, well: bool) -> None:
        """Raise AssertionError when a count does not match the resident components."""
        assert self.serving == (well and self.room is not None)
        for name, hops in self.hops.items():
            here, served = self.resident.get(name, set()), self._served[name]
            for hop in hops:
                assert hop.missing == sum(depth not in here for depth in range(hop.first, hop.last)), name
            assert (name in self._partial) == (bool(here) and self._wants(name)), name
            assert name in self._queued or not self._wants(name), name
            assert served.wanted or not here, name
            assert name not in self.late or (served.wanted and any(hop.missing for hop in hops)), name
        assert {name for _, name in self._queue} == self._queued
        assert len(self._queue) == len(self._queued)

    def _wants(self, name: str) -> bool:
        served = self._served[name]
        return served.wanted and name not in self.refused and any(hop.missing for hop in self._needed(name))

    def _needed(self, name: str) -> list[PlannedHop]:
        """Return the hops of an application that are to be served."""
        return [hop for hop in self.hops.get(name, ()) if not hop.route.suspended]

    def _sort(self, name: str) -> None:
        if self.resident.get(name) and self._wants(name):
            self._partial.add(name)
        else:
            self._partial.discard(name)

    def _first_missing(self, name: str) -> LoadBlock:
        served, here = self._served[name], self.resident.get(name, set())
        needed = self._needed(name)
        hops = [(hop.first, hop.last) for hop in needed]
        missing = first_missing([len(block.components) for block in served.blocks], hops, here)
        assert missing is not None, f"{name} lacks components, and no block has them"
        application, (first, last) = served.application, missing
        components = application.components[first:last]
        ids = [c.shared for c in components]
        deltas = [c.delta for c in components]
        hashes = application.hashes[first:last]
        idle = min(hop.route.idle for hop in needed if hop.first <= first and last <= hop.last)
        length, layers = application.max_length, sum(c.kv is not None for c in application.components)
        block = LoadBlock(application.files, first, last, ids, name, list(hashes), application.base_files, deltas)
        return replace(block, idle=idle, length=length, layers=layers, borrows=served.variant)

    def _turn(self, hop: PlannedHop, gained: bool) -> None:
        hop.route.open += -1 if gained else 1
        self._unsettled[hop.route.route.id] = hop.route
