"""Events and effects of the sweep state machine: all that can happen to a worker, and all that it makes happen.

Events go into ``SweepState.apply``. Effects come out of ``SweepState.take_effects``; a shell (the worker actor, a
forecast, the simulator) performs its orders, in order, before the next plan is handed to the device.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..drafts.options import DraftOptions
from ..memory.cache_news import MarkPages
from ..memory.packed_tensor import Shortage, TensorPlace, WantedComponent
from ..plan.coefficients import Coefficients
from ..plan.grammar import Grammar
from ..plan.sampling import SamplingParams
from ..plan.sweep_plan import FlightRow, TokenLogprob
from ..requests.routes_changed import RoutesChanged
from .page_events import (
    Export,
    Exported,
    HoldPages,
    MoveSlots,
    PagesArrived,
    PagesTaken,
    PagesUnsent,
    SendPages,
    Unhold,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """gateway -> home: the order to run a sequence.

    ``tokens``: the prompt and, after a failover, the tokens emitted so far.
    """

    request: str
    attempt: int
    gateway: str  # address of the gateway actor that receives the reports
    route: str
    route_version: int
    tokens: list[int]
    prompt_length: int
    page_hashes: list[bytes]  # chained, salted hashes of the full pages of ``tokens`` (policies/model/lineage.py)
    max_length: int  # prompt and answer together
    stop_tokens: list[int]  # end the sequence when sampled (and are reported)
    sampling: SamplingParams
    tenant: str = ""
    priority: int = 0  # lower runs earlier
    arrival: float = 0.0  # seconds on the gateway's clock; with the priority it orders the queue
    timeout: float = 0.0  # seconds from receipt by the worker until it expires; 0: never
    salt: bytes = b""
    trace: str = ""  # W3C traceparent of the request
    expected: int = 0  # estimated tokens of the answer when the request came; 0: unknown
    waited: float = 0.0  # seconds of waiting before it came here, which count towards its next rise
    drafts: DraftOptions | None = None  # None: tokens are drawn one by one

    @property
    def scored(self) -> bool:
        """True if something of every position of the prompt is wanted, so that none may be skipped.

        That is a log-probability, or its state for pooling.
        """
        pooling = self.sampling.pooling
        return self.sampling.prompt_logprobs >= 0 or (pooling is not None and pooling.whole)

    @property
    def limit(self) -> int:
        """The most tokens of the sequence. A vector counts as a token here, but needs no memory."""
        return self.max_length + 1 if self.sampling.pooling is not None else self.max_length


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The order to end a sequence: the client is gone, or the gateway has what it needs."""

    request: str


@dataclass(frozen=True, slots=True)
class Started:
    """The start of a worker's life. ``incarnation`` is larger than in any life before.

    It comes before all else, or after the end of a life whose memory goes on.
    """

    incarnation: int


@dataclass(frozen=True, slots=True)
class ComponentsWanted:
    """The demand of ``holder`` (an application) for components or deltas, all of them or none.

    Answered by an effect with the same ``load``, a number unique in this life. borrows: the holder goes with the others
    (``memory/residence.py``).
    """

    load: int
    holder: str
    components: list[WantedComponent]
    borrows: bool = False


@dataclass(frozen=True, slots=True)
class ComponentsReleased:
    """The release of components or deltas that ``holder`` no longer needs, or that the device could not load."""

    components: list[bytes]
    holder: str


@dataclass(frozen=True, slots=True)
class CostsLearned:
    """A new fit of the cost of sweeps here."""

    costs: Coefficients


@dataclass(frozen=True, slots=True)
class NumericsChanged:
    """The finding that what is loaded from now on gets other bits than the worker's numerics promise.

    ``numerics`` seeds the lineages of routes that are published from now on.
    """

    numerics: str


@dataclass(frozen=True, slots=True)
class GrammarReady:
    """The end of a ``GrammarWanted``: the device has the grammar of this key in its compiled form.

    ``fault``: why it cannot be compiled here, half a sentence; empty: it is.
    """

    key: bytes
    fault: str = ""


