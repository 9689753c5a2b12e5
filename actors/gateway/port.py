"""The gateway's interface for the HTTP front: ``GatewayPort`` and its values.

With ``peers.py`` it is all that ``api/`` imports from ``actors/gateway``. Standard library and policies only.
``actors/gateway/actor.py`` implements ``GatewayPort``; tests of ``api/`` use a fake.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...policies.drafts.options import DraftOptions
from ...policies.measures import Histogram
from ...policies.model.confidence import Threshold
from ...policies.plan.coefficients import Coefficients
from ...policies.plan.sampling import SamplingParams
from ...policies.prediction.lengths import Accuracy
from ...policies.requests.account import account_of
from ...policies.requests.rate_limit import LimitStatus, Verdict
from ...policies.requests.refusal import Refusal, RequestRefused
from ...policies.requests.request_ownership import Viewer
from ...policies.sweep.events import PromptScored, TokensEmitted


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoTier:
    """The rule by which a request chooses between the tier on which it starts and the top tier.

    All sequences of the request go up together, or none. ``length``: of an answer that begins with these tokens, how many
    it has, if a stop string ends it there; None: none does.
    """

    top: str  # the model id of the top tier
    threshold: Threshold
    sequences: int = 1  # of the request
    drafts: DraftOptions | None = None  # on the top tier
    length: Callable[[Sequence[int]], int | None] = lambda tokens: None


@dataclass(frozen=True, slots=True, kw_only=True)
class TierView:
    """The choice of a request's tier, as in ``GET /v1/requests/{id}``.

    ``tokens``: tokens that were looked at, over all sequences. ``seconds``: from the request's arrival to the choice.
    """

    tier: str  # model id of the tier that answers; "": not chosen yet
    start: str  # of the tier on which it started
    escalated: bool = False
    confidence: float | None = None  # of the least sure sequence; None: not chosen yet
    theta: float
    measure: str
    tokens: int = 0
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceView:
    """The service class of a request and its account, as in ``GET /v1/requests/{id}``."""

    asked: str  # "urgent", "normal" or "batch"
    risen: int = 0  # classes by which it has risen with its wait in the current or last attempt
    account: str  # the tenant; without keys the model, or the family of its tier
    tier: str = ""  # model id of the tier that counts within the account; "": the model has no tiers
    yielded: int = 0  # rows that it gave to urgent requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One sequence to generate. A request with n choices is n generations."""

    id: str  # "<request id>" or "<request id>/<choice>" for choice > 0
    application: str
    prompt: list[int]
    max_tokens: int  # new tokens at most; at least 1, and 0 if it gives a vector
    stop_tokens: list[int]  # ids that end the sequence (empty with ignore_eos)
    stop_strings: int = 0  # number of stop strings; ``api/`` has the texts
    sampling: SamplingParams
    tenant: str = ""
    key: str = ""  # name of the client's API key
    priority: int = 0
    salt: bytes = b""
    trace: str = ""  # a W3C traceparent, handed on to the workers
    offline: bool = False  # a batch request, which no client waits for: it runs on spare capacity, by ``credits`` only
    home: str = ""  # offline: the intended worker; another one if it is gone
    side: str = ""  # offline: "left" or "right" of the dual scanner, whose pages are counted apart
    drafts: DraftOptions | None = None  # None: no drafts; an offline request never has any
    auto: AutoTier | None = None  # ``application`` is the tier on which it starts; None: it stays there
    family: str = ""  # id of the family whose tier answers; "": the model has no tiers

    @property
    def pooled(self) -> bool:
        """True if it gives a vector in place of tokens."""
        return self.sampling.pooling is not None

    @property
    def account(self) -> str:
        family = self.family if self.auto is None else self.auto.top
        return account_of(self.tenant, family or self.application)

    @property
    def models(self) -> tuple[str, ...]:
        """The models that may answer: the one on which it starts and, if it may go up, the top tier."""
        return (self.application,) if self.auto is None else (self.application, self.auto.top)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """The offline work that one worker takes now for one application: sequences that would start at its next sweep."""

    worker: str  # "": no worker has the application; the first request loads it
    rows: int  # sequences
    positions: int  # KV tokens free for offline sequences, less those of prompts on their way
    room: int  # the same with nothing else running there: the M of the dual scanner
    costs: Coefficients | None = None  # measured cost of its sweeps; None: not known yet
    sweeps: int = 0  # sweeps it had made at its last statement; its sequences have grown since


