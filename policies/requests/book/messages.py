"""Events that the gateway's state machine takes and effects that it asks for. Values only.

``Generation`` and ``StreamNews`` (port.py), ``Ask`` and ``Chosen`` (dispatcher), ``Submission``, ``SweepReport`` and
``RoutesChanged`` are events and payloads too. Never holds state; standard library and policies only.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...control.route_switch import SwitchRoutes
from ...model.chain import Route
from ...plan.coefficients import Coefficients
from ...sweep.events import Submission
from ...sweep.offline_capacity import OfflineCapacity
from ...sweep.page_events import Export, Exported, HoldPages, Unhold
from ..refusal import RequestRefused
from ..routes_changed import RoutesChanged
from .dispatch_messages import Ask, Chosen
from .sweep_report import SweepReport
from .values import Generation, MoveBegun, StreamNews


@dataclass(frozen=True, slots=True)
class End:
    """The end of a request from the client's side. ``stop``: its text is complete; otherwise the client is gone."""

    request: str
    stop: bool = False


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    worker: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """The end of a worker's life. lasting: False: it is out of reach, and the same life may be heard again."""

    worker: str
    incarnation: int
    cause: str = ""
    lasting: bool = True


@dataclass(frozen=True, slots=True)
class WorkersCut:
    """The pairs of workers that do not reach each other: all of them."""

    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Unsent:
    """An attempt that did not reach its home worker although the worker is alive (a full mailbox, for example)."""

    request: str
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class HeartbeatReceived:
    """A worker's heartbeat. ``serial``: the number of its last report to this gateway.

    ``offline``: the offline capacity it offers; None: not stated. ``costs``: the costs of its sweeps, once they are known.
    ``speed``: bytes of parameters that tokens pass there in a second; 0: not measured. ``numerics``: empty: not stated.
    """

    worker: str
    incarnation: int
    serial: int
    offline: list[OfflineCapacity] | None = None
    costs: Coefficients | None = None
    speed: float = 0.0
    numerics: str = ""


@dataclass(frozen=True, slots=True)
class Move:
    """A running request that is to continue on another route.

    ``attempt``: the attempt it leaves. ``begun``: the answer to the caller.
    """

    request: str
    attempt: int
    route: Route
    begun: MoveBegun


@dataclass(frozen=True, slots=True)
class Vacate:
    """The order to move every request away from a worker. No new ones are sent there any more."""

    worker: str


@dataclass(frozen=True, slots=True)
class ExportUnsent:
    """An export request that did not reach its worker. ``news``: the answer made up in its place."""

    worker: str
    news: Exported


@dataclass(frozen=True, slots=True)
class HoldAnswered:
    """The answer to ``HoldAt``, as far as its workers are alive. ``room``: whether there is memory for the pages to come."""

    request: str
    attempt: int
    expects: bool
    room: bool


@dataclass(frozen=True, slots=True)
class GatewayTick:
    """The passing of time."""


@dataclass(frozen=True, slots=True)
class Drain:
    """The order to admit no more requests. ``now``: whether running requests are ended too."""

    now: bool = False


_OfWorkers = RoutesChanged | WorkerJoined | WorkerEnded | WorkersCut | SweepReport | HeartbeatReceived
_OfMoves = Move | Vacate | SwitchRoutes | ExportUnsent | HoldAnswered
Event = Generation | End | Chosen | Unsent | GatewayTick | Drain | _OfMoves | _OfWorkers


@dataclass(frozen=True, slots=True)
class Submit:
    worker: str
    submission: Submission


@dataclass(frozen=True, slots=True)
class ExportAt:
    """The effect of asking one worker to send pages to others."""

    worker: str
    wanted: Export


@dataclass(frozen=True, slots=True)
class RetireAt:
    """The effect of having cached pages on a worker go before others: they are expected back late, or have moved."""

    worker: str
    route: str
    hashes: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class HoldAt:
    """The effect of asking workers to keep pages of a request, the last worker after all others.

    ``attempt``: the next attempt.
    """

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
    """The acknowledgement of all reports up to ``serial``; the worker may forget them."""

    worker: str
    serial: int


@dataclass(frozen=True, slots=True)
class Replay:
    """The request to send all reports from ``serial`` on again."""

    worker: str
    serial: int


@dataclass(frozen=True, slots=True)
class Deliver:
    news: StreamNews


@dataclass(frozen=True, slots=True)
class Fail:
    """The failure of a request, before or after it began."""

    request: str
    refused: RequestRefused


@dataclass(frozen=True, slots=True)
class Closed:
    """The end of a request by the client's wish: nothing more is delivered."""

    request: str


@dataclass(frozen=True, slots=True)
class WantRoutes:
    """Applications whose requests wait without a route, or without one that has enough memory.

    The controller may load applications on demand, or unload others. Values: tokens of the longest waiting request.
    """

    applications: dict[str, int]


_ToWorkers = Submit | ExportAt | RetireAt | HoldAt | UnholdAt | CancelAt | Acknowledge | Replay
Effect = WantRoutes | Ask | Deliver | Fail | Closed | _ToWorkers
