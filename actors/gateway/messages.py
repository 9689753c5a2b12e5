"""Events that the gateway's state machine takes and effects that it asks for. Values only.

``Generation`` and ``StreamNews`` (port.py), ``Ask`` and ``Chosen`` (dispatcher), ``Submission``, ``SweepReport`` and
``RoutesChanged`` are events and payloads too. Never holds state; standard library and policies only.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...policies.model.chain import Route
from ...policies.plan.coefficients import Coefficients
from ...policies.requests.refusal import RequestRefused
from ...policies.sweep.events import RoutesChanged
from ...policies.sweep.offline_room import OfflineRoom
from ...policies.sweep.page_events import Export, Exported, HoldPages, Unhold
from ..dispatcher.messages import Ask, Chosen
from ..worker.messages import Submission, SweepReport
from .port import Generation, MoveBegun, StreamNews
from .switch_messages import SwitchRoutes


@dataclass(frozen=True, slots=True)
class End:
    """The client's side ends a request: ``stop`` when its text is complete, else the client is gone."""

    request: str
    stop: bool = False


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    worker: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    worker: str
    incarnation: int
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Unsent:
    """An attempt did not reach its home, though that lives (its mailbox was full, say)."""

    request: str
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class Heard:
    """A worker's heartbeat; ``serial`` is the last report that it has made for this gateway. ``offline``: what it takes of
    offline requests; None: nothing is said. ``costs``: of its sweeps, once they are known."""

    worker: str
    incarnation: int
    serial: int
    offline: list[OfflineRoom] | None = None
    costs: Coefficients | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """A running request is to go on on another route. ``attempt``: the one that is left; ``told``: what was promised."""

    request: str
    attempt: int
    route: Route
    told: MoveBegun


@dataclass(frozen=True, slots=True)
class Vacate:
    """No request is to stay at a worker, to which none is sent any more."""

    worker: str


@dataclass(frozen=True, slots=True)
class ExportUnsent:
    """A worker was not reached with the wish for an export; ``news``: what it would have said that came of it."""

    worker: str
    news: Exported


@dataclass(frozen=True, slots=True)
class HoldAnswered:
    """What ``HoldAt`` asked for is done, as far as workers live. ``room``: for pages that are to come."""

    request: str
    attempt: int
    expects: bool
    room: bool


@dataclass(frozen=True, slots=True)
class GatewayTick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Take no more; ``now`` says whether what runs is ended too."""

    now: bool = False


_OfWorkers = RoutesChanged | WorkerJoined | WorkerEnded | SweepReport | Heard
_OfMoves = Move | Vacate | SwitchRoutes | ExportUnsent | HoldAnswered
Event = Generation | End | Chosen | Unsent | GatewayTick | Drain | _OfMoves | _OfWorkers


@dataclass(frozen=True, slots=True)
class Submit:
    worker: str
    submission: Submission


@dataclass(frozen=True, slots=True)
class ExportAt:
    """Have pages sent from one worker to others."""

    worker: str
    wanted: Export


@dataclass(frozen=True, slots=True)
class HoldAt:
    """Have workers keep pages of a request, the last one after all others. ``attempt``: the one that is to come."""

    request: str
    attempt: int
    holds: list[tuple[str, HoldPages]]


@dataclass(frozen=True, slots=True)
class UnholdAt:
    workers: tuple[str, ...]
    unhold: Unhold


@dataclass(frozen=True, slots=True)
class CancelAt:
    worker: str
    requests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """All reports up to ``serial`` have arrived; the worker may forget them."""

    worker: str
    serial: int


@dataclass(frozen=True, slots=True)
class Replay:
    """Send the reports from ``serial`` on again."""

    worker: str
    serial: int


@dataclass(frozen=True, slots=True)
class Deliver:
    news: StreamNews


@dataclass(frozen=True, slots=True)
class Fail:
    """The request ends with an error, before or after it began."""

    request: str
    refused: RequestRefused


@dataclass(frozen=True, slots=True)
class Closed:
    """The request ended by the client's wish: nothing more comes."""

    request: str


@dataclass(frozen=True, slots=True)
class WantRoutes:
    """Requests of these applications wait and have no route, or none with room for them: the controller may bring what is on
    demand, or unload it. Tokens of the longest."""

    applications: dict[str, int]


Effect = WantRoutes | Ask | Submit | ExportAt | HoldAt | UnholdAt | CancelAt | Acknowledge | Replay | Deliver | Fail | Closed
