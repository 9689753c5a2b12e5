"""What happens to a worker, and what it must make happen: the alphabet of the sweep state machine.

Events go into ``SweepState.apply``; effects come out of ``SweepState.take_effects`` and are performed by a shell (the worker
actor, a forecast, the simulator), in order, and before the next plan is handed to the device.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..memory.packed_tensor import Shortage, TensorPlace, WantedComponent
from ..model.chain import Chain, Route
from ..plan.coefficients import Coefficients
from ..plan.sampling import SamplingParams
from ..plan.sweep_plan import FlightRow, TokenLogprob
from ..requests.load_failure import LoadFailure
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
    """gateway -> home: run this sequence. ``tokens`` is the prompt and, after a failover, what was already emitted."""

    request: str
    attempt: int
    gateway: str  # address of the gateway actor that gets the reports
    route: str
    route_version: int
    tokens: list[int]
    prompt_length: int
    page_hashes: list[bytes]  # chained, salted hashes of the full pages of ``tokens`` (policies/model/lineage.py)
    max_length: int  # prompt and answer together
    stop_tokens: list[int]  # end the sequence when sampled (they are reported)
    sampling: SamplingParams
    tenant: str = ""
    priority: int = 0  # lower runs earlier
    arrival: float = 0.0  # seconds on the gateway's clock; orders the queue together with priority
    timeout: float = 0.0  # seconds from its receipt by the worker until it expires; 0: never
    salt: bytes = b""
    trace: str = ""  # a W3C traceparent, of the request that this serves
    expected: int = 0  # tokens of the whole answer, as they were estimated when the request came; 0: unknown

    @property
    def scored(self) -> bool:
        """Log-probabilities of the prompt are wanted, so that no position of it may be skipped."""
        return self.sampling.prompt_logprobs >= 0


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The client is gone, or the gateway has what it needs."""

    request: str


@dataclass(frozen=True, slots=True)
class Started:
    """A life of the worker begins; comes before all else. ``incarnation`` is larger than that of any life before."""

    incarnation: int


@dataclass(frozen=True, slots=True)
class ComponentsWanted:
    """``holder`` (an application) needs components or deltas, all of them or none. Answered by an effect with the same
    ``load``, which no other load of this life has."""

    load: int
    holder: str
    components: list[WantedComponent]


@dataclass(frozen=True, slots=True)
class ComponentsReleased:
    """``holder`` needs components or deltas no more, or the device could not load them."""

    components: list[bytes]
    holder: str


@dataclass(frozen=True, slots=True)
class RoutesChanged:
    """Routes in force, and all that can come into force (``planned``): all of them, or what changed after ``since``.

    A difference holds for whoever has taken version ``since`` or a later one; all others need the whole. A worker's part has
    the routes through it, and is applied as a whole: see ``local_routes.merged``.
    """

    version: int
    chains: list[Chain]
    routes: list[Route]
    planned: list[Route]
    withdrawn: list[str] = field(default_factory=list)  # all applications that are known and not served
    capacity: dict[str, int] = field(default_factory=dict)  # route id -> tokens of one sequence that its workers can hold
    draining: list[str] = field(default_factory=list)  # all applications that take no new requests and end those they have
    since: int = 0  # version that this is the difference to; 0: the whole
    ended: list[str] = field(default_factory=list)  # ids of routes not in force any more; a worker's are planned no more
    removed: list[str] = field(default_factory=list)  # applications that are gone for good, with their planned routes
    on_demand: list[str] = field(default_factory=list)  # all that did not fit and are loaded when asked for
    most: dict[str, int] = field(default_factory=dict)  # as ``capacity``, once others are unloaded; empty where none ever is
    failed: list[LoadFailure] = field(default_factory=list)  # all that could not be loaded anywhere, when last tried
    default: str = ""  # the id that stands for requests without a model, whether or not it is served; "": not told


@dataclass(frozen=True, slots=True)
class CostsLearned:
    """What sweeps cost here has been fitted, for the first time or again."""

    costs: Coefficients


@dataclass(frozen=True, slots=True)
class PeerLost:
    """A node died: leases held there and leases held here by it are void, sequences of its gateways are unwanted."""

    worker: str


@dataclass(frozen=True, slots=True)
class LeaseWanted:
    """home -> host: reserve a row and pages for the start of a sequence. Answered by LeaseGranted, sooner or later."""

    home: str
    lease: int  # unique at the home
    submission: Submission
    pages: int
    urgent: bool = False  # its sequence has memory elsewhere: it does not queue


