"""What one worker holds of the applications that belong on it, in its current life, and what it lacks.

Owns the resident components, the load in progress, refusals, the room left to KV, and for each hop of a planned route the
count of its missing components. A change costs work for the components and routes that it is about, not for the others.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from ...policies.cluster.adapter_base import WholeModel
from ...policies.cluster.application_life import first_missing, serving_one
from ...policies.cluster.demand import HopRoom
from ...policies.model.chain import Block, Hop, Route
from ...policies.requests.admission import capacity_tokens, cramped
from ...policies.requests.dispatch import UNKNOWN
from ...policies.requests.load_failure import LoadFailure
from ..worker.messages import LoadBlock
from .messages import Application


@dataclass(slots=True, eq=False)
class Served:
    """An application and what became of it."""

    application: Application
    rank: int  # its place among all that were ever served: what loads first
    place: int  # its model's place among all
    blocks: tuple[Block, ...] = ()
    planned: list[PlannedRoute] = field(default_factory=list)  # in force when every worker is up and loaded
    deployed: bool = True
    on_demand: bool = False  # it did not fit beside the others, and is loaded when it is asked for
    parked: bool = False  # it is on demand, and in no worker now
    shown: bool = True  # its chain and routes are published; what is being added waits for that
    draining: bool = False  # it takes no new requests
    ever_ready: bool = False  # it has had a route in force
    in_force: int = 0  # routes
    failure: LoadFailure | None = None  # why it can come nowhere, as last tried

    @property
    def here(self) -> bool:
        """Its components belong on workers now."""
        return self.deployed and not self.parked


@dataclass(slots=True, eq=False)
class PlannedRoute:
    """A route that comes into force as soon as ``open`` is 0."""

    route: Route  # version 0
    served: Served
    hops: tuple[PlannedHop, ...] = ()
    open: int = 0  # hops whose worker does not serve them yet
    idle: float = 0.0  # of one through a block that was deployed for a burst: seconds without use after which it ends
    ended: bool = False  # it belongs nowhere any more
    suspended: bool = False  # a pipeline serves in its place: what it lacks is not loaded, what only it needs can go

    @property
    def whole(self) -> bool:
        return self.open == 0 and not (self.ended or self.suspended) and self.served.here and self.served.shown

    @property
    def late(self) -> bool:
        """A worker of it loads it only once the parameters are back that were dropped there."""
        return any(self.route.application in hop.residency.late for hop in self.hops)

    def is_on(self, worker: str) -> bool:
        return any(hop.worker == worker for hop in self.route.hops)

    def capacity(self) -> int:
        """Tokens of one sequence that the route's workers can hold: the least of its hops.

        From raw bytes, so at most a little too many: the worker, which knows its back end's padding, refuses the rest.
        """
        return min(capacity_tokens(hop.residency.room or 0, hop.page_size, hop.page_bytes) for hop in self.hops)

    def most(self) -> int:
        """The same once no other application is there; 0: none goes."""
        return min(hop.most_tokens for hop in self.hops)


@dataclass(slots=True, eq=False)
class PlannedHop:
    """A stretch of an application that belongs on a worker; its pages as ``page_of`` says."""

    route: PlannedRoute
    residency: Residency
    first: int
    last: int
    page_size: int  # tokens
    page_bytes: int
    missing: int  # components

    @property
    def held(self) -> bool:
        """The worker serves it."""
        return not self.missing and self.residency.serving

    @property
    def most(self) -> int:
        """Bytes left to KV once no other application is there, as its worker last said; 0: none goes."""
        known = self.residency.left_alone
        return 0 if known is None else known.get(self.route.route.application, UNKNOWN)

    @property
    def most_tokens(self) -> int:
        return UNKNOWN if self.most == UNKNOWN else capacity_tokens(self.most, self.page_size, self.page_bytes)

    def room(self, worker: str) -> HopRoom:
        """For whoever makes more; ``worker``: its name."""
        return HopRoom(worker, self.page_size, self.page_bytes, self.residency.room or 0, self.most)


def serving(served: Mapping[str, Served], model: str) -> Served | None:
    """The application that takes a model's new requests, or, while there is none, that will."""
    return serving_one(s for s in served.values() if s.application.served_as == model)


def whole_models(served: Mapping[str, Served]) -> list[WholeModel]:
    """Return what an adapter can be put on: whole models that are served, then removed ones that adapters still hold."""
    here = [one.application for one in served.values() if one.deployed]
    wholes = [
        WholeModel(one.application.served_as, one.application.checkpoint)
        for one in served.values()
        if one.deployed and not (one.draining or one.application.changed)
    ]
    known = {whole.checkpoint for whole in wholes}
    held = {one.base: WholeModel(one.base_model, one.base, served=False) for one in here if one.base}
    return [*wholes, *(whole for checkpoint, whole in held.items() if checkpoint not in known)]


