"""The sweep plan: the device's next actions as data, made by the sweep policy and carried out by ``gpu/executor.py``.

A plan names *rows* of persistent tables (tokens, page slots, sampling), never token values, so that the next plan can be
made while this one runs. Everything is in columns of integers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .sampling import SamplingParams

NO_SLOT = -1  # in place of the slot of a page whose hidden states are not kept
NOT_FINITE = -2  # in place of a token; -1: no token is wanted
OFF_GRAMMAR = -3  # in place of a token: its mask cannot be made
FAILED = (NOT_FINITE, OFF_GRAMMAR)  # the sequence cannot go on


@dataclass(frozen=True, slots=True)
class WriteTokens:
    """Table edit: write tokens of ``row`` from ``position`` on."""

    row: int
    position: int
    tokens: list[int]


@dataclass(frozen=True, slots=True)
class SetSampling:
    """Table edit: set the sampling options of ``row``.

    ``prompt_length`` separates prompt from output, for the penalties.
    """

    row: int
    prompt_length: int
    params: SamplingParams


@dataclass(slots=True)  # not frozen: made for each page, and freezing would double the time it takes
class SetPages:
    """Table edit: set the slots of page ``page`` of ``row`` for KV layers ``layer`` to ``layer + len(slots) - 1``.

    KV layers are counted along the whole chain (the n-th attention component has layer n), on every worker alike.
    """

    row: int
    layer: int
    page: int
    slots: list[int]


Edit = WriteTokens | SetSampling | SetPages


@dataclass(slots=True)  # not frozen, as SetPages
class MapGroup:
    """Memory edit: back chunk-sized units of an arena, from unit ``offset`` on, with pool chunks, or give them back."""

    arena: str  # key of the arena: "parameters" or the text form of a KV layout
    offset: int  # in chunks from the start of the arena's reserved range
    chunks: list[int]  # ids in the pool
    back: bool  # False: commit; True: give back to the operating system


@dataclass(slots=True)
class Step:
    """One run over some rows of the batch, as indices into the plan's batch columns."""

    run: int  # id under which the executor composed the run
    batch: list[int]
    delta: list[int] = field(default_factory=list)  # number of each row's deltas inside the run, 0: none; empty: all 0
    nbytes: int = 0  # bytes of parameters a token is multiplied with; from here on for the cost model
    kv_bytes: int = 0  # bytes of a position, in all layers of the run
    head: bool = False
    # of rows in ``SweepPlan.drafting``, the only one of their positions that is computed; -1: all are
    # of rows in ``SweepPlan.draft_rows``, the number of drafts that have been drawn by them
    place: int = -1
    draft: bool = False  # the tokens that this head draws are drafts: written to the table and not reported
    # 1 + place in ``SweepPlan.guesses`` of the guess that it computes, or that it judges if it is a head; 0: none
    guess: int = 0


@dataclass(slots=True)
class DraftRow:
    """A batch row of another model, whose steps draw the drafts of the batch row ``target``, which has as many in verify.

    Its first ``lead`` positions are computed together. After them, and after each further position, a draft is drawn.
    """

    batch: int
    target: int
    lead: int


@dataclass(slots=True)
class Arrival:
    """Batch rows whose hidden states came with a flight, in the flight's order.

    Without batch rows, the flight is no longer wanted, and the device forgets it.
    """

    flight: int
    batch: list[int]


@dataclass(frozen=True, slots=True)
class FlightRow:
    """One row of a flight: positions start .. start + count - 1 of the sequence that ``lease`` stands for at its home."""

    lease: int
    start: int
    count: int
    sample: bool  # whether a token is drawn at the route's end
    drafts: list[int] = field(default_factory=list)  # the tokens behind the first, if they are drafts to be verified
    guess: bool = False  # its hidden states are a guess: their verdict, or the true ones, follow


@dataclass(slots=True)
class Departure:
    """Batch rows of one route whose hidden states (``width`` numbers a token) leave when the plan ends."""

    worker: str  # receiver
    home: str
    width: int
    batch: list[int]
    rows: list[FlightRow]


@dataclass(slots=True)
class GuessPlan:
    """Batch rows of one route that pass a surrogate, in ``steps`` steps, before the block that it stands for.

    The hidden states behind it leave at once for the rows of ``sent``; then all rows go on with the ones before it. A guess
    stands if its likeness to what the block gives is at least ``least``.
    """

    batch: list[int]
    sent: Departure
    steps: int
    least: float


@dataclass(slots=True)
class HiddenRows:
    """Batch rows whose hidden states are in slots of one arena, which layer ``column`` of the page tables names."""

    arena: str
    column: int
    batch: list[int]


@dataclass(slots=True)
class ImportGroup:
    """Slots of one arena that are written from imported pages.

    In the block of slots that begins at byte ``offset``, number ``places[i]`` goes to ``slots[i]``.
    """

    arena: str
    offset: int
    places: list[int]
    slots: list[int]