@dataclass(frozen=True, slots=True)
class PeerLost:
    """The death of a node.

    Leases held there and leases held here by it are void; sequences of its gateways are unwanted.
    """

    worker: str


@dataclass(frozen=True, slots=True)
class LeaseWanted:
    """home -> host: reserve a row and pages for the start of a sequence. Answered by LeaseGranted, sooner or later."""

    home: str
    lease: int  # unique at the home
    submission: Submission
    pages: int
    urgent: bool = False  # its sequence has memory elsewhere, so it does not queue


@dataclass(frozen=True, slots=True)
class LeaseGranted:
    """host -> home: the lease is granted, or refused. ``cached`` leading pages are present at the host."""

    host: str
    lease: int
    cached: int
    refused: str = ""  # reason for a refusal, as in ``GivenBack``


@dataclass(frozen=True, slots=True)
class GrowthWanted:
    """home -> host: grow these leases. Answered by GrowthGranted for each, in its own time."""

    home: str
    leases: list[tuple[int, int]]  # (number, total pages it is to have)


@dataclass(frozen=True, slots=True)
class GrowthGranted:
    """host -> home: these leases have the pages that were requested last."""

    host: str
    leases: list[int]


@dataclass(frozen=True, slots=True)
class LeaseRevoked:
    """host -> home: an older sequence needs the memory. It stays reserved until LeaseReturned."""

    host: str
    lease: int


@dataclass(frozen=True, slots=True)
class LeaseReturned:
    """home -> host: the sequence has left. What it computed there may be published under these hashes."""

    home: str
    lease: int


@dataclass(frozen=True, slots=True)
class Flight:
    """The header of an activation: rows of one route whose hidden states travel with it.

    As an event: the device has the hidden states, under ``number``, which is unique at this worker.
    """

    home: str
    number: int
    width: int
    rows: list[FlightRow]


@dataclass(frozen=True, slots=True)
class FlightDone:
    """last host -> home: the results of rows that had left."""

    host: str
    rows: list[FlightRow]
    tokens: list[int]  # one for each row with ``sample``
    logprobs: list[TokenLogprob | None]
    scores: list[tuple[int, list[TokenLogprob]]]  # place in ``rows``, and the scores of its prompt tokens
    # of rows with drafts: place in ``rows``, the further tokens and their log-probabilities, as in ``SweepResult``
    verified: list[tuple[int, list[int], list[TokenLogprob]]] = field(default_factory=list)
    vectors: list[tuple[int, bytes]] = field(
        default_factory=list
    )  # place in ``rows``, and the vector, as in ``SweepResult``
    forced: list[tuple[int, list[int]]] = field(default_factory=list)  # place in ``rows``, and tokens, as in ``SweepResult``


@dataclass(frozen=True, slots=True)
class GuessesStand:
    """home -> host: the guesses of these rows stand: (lease, position). Other guesses fall when the true states come."""

    home: str
    rows: list[tuple[int, int]]


PeerMessage = (
    GuessesStand
    | LeaseWanted
    | LeaseGranted
    | LeaseReturned
    | LeaseRevoked
    | GrowthWanted
    | GrowthGranted
    | FlightDone
    | PagesTaken
)

Event = (
    Started
    | Submission
    | Cancelled
    | RoutesChanged
    | CostsLearned
    | NumericsChanged
    | GrammarReady
    | PeerLost
    | ComponentsWanted
    | ComponentsReleased
    | PeerMessage
    | Flight
    | Export
    | PagesArrived
    | PagesUnsent
    | HoldPages
    | Unhold
    | MarkPages
)


@dataclass(slots=True)  # not frozen: made for each token, and freezing would double the time it takes
class TokensEmitted:
    """Effect: report new tokens to the gateway."""

    gateway: str
    request: str
    attempt: int
    position: int
    tokens: list[int]
    logprobs: list[TokenLogprob]
    finish: str
    vector: bytes = b""  # of a sequence with pooling, as in ``SweepResult``; its token means nothing


@dataclass(frozen=True, slots=True)
class PromptScored:
    """Effect: report log-probabilities of prompt tokens from ``position`` on."""

    gateway: str
    request: str
    attempt: int
    position: int
    entries: list[TokenLogprob]


