"""What the HTTP front asks of the gateway: the only names of ``actors/gateway`` that ``api/`` imports.

Standard library and policies only. ``actors/gateway/actor.py`` implements ``GatewayPort``; tests of ``api/`` use a fake.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...policies.plan.coefficients import Coefficients
from ...policies.plan.sampling import SamplingParams
from ...policies.prediction.lengths import Accuracy
from ...policies.requests.account import account_of
from ...policies.requests.rate_limit import Standing, Verdict
from ...policies.requests.refusal import Refusal, RequestRefused
from ...policies.requests.request_ownership import Viewer
from ...policies.sweep.events import PromptScored, TokensEmitted
from ..histogram import Histogram


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One sequence to generate (a request with n choices is n of these)."""

    id: str  # "<request id>" or "<request id>/<choice>" for choice > 0
    application: str
    prompt: list[int]
    max_tokens: int  # new tokens at most; at least 1
    stop_tokens: list[int]  # ids that end the sequence (empty with ignore_eos)
    stop_strings: int = 0  # texts that end it; how many: what they are is ``api/``'s
    sampling: SamplingParams
    tenant: str = ""
    key: str = ""  # names the API key that asked
    priority: int = 0
    salt: bytes = b""
    trace: str = ""  # a W3C traceparent, handed on to the workers
    offline: bool = False  # nobody waits for it: it runs on what online requests leave, and is sent by ``credits`` only
    home: str = ""  # of an offline one: the worker that it is meant for; another one where that is gone
    side: str = ""  # of an offline one: "left" or "right" of the dual scanner, whose pages are counted apart

    @property
    def account(self) -> str:
        return account_of(self.tenant, self.application)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """How much offline work one worker takes now, for one application: sequences that would start at its next sweep."""

    worker: str  # "": none has the application, which is loaded for the first request
    rows: int  # sequences
    positions: int  # tokens of KV that are free for offline sequences, less those of prompts that are on their way
    room: int  # the same while nothing else runs there: the M of the dual scanner
    costs: Coefficients | None = None  # what its sweeps cost, as it has measured; None: not known yet
    sweeps: int = 0  # that it has made, as it told last: its sequences have grown meanwhile


StreamNews = TokensEmitted | PromptScored
"""What a stream tells, in the worker's own words: tokens in order, without gap or repeat, whatever happened to workers
meanwhile; before the first of them, where they were asked for, the log-probabilities of all prompt tokens but the first."""


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """How far a sequence is."""

    place: int = 0  # among the ``queued`` requests that no worker has planned yet, from 1; 0 once it is planned
    queued: int = 0
    prompt: int = 0  # tokens
    computed: int = 0  # of these, with KV in the current attempt
    cached: int = 0  # of these, found and not computed in the first attempt
    queue_seconds: float | None = None  # from its arrival to its first plan
    preemptions: int = 0


@dataclass(slots=True)
class Census:
    """The sequences of one application."""

    running: int = 0
    waiting: dict[str, int] = field(default_factory=dict)  # "capacity" | "no_worker" | "isolated" -> sequences


@dataclass(slots=True)
class LengthFigures:
    """How good estimates of lengths were at this gateway."""

    accuracy: Accuracy = field(default_factory=Accuracy)
    unanswered: int = 0  # times that the tagger did not answer in time


@dataclass(frozen=True, slots=True)
class ForecastPoint:
    """A request that has ended: seconds from when it was asked about to its tokens, as predicted and as they came."""

    request: str
    predicted_first_token: float
    first_token: float
    predicted_last_token: float
    last_token: float


ASK_BOUNDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)  # seconds
ERROR_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2, 5, 10)  # parts of what came
RANK_BOUNDS = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64)
POINTS = 200


@dataclass(slots=True)
class DispatchFigures:
    """What came of asking dispatchers at this gateway. Reasons are those of ``actors/dispatcher/messages.py``."""

    asked: Histogram = field(default_factory=lambda: Histogram(ASK_BOUNDS))  # seconds until an answer, or the lack of one
    fallbacks: dict[str, int] = field(default_factory=dict)  # reason -> requests that went elsewhere than by the policy
    unanswered: dict[str, int] = field(default_factory=dict)  # reason -> predictors that had nothing to say
    first_token_error: Histogram = field(default_factory=lambda: Histogram(ERROR_BOUNDS))
    latency_error: Histogram = field(default_factory=lambda: Histogram(ERROR_BOUNDS))
    rank: Histogram = field(default_factory=lambda: Histogram(RANK_BOUNDS))
    points: deque[ForecastPoint] = field(default_factory=lambda: deque(maxlen=POINTS))  # the last


@dataclass(slots=True)
class MoveFigures:
    """What came of moves at this gateway: pages of the request were found at its new home, or none; or it stayed, ended, or
    began anew for another reason."""

    outcomes: dict[str, int] = field(default_factory=lambda: {"copied": 0, "recomputed": 0, "abandoned": 0})