def not_served(served: Mapping[str, Served], model: str, besides: str = "") -> LookupError:
    """Return the error for a model that there is not, with those that there are, ``besides`` this one."""
    there = ", ".join(sorted({one.application.served_as for one in served.values()} - {besides}))
    return LookupError(f"model {model!r} does not exist; there are: {there}")


class Residency:
    """See the module. ``touched`` collects the routes of which a hop was gained or lost, or whose capacity may differ."""

    def __init__(self, served: Mapping[str, Served], touched: dict[str, PlannedRoute]) -> None:
        self.hops: dict[str, list[PlannedHop]] = {}  # application -> those here, also of applications that are withdrawn
        self.resident: dict[str, set[int]] = {}  # application -> depths of its components that are here
        self.refused: dict[str, str] = {}  # application -> why it could not be loaded here
        self.late: set[str] = set()  # applications that came while parameters were dropped here, until all of them is loaded
        self.loading: LoadBlock | None = None  # the one load in progress
        self.room: int | None = None  # bytes left to KV, when last asked
        self.left_alone: dict[str, int] | None = {}  # application -> bytes that would be, with it alone; None: nobody goes
        self.owned: dict[str, int] = {}  # application -> bytes of packed tensors that go with it, as was last said
        self.room_stale = True  # parameters have changed since, or nobody asked
        self.asking = False  # a question about room is under way
        self.serving = False  # the worker is well and its room is known: complete hops count
        self._partial: set[str] = set()  # applications that began to load and lack components
        self._queue: list[tuple[int, str]] = []  # heap of (rank, application) of all that may lack components; some may not
        self._queued: set[str] = set()  # applications in it
        self._served, self._touched = served, touched

    def plan(self, route: PlannedRoute, hop: Hop, page: tuple[int, int]) -> PlannedHop:
        """A hop of a new route belongs here. page: its size in tokens and in bytes."""
        name = route.route.application
        here = self.resident.get(name, ())
        missing = sum(depth not in here for depth in range(hop.first, hop.last))
        planned = PlannedHop(route, self, hop.first, hop.last, *page, missing)
        route.open += not planned.held
        self.hops.setdefault(name, []).append(planned)
        return planned

    def clear(self) -> None:
        """A life began or ended: nothing is here."""
        self.serve(False)
        for name in self.resident:
            for hop in self.hops.get(name, ()):
                hop.missing = hop.last - hop.first
        self.resident, self.refused, self.loading = {}, {}, None
        self.late.clear()
        self.room, self.room_stale, self.asking = None, True, False
        self.left_alone, self.owned = {}, {}
        self._partial.clear()
        self._queued = {name for name, served in self._served.items() if served.here}
        self._queue = [(self._served[name].rank, name) for name in self._queued]
        heapq.heapify(self._queue)

    def serve(self, well: bool) -> None:
        """Whether the worker can serve at all; complete hops follow, once the room is known."""
        serving = well and self.room is not None
        if serving != self.serving:
            self.serving = serving
            for name in self.resident:
                for hop in self.hops.get(name, ()):
                    if not hop.missing:
                        self._turn(hop, serving)

    def set_room(self, nbytes: int, left_alone: dict[str, int] | None, owned: dict[str, int]) -> None:
        changed = (nbytes, left_alone) != (self.room, self.left_alone)
        self.room, self.left_alone, self.owned, self.asking = nbytes, left_alone, owned, False
        if changed and self.serving:
            for name in self.resident:
                self._touched.update((hop.route.route.id, hop.route) for hop in self.hops.get(name, ()) if not hop.missing)

    def cramped(self, worker: str, applications: Iterable[str]) -> str:
        """Why none can be served where parameters leave no room for one page of a sequence of one; else ""."""
        held = ((name, hop) for name in applications for hop in self.hops.get(name, ()) if hop.held)
        return next(filter(None, (cramped(worker, name, self.room or 0, hop.page_bytes) for name, hop in held)), "")

    def loaded(self, load: LoadBlock) -> None:
        """Components of a deployed application have come."""
        name = load.holder
        here = self.resident.setdefault(name, set())
        new = [depth for depth in range(load.first, load.last) if depth not in here]
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

    def withhold(self, name: str, why: str) -> None:
        """It is not loaded before the parameters are back that were dropped here."""
        self.late.add(name)
        self.refuse(name, why)

    def waits(self, name: str) -> bool:
        """It comes late, and is not to be loaded now: until then it belongs to other workers alone."""
        return name in self.late and name in self.refused

    def want(self, name: str) -> None:
        """The application is deployed (again): what it lacks is to be loaded, also after a refusal."""
        self.refused.pop(name, None)
        if name not in self._queued:
            self._queued.add(name)
            heapq.heappush(self._queue, (self._served[name].rank, name))
        self._sort(name)

    def spare(self, name: str) -> None:
        """Routes of the application are suspended: what only they lack here is not to be loaded."""
        self._sort(name)

    def withdraw(self, name: str) -> set[int]:
        """The application is undeployed: the depths that were here, and go."""
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
        """A route of the application has ended or is suspended: the depths that no other needs here, and that go."""
        here = self.resident.get(name, set())
        gone = here - {depth for hop in self._needed(name) for depth in range(hop.first, hop.last)}
        here -= gone
        for hop in self.hops.get(name, ()) if gone else ():  # those of suspended routes
            if not hop.missing and self.serving and any(hop.first <= depth < hop.last for depth in gone):
                self._turn(hop, False)
            hop.missing += sum(hop.first <= depth < hop.last for depth in gone)
        if not here:
            self.resident.pop(name, None)
        self._sort(name)
        self.room_stale = self.room_stale or bool(gone)
        return gone

    def forget(self, name: str) -> set[int]:
        """The application is gone for good: the depths that were here, and go."""
        depths = self.withdraw(name)
        self.hops.pop(name, None)
        self.refused.pop(name, None)
        if name in self._queued:
            self._queued.discard(name)
            self._queue = [entry for entry in self._queue if entry[1] != name]
            heapq.heapify(self._queue)
        return depths

    def next_load(self) -> LoadBlock | None:
        """The first block that is missing, in order of applications and depth."""
        while self._queue:
            name = self._queue[0][1]
            if self._wants(name):
                return self._first_missing(name)
            heapq.heappop(self._queue)
            self._queued.discard(name)
        return None

    def ask_room(self) -> bool:
        """Whether the room has to be asked for now: parameters came or went, and no application is half here."""
        due = self.room_stale and not self.asking and not self._partial and bool(self.resident)
        if due:
            self.asking, self.room_stale = True, False
        return due

    def lacks(self, name: str) -> bool:
        """Components of the application are to be loaded here, and can be."""
        return name in self._served and self._wants(name)

    def misses(self, name: str) -> bool:
        """Components of the application belong here now and are not here, whether they can be loaded or not."""
        return any(hop.missing for hop in self._needed(name))

    def lacks_replica(self, name: str) -> bool:
        """The same, and not only for a block that was deployed for a burst."""
        return self.lacks(name) and any(hop.missing and not hop.route.idle for hop in self._needed(name))

    def parts(self, name: str) -> set[bytes]:
        """Ids of the components and deltas of an application that are here."""
        return self._ids(name, self.resident.get(name, ()))

    def wanted_parts(self, name: str) -> set[bytes]:
        """The same of those that are to be here."""
        return self._ids(name, {depth for hop in self._needed(name) for depth in range(hop.first, hop.last)})

    def _ids(self, name: str, depths: Iterable[int]) -> set[bytes]:
        components = self._served[name].application.components
        return {id for depth in depths for id in (components[depth].shared, components[depth].delta) if id}

    def holds(self, name: str, first: int, last: int) -> bool:
        """Components ``first`` .. ``last`` (exclusive) of the application are here."""
        return self.resident.get(name, set()).issuperset(range(first, last))

    def check(self, well: bool) -> None:
        """Raise AssertionError when a count is not what is resident."""
        assert self.serving == (well and self.room is not None)
        for name, hops in self.hops.items():
            here, served = self.resident.get(name, set()), self._served[name]
            for hop in hops:
                assert hop.missing == sum(depth not in here for depth in range(hop.first, hop.last)), name
            assert (name in self._partial) == (bool(here) and self._wants(name)), name
            assert name in self._queued or not self._wants(name), name
            assert served.here or not here, name
            assert name not in self.late or (served.here and any(hop.missing for hop in hops)), name
        assert {name for _, name in self._queue} == self._queued
        assert len(self._queue) == len(self._queued)

    def _wants(self, name: str) -> bool:
        served = self._served[name]
        return served.here and name not in self.refused and any(hop.missing for hop in self._needed(name))

    def _needed(self, name: str) -> list[PlannedHop]:
        """Those of an application that are to be served."""
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
        ids, deltas, hashes = [c.shared for c in components], [c.delta for c in components], application.hashes[first:last]
        idle = min(hop.route.idle for hop in needed if hop.first <= first and last <= hop.last)
        length, layers = application.max_length, sum(c.kv is not None for c in application.components)
        block = LoadBlock(application.checkpoint, first, last, ids, name, list(hashes), application.base, deltas)
        return replace(block, idle=idle, length=length, layers=layers)

    def _turn(self, hop: PlannedHop, gained: bool) -> None:
        hop.route.open += -1 if gained else 1
        self._touched[hop.route.route.id] = hop.route
