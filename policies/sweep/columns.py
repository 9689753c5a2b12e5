"""The columns of a worker's sequences: each fact about a sequence is in a list indexed by it.

Copies, snapshots and checks are here; ``row_table.py`` has the changes. Long lists (tokens, hashes, pages) are append-only
and shared by forks, each with a length of its own. A fork that appends to a list longer than its own length copies its part
first. So a fork costs the columns, not their contents.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Self

from ..model.runs import LocalRoute
from ..model.tier_work import FamilyTier
from ..plain import Plain, from_plain, to_plain
from ..requests.urgency import FIRST_OFFLINE, rises, shared_class
from .events import Submission

FOREVER = float("inf")
NEVER_DRAFTED = 1 << 60
PURE = 1 << 60
MOST_YIELDS = 3  # rows that a sequence gives to urgent ones, one after the other


class Status(IntEnum):
    """The state of a sequence."""

    FREE = 0  # the index is unused
    WAITING = 1  # in the queue
    PARKED = 2  # waits for a page that another sequence has announced
    LEASING = 3  # waits for hosts of its route, or has their leases and waits for room here
    RUNNING = 4
    LEAVING = 5  # in no new plan; its row and pages return when no open plan or flight names it


class Place(IntEnum):
    """The part of a sequence's route that is here."""

    LOCAL = 0  # home, and the route ends here
    FORWARD = 1  # home, and the route goes on elsewhere
    GUEST = 2  # home elsewhere
    DRAFT = 3  # a row of another model, which drafts for a sequence here


_PLAIN = (
    "status", "place", "row", "length", "computed", "planned", "known", "open", "paged", "hashed", "cached", "requeue",
    "deadline", "charged", "plain_until", "drafted", "priority", "since", "yielded", "held",
    "impure_from",
)  # fmt: skip
_DERIVED = ("ready", "limit", "stop", "tenant", "delta", "cost_compute", "cost_memory")
COLUMNS = (*_PLAIN, *_DERIVED, "tokens", "hashes", "pages", "entered", "submission", "route", "tier")