@dataclass(frozen=True, slots=True)
class LeaseGranted:
    """host -> home. ``cached`` leading pages are present at the host."""

    host: str
    lease: int
    cached: int
    refused: str = ""  # why it is not granted, as ``GivenBack`` has it


@dataclass(frozen=True, slots=True)
class GrowthWanted:
    """home -> host: leases are to grow. Answered by GrowthGranted, each in its own time."""

    home: str
    leases: list[tuple[int, int]]  # number, and pages that it is to have in all


@dataclass(frozen=True, slots=True)
class GrowthGranted:
    """host -> home: these leases have the pages that were asked for last."""

    host: str
    leases: list[int]


@dataclass(frozen=True, slots=True)
class LeaseRevoked:
    """host -> home: an older sequence needs the memory. It stays reserved until LeaseReturned."""

    host: str
    lease: int


@dataclass(frozen=True, slots=True)
class LeaseReturned:
    """home -> host: the sequence has left; what it computed there may be published under these hashes."""

    home: str
    lease: int


@dataclass(frozen=True, slots=True)
class Flight:
    """Header of an activation: rows of one route whose hidden states travel with it.

    As an event: the device has the hidden states, under ``number``, which is unique at this worker.
    """

    home: str
    number: int
    width: int
    rows: list[FlightRow]


@dataclass(frozen=True, slots=True)
class FlightDone:
    """last host -> home: what became of rows that had left."""

    host: str
    rows: list[FlightRow]
    tokens: list[int]  # one for each row with ``sample``
    logprobs: list[TokenLogprob | None]
    scores: list[tuple[int, list[TokenLogprob]]]  # place in ``rows``, and what came of scoring its prompt tokens


PeerMessage = (
    LeaseWanted | LeaseGranted | LeaseReturned | LeaseRevoked | GrowthWanted | GrowthGranted | FlightDone | PagesTaken
)

Event = (
    Started
    | Submission
    | Cancelled
    | RoutesChanged
    | CostsLearned
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
)


@dataclass(slots=True)  # not frozen: made for each token, and freezing would double the time that it takes
class TokensEmitted:
    """Effect: tell the gateway."""

    gateway: str
    request: str
    attempt: int
    position: int
    tokens: list[int]
    logprobs: list[TokenLogprob]
    finish: str


@dataclass(frozen=True, slots=True)
class PromptScored:
    """Effect: log-probabilities of prompt tokens, that at ``position`` first."""

    gateway: str
    request: str
    attempt: int
    position: int
    entries: list[TokenLogprob]


@dataclass(frozen=True, slots=True)
class Progressed:
    """Effect: a sequence was planned for the first time, or computed without a token."""

    gateway: str
    request: str
    attempt: int
    computed: int
    cached: int


@dataclass(frozen=True, slots=True)
class GivenBack:
    """Effect: the sequence leaves unfinished.

    ``reason``: "route" (not in force here), "host-lost", "deadline" (its timeout has passed), or what
    ``policies/requests/admission.py`` has of those that find no room.
    """

    gateway: str
    request: str
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class Preempted:
    """Effect: the sequence lost its memory and waits to be computed again."""

    gateway: str
    request: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Send:
    """Effect: a message to another worker."""

    worker: str
    message: PeerMessage


@dataclass(frozen=True, slots=True)
class ComponentsPlaced:
    """Effect: the tensors of each component or delta of a load have their places, in order, mapped by a plan already made.

    The device packs there what it has not packed yet.
    """

    load: int
    components: list[bytes]
    places: list[list[TensorPlace]]


@dataclass(frozen=True, slots=True)
class ComponentsRefused:
    """Effect: there is no room for a load; nothing has changed. ``shortage`` says what lacks."""

    load: int
    shortage: Shortage


@dataclass(frozen=True, slots=True)
class ComponentGone:
    """Effect: nobody holds a component or delta any more. The device must forget it, and the packed ``tensors`` that nothing
    else consists of, before the next plan, which gives their memory back. It may not have loaded all of them."""

    component: bytes
    tensors: list[bytes]


Effect = (
    TokensEmitted
    | PromptScored
    | Progressed
    | GivenBack
    | Preempted
    | Send
    | SendPages
    | MoveSlots
    | Exported
    | ComponentsPlaced
    | ComponentsRefused
    | ComponentGone
)