@dataclass(frozen=True, slots=True)
class MoveBegun:
    """A sequence leaves a worker for another one. ``pages``, ``nbytes``: full pages of its KV that are copied first."""

    request: str
    source: str  # its home
    target: str  # and the next one
    route: str  # id of the new route
    pages: int
    nbytes: int


class TokenStream(Protocol):
    """A running generation. Iterating may raise RequestRefused: no worker came, or the request is poison."""

    def __aiter__(self) -> AsyncIterator[StreamNews]: ...

    def stop(self) -> None:
        """The text is complete (a stop string): end as "stop", free the sequence."""

    def cancel(self) -> None:
        """The client is gone. Idempotent, also after the end."""

    def progress(self) -> StreamProgress:
        """Now, or at the end."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A served application. Tokenizer, chat template and defaults come from the folder ``checkpoint``.

    adapter: a folder whose own files of this kind count before those; "": there is none.
    """

    id: str
    checkpoint: str
    max_length: int  # tokens of a prompt and its answer
    created: int
    ready: bool
    parent: str | None = None  # the served application that it shares most parameters with, if it came earlier
    rooms: tuple[int, ...] = ()  # tokens of KV that each route in force holds while nothing else runs there
    longest: int = 0  # tokens that fit there once others have been unloaded for them; 0: not known
    virtual: int = 0  # tokens before every prompt that clients do not see; none of the other numbers counts them
    adapter: str = ""
    base: str = ""  # of an adapter: the id of the model that it was put on
    defaults: str = ""  # what its requests get where they say nothing, as a JSON object; "": nothing

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders that texts are made with, the first one's files before the next one's."""
        return (self.adapter, self.checkpoint) if self.adapter else (self.checkpoint,)


@dataclass(frozen=True, slots=True)
class NewApplication:
    """What to serve besides what is served. ``path``: a folder below a root (setting ``app_roots``)."""

    name: str  # the model id
    path: str
    base: str = ""  # the served model that an adapter belongs to
    replace: bool = False  # the application that is served under this name
    wait: float = 60.0  # seconds for an answer; loading goes on behind it
    defaults: str = ""  # as of ``ModelInfo``
    on_demand: bool = False  # it is loaded when requests ask for it, and nobody has asked for its addition


@dataclass(frozen=True, slots=True)
class ApplicationView:
    """An application that was added. Sizes are raw bytes of parameters."""

    id: str
    checkpoint: str
    ready: bool
    max_length: int
    own: int
    shared: int  # with other applications
    base: str = ""  # of an adapter: the id of the model that it was put on


@dataclass(frozen=True, slots=True)
class RemovalView:
    """The consequences of the removal of an application.

    gone: its memory was free again in the time given and a little more. freed: bytes of parameters that only it had.
    adapters: those that are on it, and keep its parameters. default: the id that stands for requests without a model;
    answered: a model of that id is served.
    """

    gone: bool
    freed: int
    adapters: int
    default: str
    answered: bool


@dataclass(frozen=True, slots=True)
class RefusedChange:
    """A ``RequestRefused`` on its way to the gateway that asked for a change."""

    why: Refusal
    message: str
    param: str | None = None


@dataclass(frozen=True, slots=True)
class MovesBegun:
    """What came of a wish to move a request; ``moves``: none where there is no such request."""

    moves: list[MoveBegun]
    refused: RefusedChange | None = None


@dataclass(frozen=True, slots=True)
class DrainAnswered:
    """What came of a wish to drain a worker; sequences there by its last heartbeat."""

    running: int = 0
    waiting: int = 0
    refused: RefusedChange | None = None


def accepted(answer: Any) -> Any:
    """What was not refused. Raises RequestRefused."""
    if isinstance(answer, RefusedChange):
        raise RequestRefused(answer.why, answer.message, param=answer.param)
    return answer


@dataclass(frozen=True, slots=True)
class Readiness:
    """``ready`` when at least one application can be served and the server is not draining."""

    ready: bool
    reason: str = ""
    retry_after: float = 1.0
    applications: dict[str, str] = field(
        default_factory=dict
    )  # application -> "ready" | "on demand" | "loading" | "waiting" | "failed"


@dataclass(frozen=True, slots=True)
class Service:
    """What one gateway serves."""

    models: list[ModelInfo]
    readiness: Readiness


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestView:
    """``GET /v1/requests/{id}``."""

    id: str
    state: str  # "waiting" | "running" | "finished" | "cancelled" | "failed"
    attempt: int
    home: str | None  # of the current attempt, or the last when it has ended; None while it waits
    route: list[dict[str, Any]]  # {"worker", "first", "last"} for each hop; empty while it waits
    prompt_tokens: int
    computed_tokens: int
    emitted_tokens: int
    events: list[dict[str, Any]]  # {"at": seconds since arrival, "event": str, ...}
    dispatch: dict[str, Any] | None = None  # of the current or last attempt, see ``Decision.view``; None: nobody was asked
    key: str = ""  # that made it, see ``policies/requests/request_ownership.py``
    arrival: float = 0.0  # seconds on the gateway's clock
    tenant: str = ""  # of that key
    model: str = ""  # that was asked for
    place: int = 0  # among the ``queued`` requests that no worker has planned yet, from 1; 0 once it is planned
    queued: int = 0
    starts_in: float | None = None  # seconds until it begins, as requests ended lately; None: unknown, or it has begun


@dataclass(frozen=True, slots=True)
class RequestLine:
    """A request in ``GET /v1/requests``. ``age``: seconds from its arrival until now, or until it ended; ``ended``: seconds
    since it ended, None while it has not."""

    id: str
    model: str
    state: str  # as of ``RequestView``
    place: int  # in the queue, from 1; 0: it does not wait
    prompt_tokens: int
    computed_tokens: int
    emitted_tokens: int
    home: str | None
    attempt: int
    age: float
    tenant: str = ""
    ended: float | None = None


class GatewayPort(Protocol):
    """See the module."""

    name: str  # of this gateway; a part of every request id it makes

    def models(self) -> list[ModelInfo]: ...

    def default_model(self) -> str:
        """Return the id that stands for requests without a model; it may have been removed."""

    def ready(self) -> Readiness: ...

    def generate(self, generation: Generation) -> TokenStream:
        """Admit and start. Raises RequestRefused: no such model, it can never fit, there is no room, the server ends."""

    def credits(self, application: str) -> list[Credit]:
        """What workers take of offline requests for an application, those that take nothing now included; in the order of
        their names. ``generate`` of offline requests beyond it is no fault: they wait here until there is credit again, as
        do those that a worker gives back for want of room."""

    async def credit_grown(self) -> None:
        """Returns when a worker may take more than it did when this was called, or one has come or gone. Call it in the same
        turn of the loop as ``credits``, or growth between the two is missed."""

    def describe(self, request: str) -> RequestView | None: ...

    def requests(self, viewer: Viewer, most: int) -> list[RequestLine]:
        """Return those that the viewer may see: what runs and waits, then what ended; of each the latest first."""

    def census(self) -> dict[str, Census]:
        """By application; without those that have no sequence."""

    def tenants(self) -> dict[str, Census]:
        """Return the census by account, without accounts that have no sequence."""

    def lengths(self) -> LengthFigures:
        """Of all requests so far."""

    def dispatching(self) -> DispatchFigures:
        """Of all requests so far."""

    def cancel(self, request: str) -> bool:
        """End a running request, all choices of it; False when there is none."""

    def move(self, request: str, worker: str, route: str) -> list[MoveBegun]:
        """Move a running request, all choices of it, to a route whose home is ``worker``, to ``route``, or (both empty) to
        the best other one; none where there is no such request. Raises RequestRefused, and then nothing moves."""

    def moves(self) -> MoveFigures:
        """Of all requests so far."""

    async def charge(self, tenant: str, tokens: int) -> Verdict:
        """Charge the tenant with a request of at most ``tokens`` tokens, or nothing where it is refused."""

    def settle(self, tenant: str, charged: int, used: int) -> None:
        """A request that was let in is over."""

    async def limit(self, tenant: str, name: str) -> int:
        """The number of a limit, see ``Limits`` of ``policies/requests/rate_limit.py``."""

    async def add_application(self, new: NewApplication) -> ApplicationView:
        """Returns when it can be served by all gateways, or, not ready, when ``wait`` is over. Raises RequestRefused, with
        the field that is to blame; then everything is as it was."""

    async def find_application(self, name: str) -> bool:
        """Serve the adapter of that name in the folder of the setting ``adapters``, if it is there. Raise RequestRefused
        where it cannot be served."""

    async def remove_application(self, name: str, grace: float, default: str = "") -> RemovalView:
        """Take no new requests for a model and give those that run ``grace`` seconds. ``default``: the id that stands for
        requests without a model from then on; "": it stays as it is. Raise RequestRefused."""

    async def standings(self, tenants: list[str]) -> dict[str, dict[str, Standing]]:
        """Return how the limits of ``tenants``, and of any other that has sent something, stand; by tenant and limit."""

    async def drain_worker(self, worker: str, drain: bool) -> DrainAnswered:
        """Move what runs on a worker elsewhere and send nothing more there; or, without ``drain``, again. Raises
        RequestRefused."""

    async def cluster(self) -> dict[str, Any]:
        """The body of ``/admin/cluster``."""

    async def actors(self) -> list[dict[str, Any]]:
        """The nodes that can be reached, as ``NodeView`` of the runtime in plain data."""

    async def drain(self, seconds: float) -> None:
        """Not ready; returns when nothing runs or the time is over (what is left is ended)."""