class Columns:
    """The columns of one worker.

    Every public list is indexed by sequence; its comment says what a value means. Only ``RowTable`` writes them.
    """

    def __init__(self, rows: int, page_size: int, prefix_cache: bool) -> None:
        self.page_size, self._prefix_cache = page_size, prefix_cache
        self.submission: list[Submission] = []
        self.route: list[LocalRoute] = []
        self.status: list[int] = []
        self.place: list[int] = []
        self.row: list[int] = []  # device row; -1: none
        self.tokens: list[list[int]] = []  # prompt, then answer; the first ``length`` are this sequence's
        self.length: list[int] = []  # known tokens
        self.hashes: list[list[bytes]] = []  # hashes of full pages of tokens; the first ``hashed`` are this sequence's
        self.hashed: list[int] = []  # number of hashes: as submitted, later as computed; 0 without the prefix cache
        self.computed: list[int] = []  # positions whose KV is written
        self.planned: list[int] = []  # the same after all open plans
        self.known: list[int] = []  # ``length`` after all open plans
        self.open: list[int] = []  # number of open plans and flights that name the sequence
        self.pages: list[list[list[int]]] = []  # for each span of the route: handles; the first ``paged`` are its own
        # pages of hidden states that open plans read, each with the position up to which that plan computes
        self.entered: list[list[tuple[int, int]]] = []
        self.paged: list[int] = []  # number of pages, the same on every span
        self.held: list[int] = []  # 1: no token is drawn yet, since its grammar is not compiled
        # if LOCAL and RUNNING: decode positions below it need no page, are not the last, and are drawn without drafts
        self.ready: list[int] = []
        self.limit: list[int] = []  # most tokens, prompt and answer
        self.stop: list[list[int]] = []  # tokens that end it
        self.cached: list[int] = []  # positions found in the prefix cache at its start
        self.requeue: list[int] = []  # 1: LEAVING because preempted; it returns to the queue
        self.priority: list[int] = []  # its priority: lower runs earlier; lower than it came with if it has risen by a class
        self.since: list[float] = []  # the time from which its wait in its class counts
        self.yielded: list[int] = []  # how often it has given its row to an urgent sequence
        self.tier: list[FamilyTier | None] = []  # in the accounts; None: no tier
        self.tenant: list[str] = []  # account for its pages and its fair share
        self.plain_until: list[int] = []  # positions below it are drawn without drafts; ``NEVER_DRAFTED``: all
        self.impure_from: list[int] = []  # pages with this position or a later one are private; ``PURE``: none
        self.drafted: list[int] = []  # drafts that an open plan verifies
        self.charged: list[int] = []  # leading positions its account has paid for, computed or from the cache
        self.delta: list[int] = []  # number of its route's deltas (``LocalRoutes``); 0: none
        self.cost_compute: list[int] = []  # bytes of parameters that one token passes on this worker
        self.cost_memory: list[int] = []  # bytes of KV of one page on this worker
        self.deadline: list[float] = []  # expiry time on the clock of events; infinite: never
        self._unused: list[int] = []
        self._by_request: dict[str, int] = {}  # sequences at home that a gateway may still name
        self._free_rows = list(range(rows - 1, -1, -1))
        self.next_deadline = FOREVER  # no sequence expires before it

    # views -----------------------------------------------------------------------------------------------------------

    def key(self, s: int) -> tuple[int, float, int]:
        """Return its place in the queue of its account: priority, arrival, then index."""
        return (self.priority[s], self.submission[s].arrival, s)

    def age(self, s: int) -> tuple[int, float, str]:
        """Return its place among the sequences of all accounts, where priorities do not count: class, arrival, name.

        It is the same on every worker of its route.
        """
        submission = self.submission[s]
        return (shared_class(submission.priority), submission.arrival, submission.request)

    def risen(self, s: int) -> int:
        """Return by how many classes it has risen."""
        return rises(self.submission[s].priority, self.priority[s])

    def is_guest(self, s: int) -> bool:
        """Return whether its home is another worker."""
        return self.place[s] == Place.GUEST

    def is_draft_row(self, s: int) -> bool:
        """Return whether it is the row of a model that drafts for another sequence."""
        return self.place[s] == Place.DRAFT

    def is_offline(self, s: int) -> bool:
        """Return whether it runs on spare capacity only."""
        return self.priority[s] >= FIRST_OFFLINE

    def live(self) -> list[int]:
        """Return the indices in use."""
        return [s for s, status in enumerate(self.status) if status != Status.FREE]

    def with_status(self, status: Status) -> list[int]:
        return [s for s, other in enumerate(self.status) if other == status]

    def awaiting(self) -> int:
        """Count the sequences at home that neither run nor end. A preempted one leaves its row, and then waits."""
        gone = (Status.RUNNING, Status.LEAVING)
        return sum(self.status[s] not in gone or self.requeue[s] > 0 for s in self._by_request.values())

    def scores(self, s: int, start: int) -> bool:
        """Return whether log-probabilities or states of the prompt are wanted, from position ``start`` on."""
        submission = self.submission[s]
        return start + 1 < submission.prompt_length and submission.scored

    @property
    def free_rows(self) -> int:
        return len(self._free_rows)

    @property
    def leaving(self) -> int:
        """The number of sequences whose memory is being freed."""
        return self.status.count(Status.LEAVING)

    def tokens_of(self, s: int) -> list[int]:
        """Return a copy of its known tokens."""
        return self.tokens[s][: self.length[s]]

    def hashes_of(self, s: int) -> list[bytes]:
        """Return a copy of the hashes of its leading pages; empty without the prefix cache."""
        return self.hashes[s][: self.hashed[s]]

    def page(self, s: int, page: int) -> list[int]:
        """Return the handles of one page, one for each span."""
        return [handles[page] for handles in self.pages[s]]

    def handles(self, s: int) -> list[int]:
        """Return all its handles, span by span, the last page first: the order in which they are released."""
        return [handle for handles in self.pages[s] for handle in handles[self.paged[s] - 1 :: -1]] if self.paged[s] else []

    def _fill(self, s: int) -> None:
        """Fill the columns that follow from others."""
        submission, route = self.submission[s], self.route[s]
        self.limit[s], self.stop[s] = submission.limit, submission.stop_tokens
        self.tenant[s], self.delta[s] = submission.tenant, route.delta
        self.cost_compute[s], self.cost_memory[s] = route.cost_compute, route.cost_memory
        self.ready[s] = self._ready(s)

    def _ready(self, s: int) -> int:
        if self.status[s] != Status.RUNNING or self.place[s] != Place.LOCAL or self.held[s]:
            return 0
        last = self.submission[s].limit - 1
        last = min(last, self.plain_until[s])
        return min(last, self.paged[s] * self.page_size) if self.pages[s] else last

    # copies ----------------------------------------------------------------------------------------------------------

    def fork(self) -> Self:
        copy = type(self)(0, self.page_size, self._prefix_cache)
        for name in COLUMNS:
            setattr(copy, name, getattr(self, name).copy())
        columns: Any = self.pages  # an unused index holds 0
        copy.pages = [spans.copy() if spans else spans for spans in columns]
        copy._unused = self._unused.copy()
        copy._by_request = self._by_request.copy()
        copy._free_rows = self._free_rows.copy()
        copy.next_deadline = self.next_deadline
        return copy

    def snapshot(self) -> dict[str, Plain]:
        routes = list(dict.fromkeys(self.route[s] for s in self.live()))
        places = {route: n for n, route in enumerate(routes)}
        columns: dict[str, Plain] = {name: to_plain(getattr(self, name)) for name in _PLAIN}
        live = [(s, self.status[s] != Status.FREE) for s in range(len(self.status))]
        return {
            **columns,
            "submission": [to_plain(self.submission[s]) if used else None for s, used in live],
            "routes": to_plain(routes),
            "route": [places[self.route[s]] if used else -1 for s, used in live],
            "tokens": [self.tokens_of(s) if used else [] for s, used in live],
            "hashes": [self.hashes_of(s) if used else [] for s, used in live],
            "tier": [to_plain(self.tier[s]) if used else None for s, used in live],
            "entered": [[list(pair) for pair in self.entered[s]] if used else [] for s, used in live],
            "pages": [[listed[: self.paged[s]] for listed in self.pages[s]] if used else [] for s, used in live],
            "unused": self._unused.copy(),
            "next_deadline": self.next_deadline,
            "page_size": self.page_size,
            "prefix_cache": self._prefix_cache,
            "by_request": self._by_request.copy(),
            "free_rows": self._free_rows.copy(),
        }

    @classmethod
    def restore(cls, data: dict[str, Plain]) -> Self:
        table = cls(0, data["page_size"], data["prefix_cache"])
        routes = from_plain(list[LocalRoute], data["routes"])
        for name in (*_PLAIN, "tokens", "hashes"):
            setattr(table, name, [list(value) if isinstance(value, list) else value for value in data[name]])
        table.pages = [[list(handles) for handles in spans] for spans in data["pages"]]
        table.entered = [[(pair[0], pair[1]) for pair in pairs] for pairs in data["entered"]]
        table.tier = [from_plain(FamilyTier | None, data["tier"][s]) for s in range(len(table.status))]
        for name in (*_DERIVED, "submission", "route"):
            setattr(table, name, [0] * len(table.status))
        for s in data["unused"]:
            for name in COLUMNS:
                getattr(table, name)[s] = 0
        for s in table.live():
            table.submission[s] = from_plain(Submission, data["submission"][s])
            table.route[s] = routes[data["route"][s]]
            table._fill(s)
        table._unused, table._free_rows = list(data["unused"]), list(data["free_rows"])
        table._by_request = dict(data["by_request"])
        table.next_deadline = data["next_deadline"]
        return table

    def least_deadline(self, now: float) -> float:
        """Return the next deadline after ``now`` of sequences that stay."""
        return min((self.deadline[s] for s in self.staying() if self.deadline[s] > now), default=FOREVER)

    def staying(self) -> list[int]:
        """Return the sequences that will go on, now or after a preemption."""
        return [s for s in self.live() if self.status[s] != Status.LEAVING or self.requeue[s]]

    def check(self, max_rows: int) -> None:
        """Raise AssertionError unless columns are equally long and agree, and rows and indices are owned once."""
        count = len(self.status)
        assert {len(getattr(self, name)) for name in COLUMNS} <= {count}, "columns are not equally long"
        live = self.live()
        assert sorted(self._unused) == sorted(set(range(count)) - set(live)), "an index is lost or unused twice"
        held = [self.row[s] for s in live if self.row[s] >= 0]
        assert sorted(held + self._free_rows) == list(range(max_rows)), "a row is lost or owned twice"
        assert all(getattr(self, name)[s] == 0 for name in COLUMNS for s in self._unused), "an unused index is not empty"
        for s in live:
            self._check_sequence(s)
        assert all(self.deadline[s] >= self.next_deadline for s in live if self.status[s] != Status.LEAVING), (
            "a deadline is late"
        )
        for request, s in self._by_request.items():
            assert self.submission[s].request == request, f"request {request} is served by another sequence"
            assert self.status[s] != Status.FREE, f"request {request} is served by a sequence that has left"

    def _check_sequence(self, s: int) -> None:
        submission = self.submission[s]
        route = self.route[s]
        pages = self.paged[s]
        assert len(self.tokens[s]) >= self.length[s], f"sequence {s} lacks tokens"
        assert len(self.hashes[s]) >= self.hashed[s], f"sequence {s} lacks hashes of pages"
        assert len(self.pages[s]) == len(route.spans), f"sequence {s} lists pages of other spans"
        assert all(len(handles) >= pages for handles in self.pages[s]), f"sequence {s} lacks pages"
        running = self.status[s] == Status.RUNNING
        assert (self.row[s] >= 0) >= running, f"sequence {s} runs without a row"
        assert running or self.status[s] == Status.LEAVING or self.row[s] < 0, f"sequence {s} has a row and does not run"
        assert self.open[s] >= 0, f"sequence {s} is in fewer plans than none"
        assert not self.entered[s] or self.open[s], f"sequence {s} keeps hidden states that no plan reads"
        assert not self.drafted[s] or self.open[s] == 1, f"sequence {s} is verified by a plan and named by another"
        assert running <= self.charged[s] <= max(self.length[s], self.computed[s]), f"sequence {s} runs unpaid, or paid more"
        if self.place[s] == Place.DRAFT:
            assert self.computed[s] < self.length[s], f"draft row {s} has KV of a token that is not known"
        elif self.place[s] != Place.GUEST:
            forward = Place.LOCAL if route.next_worker is None else Place.FORWARD
            assert self.place[s] == forward, f"sequence {s} has a wrong place in its route"
        found = (self.limit[s], self.stop[s], self.tenant[s], self.cost_compute[s], self.cost_memory[s])
        expected = (submission.limit, submission.stop_tokens, submission.tenant)
        assert 0 <= self.risen(s) <= 2, f"sequence {s} has fallen by a class, or risen above all"
        assert 0 <= self.yielded[s] <= MOST_YIELDS, f"sequence {s} has given its row to urgent ones too often"
        assert self.delta[s] == route.delta, f"sequence {s} has other deltas than its route"
        assert found == (*expected, route.cost_compute, route.cost_memory), (
            f"columns of sequence {s} differ from its submission"
        )
        assert self.ready[s] == self._ready(s), f"sequence {s} is planned without a page, or not at all"
