"""Claims: what each party wants, as data, and the store of all that is claimed.

A party changes nothing. It says what it claims and what it withdraws, and ``reconcile.py`` makes that true. A route stays
planned, a component on its worker, a route paused, while a party claims it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from ..model.chain import Route
from .events import Application

NOTHING: Mapping[Claimant, str] = MappingProxyType({})


class Claimant(StrEnum):
    """The parties, in the order in which a route's claims are shown."""

    DROPS = "drops"
    COPIES = "copies"
    SERVING = "serving"
    DEMAND = "demand"
    VARIANTS = "variants"
    RELOCATIONS = "relocations"
    DRAINS = "drains"


class ClaimKind(StrEnum):
    """The kinds of claims, each with its subject."""

    PLANNED = "planned"  # a route: it belongs on its workers
    WANTED = "wanted"  # an application: the components of its planned routes are to be loaded
    SUSPENDED = "suspended"  # a route: it stays planned, but what only it needs is not loaded
    PAUSED = "paused"  # a route: gateways start nothing there
    DRAINED = "drained"  # a worker: every route over it is paused, those to come as well
    CLOSED = "closed"  # a worker: nothing more is placed there
    URGENT = "urgent"  # an application: its components load before others report the room that they left
    UNVARIED = "unvaried"  # a worker: no variant serves there


@dataclass(frozen=True, slots=True)
class Claim:
    """A party's claim on subjects of one kind. Claiming again changes the reason."""

    by: Claimant
    kind: ClaimKind
    subjects: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """The end of a party's claims on subjects of one kind."""

    by: Claimant
    kind: ClaimKind
    subjects: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlanRoutes:
    """A claim on routes that are not planned so far. ``idle``, ``beside``: see ``PlannedRoute``."""

    by: Claimant
    why: str
    routes: tuple[Route, ...]
    idle: float = 0.0
    beside: bool = False


@dataclass(frozen=True, slots=True)
class Know:
    """A new application. ``place``: its model's place among all; hidden: as long as it is being added."""

    application: Application
    place: int
    on_demand: bool = False
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class Describe:
    """Facts about an application that gateways hear of; None: as before. ``load_seconds``: as in ``Served``."""

    application: str
    shown: bool | None = None
    draining: bool | None = None
    on_demand: bool | None = None
    load_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class TryAgain:
    """The order to try again to load an application, on one worker or, with "", on all.

    anew: also on workers on which it failed for good.
    """

    application: str
    worker: str = ""
    anew: bool = False


@dataclass(frozen=True, slots=True)
class Dismiss:
    """The end of an application's service, and of all claims to load it. ``forget``: nothing is known of it any more."""

    application: str
    forget: bool = False


@dataclass(frozen=True, slots=True)
class NoteFailure:
    """The finding that an application can load nowhere."""

    application: str
    message: str
    final: bool


@dataclass(frozen=True, slots=True)
class NoteRefusal:
    """The finding that a worker has no room for an application now. ``owned``: see ``NoCapacity``."""

    worker: str
    application: str
    why: str
    owned: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Defer:
    """The order that a worker loads an application only when parameters dropped there are back.

    ``unload``: what it has of it goes.
    """

    worker: str
    application: str
    unload: bool = False


@dataclass(frozen=True, slots=True)
class LetCome:
    """The order that workers load what was deferred, where no parameters are dropped any more."""

    workers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Trim:
    """The order to unload what a worker holds of an application and no route needs."""

    worker: str
    application: str


@dataclass(frozen=True, slots=True)
class TakeFrom:
    """The workers that send components to a worker, by depth; a depth without one comes from files."""

    worker: str
    sources: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Enlist:
    """A worker more, which autoscaling starts, or which has ``joined`` with these ``labels``."""

    worker: str
    joined: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Label:
    """Further labels of a worker that is enlisted."""

    worker: str
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Discharge:
    """The end of a worker that is empty: nothing is planned there any more."""

    worker: str


Change = (
    Claim | Withdrawal | PlanRoutes | Know | Describe | TryAgain | Dismiss | NoteFailure | NoteRefusal | Defer | LetCome
    | Trim | TakeFrom | Enlist | Label | Discharge
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ComponentClaim:
    """A claim on components ``first`` to ``last`` (exclusive) of an application on a worker, as people see it.

    held: all of them are there. paused_by: the parties that want no new requests on the route.
    """

    application: str
    first: int
    last: int
    route: str
    by: Claimant
    why: str
    held: bool
    paused_by: tuple[Claimant, ...] = ()


class Claims:
    """All claims of one cluster (see the module). A change costs work for its own subjects only."""

    def __init__(self) -> None:
        self._on: dict[tuple[ClaimKind, str], dict[Claimant, str]] = {}  # reasons by claimant
        self._of: dict[tuple[ClaimKind, Claimant], dict[str, None]] = {}  # subjects

    def add(self, kind: ClaimKind, subject: str, by: Claimant, why: str) -> None:
        self._on.setdefault((kind, subject), {})[by] = why
        self._of.setdefault((kind, by), {})[subject] = None

    def end(self, kind: ClaimKind, subject: str, by: Claimant | None = None) -> bool:
        """End one party's claim, or all parties' claims; return whether that was the last one."""
        held = self._on.get((kind, subject))
        for one in list(held or ()) if by is None else [by]:
            if held and held.pop(one, None) is not None:
                del self._of[kind, one][subject]
        if held is not None and not held:
            del self._on[kind, subject]
            return True
        return False

    def on(self, kind: ClaimKind, subject: str) -> Mapping[Claimant, str]:
        """Return who claims a subject, with the reasons."""
        return self._on.get((kind, subject), NOTHING)

    def of(self, kind: ClaimKind, by: Claimant) -> Collection[str]:
        """Return the subjects that a party claims, in order of its claims."""
        return self._of.get((kind, by), {}).keys()

    def subjects(self, kind: ClaimKind) -> set[str]:
        return {subject for one, subject in self._on if one is kind}

    def forget(self, subject: str) -> None:
        """End all claims on a subject that exists no more."""
        for kind in ClaimKind:
            self.end(kind, subject)

    def check(self) -> None:
        """Raise AssertionError when the two indices differ."""
        there = {(kind, by, subject) for (kind, subject), held in self._on.items() for by in held}
        assert there == {(kind, by, subject) for (kind, by), held in self._of.items() for subject in held}
        assert all(self._on.values())
