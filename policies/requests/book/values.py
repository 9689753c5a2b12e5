"""The values of a request's life: what is asked of a gateway, and what it answers.

``actors/gateway/port.py`` hands them to the HTTP front. Values only; they decide nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...adaptive.similarity import Similarity
from ...cluster.application_life import model_of
from ...drafts.options import DraftOptions
from ...measures import Histogram
from ...model.confidence import Threshold
from ...plan.coefficients import Coefficients
from ...plan.sampling import SamplingParams
from ...prediction.lengths import Accuracy
from ...sweep.events import PromptScored, TokensEmitted
from ..account import account_of


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
    """The choice of a request's tier, as in the view of a request.

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
    """The service class of a request and its account, as in the view of a request."""

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
    home: str = ""  # offline, or with ``known``: the intended worker; another one if it is gone
    side: str = ""  # offline: "left" or "right" of the dual scanner, whose pages are counted apart
    drafts: DraftOptions | None = None  # None: no drafts; an offline request never has any
    auto: AutoTier | None = None  # ``application`` is the tier on which it starts; None: it stays there
    family: str = ""  # id of the family whose tier answers; "": the model has no tiers
    adaptive: bool = True  # a variant may serve in the application's place, if there is one
    known: list[int] = field(default_factory=list)  # tokens with which its answer begins, computed by an earlier request

    @property
    def pooled(self) -> bool:
        """True if it gives a vector in place of tokens."""
        return self.sampling.pooling is not None

    @property
    def account(self) -> str:
        family = self.family if self.auto is None else self.auto.top
        return account_of(self.tenant, family or model_of(self.application))  # one for all versions of a model

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
    """The drafts of a request as in the view of a request."""

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
    variant: str = ""  # the variants that serve it or gave tokens; "": none
    placed: bool = False  # it has been on a route


@dataclass(slots=True)
class Census:
    """The sequence counts of one application."""

    running: int = 0
    waiting: dict[str, int] = field(default_factory=dict)  # "capacity" | "no_worker" | "isolated" -> sequences
    chains: dict[str, int] = field(default_factory=dict)  # as ``TierFigures.variants`` has them, by variant
    similarity: Similarity = field(default_factory=Similarity)  # of the answers of variants that the model has scored


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
    """The choices of chains at this gateway: requests of ``auto`` by family and tier, others by model and variant.

    ``variants`` counts, for models that have variants, how often a chain took on a sequence; "" is the model's own chain.
    """

    chosen: dict[tuple[str, str], int] = field(default_factory=dict)
    variants: dict[tuple[str, str], int] = field(default_factory=dict)
    switches: dict[tuple[str, str], int] = field(default_factory=dict)  # by model and cause
    similarity: dict[tuple[str, str], Similarity] = field(default_factory=dict)  # by model and variant

    def served(self, model: str, variant: str) -> None:
        """Count a sequence that a variant of a model takes on, or its own chain ("")."""
        self.variants[model, variant] = self.variants.get((model, variant), 0) + 1


@dataclass(frozen=True, slots=True)
class MoveBegun:
    """The move of a sequence to another worker. ``pages``, ``nbytes``: the full KV pages that are copied first."""

    request: str
    source: str  # worker it leaves
    target: str  # worker it moves to
    route: str  # id of the new route
    pages: int
    nbytes: int


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
    varies: bool = False  # variants may serve in its place

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders with the tokenizer and template files; files of an earlier folder take precedence."""
        return (self.adapter, self.checkpoint) if self.adapter else (self.checkpoint,)


@dataclass(frozen=True, slots=True)
class Readiness:
    """The readiness of the server: at least one application can be served, and the server is not draining.

    doubts: why the head takes no member for down while it reaches few of them, else empty.
    """

    ready: bool
    reason: str = ""
    retry_after: float = 1.0
    applications: dict[str, str] = field(
        default_factory=dict
    )  # application -> "ready" | "on demand" | "loading" | "waiting" | "failed"
    doubts: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestView:
    """A request as its client sees it."""

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
    guesses: dict[str, Any] | None = None  # of its hidden states: {"made", "accepted", "approximate"}; None: there were none
    variant: str = ""  # the variants that serve it or gave tokens; "": none
    switches: list[dict[str, Any]] = field(default_factory=list)  # between chains, after its first attempt (``ChainSwitch``)
    chains: list[dict[str, Any]] = field(default_factory=list)  # of each: {"choice", "listed", "used", "why", "donors"}


@dataclass(frozen=True, slots=True)
class RequestLine:
    """A request as one line of the list of requests.

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