StreamNews = TokensEmitted | PromptScored
"""The news of a stream, in the worker's own types.

Tokens come in order, without gap or repeat, whatever happens to workers. Before the first of them come, if the client
asked, the log-probabilities of all prompt tokens but the first. A sequence with pooling has one news, with its vector.
"""


@dataclass(frozen=True, slots=True)
class DraftCounts:
    """The drafts of one source: rounds, tokens verified in them, and tokens that stood."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0

    def plus(self, rounds: int, drafted: int, accepted: int) -> DraftCounts:
        return DraftCounts(self.rounds + rounds, self.drafted + drafted, self.accepted + accepted)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftView:
    """The drafts of a request as in ``GET /v1/requests/{id}``."""

    prompt: bool = False  # it asks for drafts from its own text
    prediction_tokens: int = 0
    tiers: list[str] = field(default_factory=list)  # the tiers that may draft for it
    model: str = ""  # the other model that was asked to
    tokens: int = 0  # drafts of each round; 0: as many as pay
    sources: dict[str, DraftCounts] = field(default_factory=dict)  # verified drafts by source, over all attempts
    reason: str = ""  # why it has none now, or none by a tier


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """The progress of a sequence."""

    place: int = 0  # among the ``queued`` requests that no worker has planned yet, from 1; 0 once it is planned
    queued: int = 0
    prompt: int = 0  # tokens
    computed: int = 0  # of these, with KV in the current attempt
    cached: int = 0  # of these, found and not computed in the first attempt
    queue_seconds: float | None = None  # from its arrival to its first plan
    preemptions: int = 0
    drafts: Mapping[str, DraftCounts] = field(default_factory=dict)  # by source, over all attempts
    tier: str = ""  # model id of the tier that answers; "": not chosen yet


@dataclass(slots=True)
class Census:
    """The sequence counts of one application."""

    running: int = 0
    waiting: dict[str, int] = field(default_factory=dict)  # "capacity" | "no_worker" | "isolated" -> sequences


@dataclass(slots=True)
class LengthFigures:
    """The accuracy of length estimates at this gateway."""

    accuracy: Accuracy = field(default_factory=Accuracy)
    unanswered: int = 0  # times the tagger did not answer in time


@dataclass(frozen=True, slots=True)
class ForecastPoint:
    """The forecast and the outcome of an ended request, in seconds from the question to the dispatcher."""

    request: str
    predicted_first_token: float
    first_token: float
    predicted_last_token: float
    last_token: float


ASK_BOUNDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)  # seconds
ERROR_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2, 5, 10)  # relative errors
RANK_BOUNDS = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64)
POINTS = 200


@dataclass(slots=True)
class DispatchFigures:
    """Statistics of this gateway's questions to dispatchers. Reasons are those of ``actors/dispatcher/messages.py``."""

    asked: Histogram = field(default_factory=lambda: Histogram(ASK_BOUNDS))  # seconds to an answer or a failure
    fallbacks: dict[str, int] = field(default_factory=dict)  # reason -> requests not placed by the policy
    unanswered: dict[str, int] = field(default_factory=dict)  # reason -> predictors without an answer
    first_token_error: Histogram = field(default_factory=lambda: Histogram(ERROR_BOUNDS))
    latency_error: Histogram = field(default_factory=lambda: Histogram(ERROR_BOUNDS))
    rank: Histogram = field(default_factory=lambda: Histogram(RANK_BOUNDS))
    points: deque[ForecastPoint] = field(default_factory=lambda: deque(maxlen=POINTS))  # the last


@dataclass(slots=True)
class MoveFigures:
    """The outcomes of moves at this gateway.

    copied: the new home found pages of the request. recomputed: it found none. abandoned: the request stayed, ended, or
    began anew for another reason.
    """

    outcomes: dict[str, int] = field(default_factory=lambda: {"copied": 0, "recomputed": 0, "abandoned": 0})


