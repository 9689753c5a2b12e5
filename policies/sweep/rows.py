"""The sequences of a worker as columns, indexed by a small integer that is reused after a sequence has left.

A sequence is *home* here (this worker plans it and reports its tokens) or a *guest* (it is home elsewhere, and a lease gives
it a row and pages here). Only running sequences own a device row and pages.
"""

from __future__ import annotations

from enum import IntEnum

from blockwright.policies.model.runs import LocalRoute
from blockwright.policies.sweep.events import Submission


class Status(IntEnum):
    """Where a sequence is."""

    FREE = 0  # the index is unused
    WAITING = 1  # in the queue
    PARKED = 2  # waits for a page that another sequence has announced
    LEASING = 3  # waits for hosts of its route
    RUNNING = 4
    LEAVING = 5  # takes no part in new plans; its row and pages return when no open plan or flight names it


class Rows:
    """Columns. Every attribute is a list indexed by sequence; see the comment for what a value means."""

    def __init__(self) -> None:
        self.submission: list[Submission] = []
        self.route: list[LocalRoute] = []
        self.status: list[Status] = []
        self.row: list[int] = []  # device row; -1 when none
        self.tokens: list[list[int]] = []  # known tokens: prompt, then answer
        self.hashes: list[list[bytes]] = []  # of the full pages of tokens
        self.computed: list[int] = []  # positions whose KV is written
        self.planned: list[int] = []  # the same once all open plans have ended
        self.known: list[int] = []  # len(tokens) once all open plans have ended
        self.open: list[int] = []  # open plans and flights that name the sequence
        self.pages: list[list[list[int]]] = []  # for each span of the route: a handle for each page
        self.cached: list[int] = []  # positions found in the prefix cache when it was started
        self.requeue: list[bool] = []  # LEAVING because preempted: returns to the queue
        self.away: list[int] = []  # number of the plan with which it left for other workers and is not back; 0: here
        self.flying: list[bool] = []  # away, and the local part has been committed
        self.home: list[str] = []  # guest: the home worker; "" for a sequence at home
        self.lease: list[int] = []  # number of the lease at the home; 0 when there is none
        self.granted: list[int] = []  # home: hosts that have granted, in the order of asking
        self.host_cached: list[int] = []  # home: leading pages present on all hosts so far
        self._unused: list[int] = []

    def add(self, submission: Submission, route: LocalRoute, home: str = "", lease: int = 0) -> int:
        """A new waiting sequence; returns its index."""
        values = {
            "submission": submission, "route": route, "status": Status.WAITING, "row": -1,
            "tokens": list(submission.tokens), "hashes": list(submission.page_hashes),
            "computed": 0, "planned": 0, "known": len(submission.tokens), "open": 0,
            "pages": [[] for _ in route.spans], "cached": 0, "requeue": False, "away": 0, "flying": False,
            "home": home, "lease": lease, "granted": 0, "host_cached": 1 << 30,
        }  # fmt: skip
        if self._unused:
            index = self._unused.pop()
            for name, value in values.items():
                getattr(self, name)[index] = value
            return index
        for name, value in values.items():
            getattr(self, name).append(value)
        return len(self.status) - 1

    def remove(self, index: int) -> None:
        self.status[index] = Status.FREE
        self.tokens[index], self.hashes[index] = [], []
        self._unused.append(index)

    def order(self, index: int) -> tuple[int, float, int]:
        """Place in the queue and age: priority class, arrival, then index."""
        submission = self.submission[index]
        return (submission.priority, submission.arrival, index)

    def live(self) -> list[int]:
        """Indices in use."""
        return [i for i, status in enumerate(self.status) if status is not Status.FREE]

    def fork(self) -> Rows:
        copy = Rows()
        for name, column in vars(self).items():
            if name in ("tokens", "hashes"):
                setattr(copy, name, [list(values) for values in column])
            elif name == "pages":
                setattr(copy, name, [[list(handles) for handles in spans] for spans in column])
            else:
                setattr(copy, name, list(column))
        return copy
