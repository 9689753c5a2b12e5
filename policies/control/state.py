"""The controller's state machine: the blocks of each worker, and the routes in force.

Only the controller publishes routes. A route is in force while all of its workers are alive and hold their hops' components;
it ends with the first of them. ``handle(event, now)`` returns the effects to perform: what workers are and answer is
recorded, the parties say what they claim, and ``reconcile.py`` makes it true. It costs work for what changed: a heartbeat
touches its worker, a death the routes through it. Never sends, waits or reads a clock, and knows nothing of requests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from ..cluster.application_life import model_of
from ..cluster.traffic import UNMEASURED, LinkCost
from ..cluster.worker_size import SizeRules
from ..model.chain import Route
from ..plain import Plain
from ..requests.routes_changed import RoutesChanged
from .claims import Claim, Withdrawal
from .copies import Copies
from .distribution import Distribution
from .events import (
    Effect,
    Event,
    Fatal,
    LoadFailed,
    Retire,
    Undeploy,
    WorkerCannotStart,
    WorkerDown,
    WorkerNews,
    WorkerReported,
    WorkerStarting,
    WorkerUp,
)
from .holdings import Holdings
from .on_demand import OnDemand
from .parameter_drops import ParameterDrops
from .party import Conclusions, Party
from .reconcile import Reconcile
from .relocations import Relocations
from .scaling import Scaling, ScalingPlan
from .serving import Serving
from .snapshot import copy_of, put_together, take_apart
from .variants import Variants
from .worker_facts import WorkerFacts


class ControllerState:
    """The state of one controller (see the module).

    memory: see ``placement.py``. block_idle: see ``copies.py``. on_demand, scaling: see the modules of these names.
    traffic_window: see ``relocations.py``. link: between two workers, as measured. by_room: see ``placement.py``.
    sizes: applications are placed when the workers have reported what they have, by these rules. None: they report nothing.
    """

    def __init__(
        self,
        workers: Sequence[str],
        stall_timeout: float,
        *,
        memory: Mapping[str, int] | None = None,
        block_idle: float = 0.0,
        on_demand: bool = True,
        scaling: ScalingPlan | None = None,
        sizes: SizeRules | None = None,
        traffic_window: float = 0.0,
        link: LinkCost = UNMEASURED,
        by_room: bool = False,
    ) -> None:
        self.decided = 0  # decisions so far: what a next head cannot learn from workers
        self.default_is_set = False  # a setting names the default model (``table.default``)
        self.holdings = holdings = Holdings(workers, memory or {}, on_demand=on_demand, sizes=sizes, by_room=by_room)
        self.served, self.table = holdings.served, holdings.table
        self.workers, self.residency = holdings.workers, holdings.residency
        self.placement, self.changed = holdings.placement, holdings.changed
        self.overload = ParameterDrops()
        self.demand = OnDemand()
        self.serving = Serving(reports=sizes is not None)
        self.additions = self.serving.additions
        self.scaling = Scaling(scaling or ScalingPlan())
        self.relocations = Relocations(traffic_window, link)
        self.distribution = Distribution()
        # Who claims for another's sake hears of an event first, and gives up before the other does.
        variants = Variants()
        self._parties: tuple[Party, ...] = (
            self.scaling, variants, Copies(block_idle), self.relocations, self.overload, self.demand, self.serving,
        )  # fmt: skip
        # What is loaded decides what is loaded next, and that decides whether dropped parameters are back.
        self._settling: tuple[Party, ...] = (self.serving, self.demand, self.overload, self.relocations, variants)
        self._reconcile = Reconcile(holdings)
        self._facts = WorkerFacts(holdings, self._reconcile, stall_timeout)

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Apply one event; the effects must be performed in order."""
        self.changed.clear()
        self.table.applications.clear()
        if (
            isinstance(event, WorkerStarting | WorkerReported | WorkerUp | WorkerDown | WorkerCannotStart)
            and event.worker not in self.workers
        ):
            return []  # it was drained and forgotten
        if self._take(event, now) or self.changed:
            for party in self._settling:
                while self._conclude(party.settle(self.holdings, now), now):
                    pass
            self._reconcile.advance()
        self.distribution.handle(event, self.holdings, self._reconcile)
        self._conclude(self.scaling.settle(self.holdings, now), now)  # one decision, from what workers have become
        self._reconcile.publish()
        return self._reconcile.take_effects()

    def _take(self, event: Event, now: float) -> bool:
        """Record an event and tell all parties; return False if it is none of their business."""
        if isinstance(event, WorkerNews):
            if not self._facts.take(event, now):
                return False
        elif isinstance(event, Undeploy | Retire):
            self.serving.in_service(event.application, self.holdings)
        if isinstance(event, Retire) and event.default:  # in the same publication
            self.default_is_set = False
            self.decided += 1
            self.table.choose_default(event.default)
        for party in self._parties:
            self._conclude(party.handle(event, self.holdings, now), now)
        match event:
            case WorkerDown(worker):
                self._facts.doom(self.workers[worker], now)
            case LoadFailed(worker, _, load, message) if (
                load.holder in self.holdings.never_ready and not self.workers[worker].extra
            ):
                self._reconcile.perform(Fatal(f"worker {worker} cannot load {model_of(load.holder)}: {message}"))
        return True

    def _conclude(self, conclusions: Conclusions, now: float) -> bool:
        """Carry out what a party concludes, all of it from what it saw; return whether that is anything."""
        found = tuple(one for one in conclusions if not isinstance(one, Claim | Withdrawal) or one.subjects)
        self.decided += len(found)
        for one in found:
            if isinstance(one, Event):
                self._take(one, now)
            elif isinstance(one, Effect):
                self._reconcile.follow(one)
            else:
                self._reconcile.apply(one)
        return bool(found)

    def ready(self, name: str) -> bool:
        """Return whether at least one route of the application is in force."""
        return self.served[name].in_force > 0

    @property
    def routes(self) -> dict[str, Route]:
        """The routes in force, by id."""
        return self.table.in_force

    @property
    def version(self) -> int:
        """The version of the last publication."""
        return self.table.version

    @property
    def whole(self) -> bool:
        """True if every planned route is in force, and there is one."""
        return 0 < self.holdings.planned == len(self.routes)

    @property
    def serves(self) -> bool:
        """True if every deployed application has a route in force, and there is one."""
        return bool(self.holdings.blocks) and all(
            s.parked or s.in_force for s in self.served.values() if s.deployed and s.shown
        )

    @property
    def all_up(self) -> bool:
        return self.holdings.alive == len(self.workers)

    def publication(self) -> RoutesChanged:
        """Return the whole publication."""
        return self.table.publication()

    # copies ----------------------------------------------------------------------------------------------------------

    def fork(self) -> ControllerState:
        """Return an independent copy."""
        return copy_of(self)

    def snapshot(self) -> dict[str, Plain]:
        """Return the whole state as plain data."""
        return take_apart(self)

    @classmethod
    def restore(cls, snapshot: dict[str, Plain]) -> ControllerState:
        """Return the state of a snapshot: equal digest, equal effects from here on."""
        return put_together(snapshot, cls(["w0"], 0.0))

    def digest(self) -> bytes:
        """Return 16 bytes that are equal for equal states. The order of dicts counts, because queues are kept in it."""
        return hashlib.blake2b(repr(self.snapshot()).encode(), digest_size=16).digest()

    def check(self) -> None:
        """Raise AssertionError when an invariant is broken. Reads the whole state."""
        self.holdings.check()
        for party in self._parties:
            party.check(self.holdings)