@dataclass(slots=True)
class TierFigures:
    """The choices of tiers at this gateway: requests of ``auto`` by family and tier."""

    chosen: dict[tuple[str, str], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MoveBegun:
    """The move of a sequence to another worker. ``pages``, ``nbytes``: the full KV pages that are copied first."""

    request: str
    source: str  # worker it leaves
    target: str  # worker it moves to
    route: str  # id of the new route
    pages: int
    nbytes: int


class TokenStream(Protocol):
    """A running generation. Iteration raises RequestRefused if no worker came or the request is poison."""

    def __aiter__(self) -> AsyncIterator[StreamNews]: ...

    def stop(self) -> None:
        """End the generation as "stop", since its text is complete (a stop string); free the sequence."""

    def cancel(self) -> None:
        """End the generation because the client is gone. Idempotent, also after the end."""

    def progress(self) -> StreamProgress:
        """Return the progress now, or at the end."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A served application. Its tokenizer, chat template and defaults come from the folder ``checkpoint``.

    adapter: a folder whose own files of these kinds take precedence; "": none.
    """

    id: str
    checkpoint: str
    max_length: int  # tokens of a prompt and its answer
    created: int
    ready: bool
    parent: str | None = None  # the earlier application that it shares most parameters with
    rooms: tuple[int, ...] = ()  # KV tokens that each route in force holds with nothing else running
    longest: int = 0  # tokens that fit once other models are unloaded; 0: not known
    virtual: int = 0  # hidden tokens before every prompt; the other numbers exclude them
    adapter: str = ""
    base: str = ""  # of an adapter: the id of the model that it was put on
    defaults: str = ""  # what its requests get where they say nothing, as a JSON object; "": nothing
    family: str = ""  # of a lower tier and of ``NAME:auto``: the id of the family, which is the top tier
    tiers: tuple[str, ...] = ()  # of the top tier: the ids of the lower ones, lowest first
    starts: str = ""  # of ``NAME:auto``: the tier on which its requests start
    threshold: Threshold | None = None  # of a lower tier and of ``NAME:auto``: the stored rule for going up

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders with the tokenizer and template files; files of an earlier folder take precedence."""
        return (self.adapter, self.checkpoint) if self.adapter else (self.checkpoint,)


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
class Readiness:
    """The readiness of the server: at least one application can be served, and the server is not draining."""

    ready: bool
    reason: str = ""
    retry_after: float = 1.0
    applications: dict[str, str] = field(
        default_factory=dict
    )  # application -> "ready" | "on demand" | "loading" | "waiting" | "failed"


@dataclass(frozen=True, slots=True)
class Service:
    """The models and readiness of one gateway."""

    models: list[ModelInfo]
    readiness: Readiness


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestView:
    """A request as in ``GET /v1/requests/{id}``."""

    id: str
    state: str  # "waiting" | "running" | "finished" | "cancelled" | "failed"
    attempt: int
    home: str | None  # of the current attempt, or the last one if it has ended; None while it waits
    route: list[dict[str, Any]]  # {"worker", "first", "last"} for each hop; empty while it waits
    prompt_tokens: int
    computed_tokens: int
    emitted_tokens: int
    events: list[dict[str, Any]]  # {"at": seconds since arrival, "event": str, ...}
    dispatch: dict[str, Any] | None = None  # decision about the last attempt (``Decision.view``); None: no dispatcher
    key: str = ""  # the client's key, see ``policies/requests/request_ownership.py``
    arrival: float = 0.0  # seconds on the gateway's clock
    tenant: str = ""  # tenant of that key
    model: str = ""  # model that the client asked for
    place: int = 0  # among the ``queued`` requests that no worker has planned yet, from 1; 0 once it is planned
    queued: int = 0
    starts_in: float | None = None  # seconds until it begins, by the recent rate; None: unknown, or it has begun
    drafts: DraftView = DraftView()
    tier: TierView | None = None  # None: the request named its model
    service: ServiceView | None = None  # None: a server of an earlier release
    parked_steps: int = 0  # steps of lower tiers that it sat out so far
    parked_seconds: float = 0.0  # time that these steps took
    entered: dict[str, int] = field(default_factory=dict)  # prompt tokens that began at an exit, by the layers before it


@dataclass(frozen=True, slots=True)
class RequestLine:
    """A request as one line of ``GET /v1/requests``.

    age: seconds from its arrival until now, or until it ended. ended: seconds since it ended; None while it has not.
    """

    id: str
    model: str
    state: str  # as in ``RequestView``
    place: int  # place in the queue, from 1; 0: it does not wait
    prompt_tokens: int
    computed_tokens: int
    emitted_tokens: int
    home: str | None
    attempt: int
    age: float
    tenant: str = ""
    ended: float | None = None


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