@dataclass(slots=True)
class PageImport:
    """KV pages from another worker; the device has them under ``number`` and forgets them after this. No groups: unread."""

    number: int
    groups: list[ImportGroup]


@dataclass(slots=True)
class SweepPlan:
    """One sweep. ``row[i]``, ``start[i]``, ``count[i]``: table row, first position and number of tokens of batch row i."""

    number: int
    edits: list[Edit] = field(default_factory=list)
    memory: list[MapGroup] = field(default_factory=list)
    row: list[int] = field(default_factory=list)
    start: list[int] = field(default_factory=list)
    count: list[int] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    arrivals: list[Arrival] = field(default_factory=list)
    departures: list[Departure] = field(default_factory=list)
    # batch rows after which a token is drawn here; of a sequence with pooling, its vector is given in place of the token
    sample: list[int] = field(default_factory=list)
    # batch rows whose prompt tokens' log-probabilities are wanted, or the states of all their positions
    score: list[int] = field(default_factory=list)
    # batch rows of ``sample`` whose tokens after the first are drafts: a token is drawn after each position
    verify: list[int] = field(default_factory=list)
    # batch rows of ``verify`` whose drafts are drawn in this plan, by steps with ``draft``, one position after the other
    drafting: list[int] = field(default_factory=list)
    draft_rows: list[DraftRow] = field(default_factory=list)  # rows of other models that draw drafts in this plan
    reasons: dict[str, int] = field(default_factory=dict)
    imports: list[PageImport] = field(default_factory=list)  # written before the first step
    resumed: list[HiddenRows] = field(default_factory=list)  # read before the first step: rows that begin at an exit
    kept: list[HiddenRows] = field(default_factory=list)  # written after the last step: rows that end at an exit
    guesses: list[GuessPlan] = field(default_factory=list)
    supposed: list[int] = field(default_factory=list)  # batch rows that are computed on a guess of another worker

    @property
    def tokens(self) -> int:
        return sum(self.count)

    @property
    def drawn(self) -> int:
        """The number of tokens that are drawn here, also behind drafts."""
        return len(self.sample) + sum([self.count[i] - 1 for i in self.verify])

    def columns(self, step: Step) -> tuple[list[int], list[int]]:
        """Return the first position and the number of positions of each row of a step."""
        start, count = [self.start[i] for i in step.batch], [self.count[i] for i in step.batch]
        if step.place >= 0:
            leads = {row.batch: row.lead for row in self.draft_rows}
            for n, i in enumerate(step.batch):
                if i in leads and not step.place:
                    count[n] = leads[i]
                elif i in leads or i in self.drafting:
                    start[n], count[n] = start[n] + step.place + leads.get(i, 1) - 1, 1
        return start, count


@dataclass(slots=True)
class TokenLogprob:
    """Log-probabilities of one position, from the raw logits (before penalties, temperature and truncation)."""

    logprob: float  # of the chosen token
    top: list[tuple[int, float]]  # (token id, log-probability), best first
    rank: int = 0  # of the chosen token, 1 for the best; counted for prompt tokens only


@dataclass(slots=True)
class SweepResult:
    """The results of a plan.

    ``tokens[j]`` belongs to ``plan.sample[j]``; it is one of ``FAILED`` if none could be drawn. ``scores[j]`` belongs
    to ``plan.score[j]``: an entry for each of its positions that a prompt token follows, about that token. ``verified[j]``
    belongs to ``plan.verify[j]``: the tokens after the one in ``tokens``. All but the last of the row's tokens are the
    drafts that stood; the last one may be one of ``FAILED``. ``vectors``: of sequences with pooling, whose token is 0: the
    batch row, and float32 values in little-endian order. ``forced``: places in ``plan.sample`` of rows whose grammar leaves
    no choice after their last token, and the tokens that come next. ``on_host``: rows of a card's sweep that the host drew,
    scored or pooled, for which the card's work stood still. ``likeness[j]`` belongs to ``plan.guesses[j]``: of each row that
    was sent, the cosine of the vocabulary probabilities behind the guess and behind the block.
    """

    number: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob | None] = field(default_factory=list)
    scores: list[list[TokenLogprob]] = field(default_factory=list)
    seconds: float = 0.0  # of the whole sweep on the device thread
    kernel_seconds: float = 0.0  # part of it inside runs and sampling
    verified: list[list[int]] = field(default_factory=list)
    verified_logprobs: list[list[TokenLogprob]] = field(default_factory=list)  # of these tokens, if requested
    vectors: list[tuple[int, bytes]] = field(default_factory=list)
    forced: list[tuple[int, list[int]]] = field(default_factory=list)
    on_host: int = 0
    likeness: list[list[float]] = field(default_factory=list)
