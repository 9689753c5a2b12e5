"""The gateway's interface for the HTTP front: ``GatewayPort`` and its values.

With ``peers.py`` it is all that ``api/`` imports from ``actors/gateway``. The values of requests are those of
``policies/requests/book/values.py``. Standard library and policies only. ``actors/gateway/actor.py`` implements
``GatewayPort``; tests of ``api/`` use a fake.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...policies.requests.book.values import (
    AutoTier,
    Census,
    Credit,
    DispatchFigures,
    DraftCounts,
    DraftView,
    ForecastPoint,
    Generation,
    LengthFigures,
    ModelInfo,
    MoveBegun,
    MoveFigures,
    Readiness,
    RequestLine,
    RequestView,
    ServiceView,
    StreamNews,
    StreamProgress,
    TierFigures,
    TierView,
)
from ...policies.requests.event_id import AnswerBasis
from ...policies.requests.rate_limit import LimitStatus, Verdict
from ...policies.requests.refusal import Refusal, RequestRefused
from ...policies.requests.remembered import KnownAnswer
from ...policies.requests.request_ownership import Viewer
from ...policies.sweep.events import TokensEmitted

__all__ = [
    "AnswerBasis",
    "ApplicationView",
    "AutoTier",
    "Census",
    "Credit",
    "DispatchFigures",
    "DraftCounts",
    "DraftView",
    "DrainAnswered",
    "ForecastPoint",
    "GatewayPort",
    "Generation",
    "KnownAnswer",
    "LengthFigures",
    "ModelInfo",
    "MoveBegun",
    "MoveFigures",
    "MovesBegun",
    "NewApplication",
    "Readiness",
    "RefusedChange",
    "RemovalView",
    "RequestLine",
    "RequestView",
    "Service",
    "ServiceView",
    "StreamNews",
    "StreamProgress",
    "TierFigures",
    "TierView",
    "TokenStream",
    "accepted",
]


Listener = Callable[[TokensEmitted], bool]


class TokenStream(Protocol):
    """A running generation. Iteration raises RequestRefused if no worker came or the request is poison."""

    def __aiter__(self) -> AsyncIterator[StreamNews]: ...

    def listen(self, listener: Listener) -> None:
        """Offer tokens to ``listener`` while the reader waits for them, all but the last ones of the answer.

        It returns True if it took them: the reader does not wake. It must not end the generation. What it raises, the
        iteration raises.
        """

    def stop(self) -> None:
        """End the generation as "stop", since its text is complete (a stop string); free the sequence."""

    def cancel(self) -> None:
        """End the generation because the client is gone. Idempotent, also after the end."""

    def progress(self) -> StreamProgress:
        """Return the progress now, or at the end."""


@dataclass(frozen=True, slots=True)
class NewApplication:
    """An application to serve in addition. ``path``: a folder below one of the roots (setting ``app_roots``)."""

    name: str  # the model id
    path: str
    base: str = ""  # the served model that an adapter belongs to
    replace: bool = False  # whether it replaces the application of the same name
    wait: float = 60.0  # seconds to wait for readiness; loading goes on after that
    defaults: str = ""  # as in ``ModelInfo``
    on_demand: bool = False  # added by the server itself: loaded when requests ask for it
    base_path: str = ""  # the folder of ``base`` before a restart: another model of that id is no base for it


@dataclass(frozen=True, slots=True)
class ApplicationView:
    """An application that was added, with its tiers. Sizes are raw bytes of parameters."""

    id: str
    checkpoint: str
    ready: bool
    max_length: int
    own: int
    shared: int  # with other applications
    base: str = ""  # of an adapter: the id of the model that it was put on
    tiers: tuple[str, ...] = ()  # of a family: the ids of its lower tiers, which were added with it


@dataclass(frozen=True, slots=True)
class RemovalView:
    """The consequences of the removal of an application.

    gone: its memory was free within the given time plus a little more. freed: bytes of parameters that only it had.
    adapters: number of adapters on it, which keep its parameters. default: the id that stands for requests without a
    model. answered: whether a model of that id is served. drafts: a sentence for each entry of the setting ``drafts`` that
    names it or one of its tiers.
    """

    gone: bool
    freed: int
    adapters: int
    default: str
    answered: bool
    drafts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RefusedChange:
    """A ``RequestRefused`` as a value, on its way to the gateway that asked for a change."""

    why: Refusal
    message: str
    param: str | None = None


@dataclass(frozen=True, slots=True)
class MovesBegun:
    """The result of asking to move a request. ``moves``: empty if there is no such request."""

    moves: list[MoveBegun]
    refused: RefusedChange | None = None


@dataclass(frozen=True, slots=True)
class DrainAnswered:
    """The result of asking to drain a worker. Counts: its sequences by its last heartbeat."""

    running: int = 0
    waiting: int = 0
    refused: RefusedChange | None = None


def accepted(answer: Any) -> Any:
    """Return the answer; raise RequestRefused if it is a refusal."""
    if isinstance(answer, RefusedChange):
        raise RequestRefused(answer.why, answer.message, param=answer.param)
    return answer


@dataclass(frozen=True, slots=True)
class GatewayPlace:
    """The place of a gateway, for people. address: of its HTTP, if it has one of its own. labels: its starter's."""

    host: str
    pid: int
    address: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    joined: bool = False