@dataclass(frozen=True, slots=True)
class Progressed:
    """Effect: report that a sequence was planned for the first time, or computed positions without a token.

    ``risen``: by how many service classes it has risen.
    """

    gateway: str
    request: str
    attempt: int
    computed: int
    cached: int
    risen: int = 0


@dataclass(frozen=True, slots=True)
class GivenBack:
    """Effect: return an unfinished sequence to the gateway.

    ``reason``: "route" (not in force here), "host-lost", "deadline" (its timeout has passed), or one of the reasons for
    lack of room in ``policies/requests/admission.py``.
    """

    gateway: str
    request: str
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class Preempted:
    """Effect: report that the sequence lost its memory and waits to be recomputed.

    ``urgent``: it was for the start of an urgent sequence.
    """

    gateway: str
    request: str
    attempt: int
    urgent: bool = False


@dataclass(frozen=True, slots=True)
class DraftsVerified:
    """Effect: report a round of drafts: ``drafted`` tokens of ``source`` were verified, ``accepted`` of them stood.

    The rounds of one attempt and source may be added up on the way.
    """

    gateway: str
    request: str
    attempt: int
    source: str  # one of ``SOURCES`` in ``policies/drafts/options.py``
    drafted: int
    accepted: int
    rounds: int = 1


@dataclass(frozen=True, slots=True)
class GuessesJudged:
    """Effect: report guesses of a sequence's hidden states, and how many of them stood."""

    gateway: str
    request: str
    attempt: int
    guesses: int
    accepted: int


@dataclass(frozen=True, slots=True)
class SatOut:
    """Effect: report ``sweeps`` of lower tiers that a sequence sat out, which took ``seconds`` together.

    Each is reported at its end. Several of one attempt may be added up on the way.
    """

    gateway: str
    request: str
    attempt: int
    sweeps: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ExitEntered:
    """Effect: report that positions ``start`` to ``end - 1`` were planned to begin at an exit, behind ``layers`` layers.

    Hidden states of a lower tier are there, so only the layers above are computed.
    """

    gateway: str
    request: str
    attempt: int
    layers: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ComponentsPlaced:
    """Effect: load components into their places, which are given for the tensors of each component or delta, in order.

    A plan that is already made maps that memory. The device packs there what it has not packed yet.
    """

    load: int
    components: list[bytes]
    places: list[list[TensorPlace]]


@dataclass(frozen=True, slots=True)
class ComponentsRefused:
    """Effect: report that there is no room for a load; nothing has changed. ``shortage`` says what is lacking."""

    load: int
    shortage: Shortage


@dataclass(frozen=True, slots=True)
class ComponentGone:
    """Effect: unload a component or delta that no holder needs.

    The device must forget it, and the packed ``tensors`` that nothing else uses, before the next plan, which gives their
    memory back. It may not have loaded all of them.
    """

    component: bytes
    tensors: list[bytes]


@dataclass(frozen=True, slots=True)
class GrammarWanted:
    """Effect: compile a grammar. Answered by a ``GrammarReady``; no row with the grammar is sampled before.

    ``tenant``: of the sequence, for the turns in which grammars are compiled.
    """

    grammar: Grammar
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class GrammarUnused:
    """Effect: report that the memory of this grammar was taken: it is dropped, or is not compiled."""

    key: bytes


GatewayNews = (
    TokensEmitted
    | PromptScored
    | Progressed
    | GivenBack
    | Preempted
    | DraftsVerified
    | ExitEntered
    | SatOut
    | Exported
    | GuessesJudged
)
DeviceOrder = SendPages | MoveSlots | ComponentsPlaced | ComponentsRefused | ComponentGone | GrammarWanted | GrammarUnused


@dataclass(slots=True)
class Effects:
    """The machine's effects in three outboxes, each in the order in which they were emitted.

    news: for gateways. messages: for other workers, by worker. orders: for this worker's own device and loader.
    """

    news: list[GatewayNews] = field(default_factory=list)
    messages: dict[str, list[PeerMessage]] = field(default_factory=dict)
    orders: list[DeviceOrder] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.news or self.messages or self.orders)