@dataclass(frozen=True, slots=True)
class GatewayStatus:
    """The state of a gateway, for people. requests: that have not ended."""

    place: GatewayPlace
    draining: bool
    requests: int


@dataclass(frozen=True, slots=True)
class Service:
    """The models and readiness of one gateway."""

    models: list[ModelInfo]
    readiness: Readiness


class GatewayPort(Protocol):
    """The gateway, as the HTTP front uses it (see the module)."""

    name: str  # name of this gateway; part of every request id that it makes

    def models(self) -> list[ModelInfo]: ...

    def default_model(self) -> str:
        """Return the id that stands for requests without a model; it may have been removed."""

    def ready(self) -> Readiness: ...

    def generate(self, generation: Generation) -> TokenStream:
        """Admit and start a generation.

        Raises RequestRefused: no such model, it can never fit, there is no room, or the server is shutting down.
        """

    async def answer_basis(self, models: Sequence[str]) -> AnswerBasis:
        """Return what the answers of these models follow from; raise RequestRefused while that is not known."""

    async def remembered(self, generation: Generation) -> KnownAnswer:
        """Return the beginning of an answer that was cut off, if a worker remembers it."""

    def credits(self, application: str) -> list[Credit]:
        """Return the offline credit of each worker for an application, by worker name; workers without credit are
        included.

        Offline requests beyond the credit may be passed to ``generate``: they wait here until there is credit again, as do
        requests that a worker gives back for lack of room.
        """

    async def credit_grown(self) -> None:
        """Return when a worker may take more than at the time of the call, or one has come or gone.

        Call it in the same turn of the loop as ``credits``, or growth between the two is missed.
        """

    def describe(self, request: str) -> RequestView | None: ...

    def requests(self, viewer: Viewer, limit: int) -> list[RequestLine]:
        """Return the requests that the viewer may see: running and waiting ones, then ended ones; latest first in each
        group.
        """

    def census(self) -> dict[str, Census]:
        """Return the census of each application, without applications that have no sequence."""

    def tenants(self) -> dict[str, Census]:
        """Return the census by account, without accounts that have no sequence."""

    def lengths(self) -> LengthFigures:
        """Return the figures of all requests so far."""

    def dispatching(self) -> DispatchFigures:
        """Return the figures of all requests so far."""

    def cancel(self, request: str) -> bool:
        """End a running request with all its choices; return False if there is none."""

    def move(self, request: str, worker: str, route: str) -> list[MoveBegun]:
        """Move a running request with all its choices; return no move if there is no such request.

        It goes to a route whose home is ``worker``, to ``route``, or, if both are empty, to the best other route. Raises
        RequestRefused, and then nothing moves.
        """

    def moves(self) -> MoveFigures:
        """Return the figures of all requests so far."""

    def tiers(self) -> TierFigures:
        """Return the figures of all requests so far."""

    async def charge(self, tenant: str, tokens: int) -> Verdict:
        """Charge the tenant with a request of at most ``tokens`` tokens; charge nothing if the verdict refuses it."""

    def settle(self, tenant: str, charged: int, used: int) -> None:
        """Settle the charge of an admitted request that is over."""

    async def limit(self, tenant: str, name: str) -> int:
        """Return the value of a limit, see ``Limits`` of ``policies/requests/rate_limit.py``."""

    async def add_application(self, new: NewApplication) -> ApplicationView:
        """Add an application; return when all gateways can serve it, or, not ready, when ``wait`` is over.

        Raises RequestRefused with the field at fault; then everything is unchanged.
        """

    async def find_application(self, name: str) -> bool:
        """Serve the adapter of that name from the folder of the setting ``adapters``, if it is there.

        Raises RequestRefused if it cannot be served.
        """

    async def remove_application(self, name: str, grace: float, default: str = "") -> RemovalView:
        """Take no new requests for a model, and give the running ones ``grace`` seconds.

        default: the id that stands for requests without a model from then on; "": unchanged. Raises RequestRefused.
        """

    async def standings(self, tenants: list[str]) -> dict[str, dict[str, LimitStatus]]:
        """Return the state of the limits of ``tenants`` and of all tenants that have sent something, by tenant and limit."""

    async def drain_worker(self, worker: str, drain: bool) -> DrainAnswered:
        """Move what runs on a worker elsewhere and send nothing more there; with ``drain`` false, undo that.

        Raises RequestRefused.
        """

    async def cluster(self) -> dict[str, Any]:
        """Return the body of ``/admin/cluster``."""

    async def claims(self, workers: Sequence[str], models: Sequence[str]) -> list[dict[str, Any]]:
        """Return who claims components of these models on workers, and why: as for each worker in ``/admin/cluster``."""

    async def actors(self) -> list[dict[str, Any]]:
        """Return the reachable nodes, as the runtime's ``NodeView`` in plain data."""

    async def drain(self, seconds: float) -> None:
        """Become not ready; return when nothing runs or the time is over. Requests still left then are ended."""
