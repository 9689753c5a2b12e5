"""The claims of running requests on other routes: who is to go on where, and how far its pages have come.

A move for one request, a drained worker and a switch of routes all claim in the same way; a request has at most one claim,
and a later one withdraws the former. Owns the claims; what becomes of a request is settled in ``settling.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from ...model.chain import Route
from ...sweep.events import Progressed
from ...sweep.page_events import Exported
from ..dispatch import workers_of
from .messages import Move, Submit
from .record import RequestRecord
from .values import MoveFigures


def places(route: Route) -> str:
    """Return a route's workers as one label. It names every worker, since different pipelines may begin on the same one."""
    return "+".join(workers_of(route))


class ClaimNews(Enum):
    """News of workers about a claim."""

    COPIED = auto()  # all of them have answered a round of copies
    FAILED = auto()  # the same, and pages were refused, or could not be sent
    PLANNED = auto()  # the home of the new route has planned the attempt
    ARRIVED = auto()  # the first token has come from there


@dataclass(slots=True)
class RouteClaim:
    """The claim of a request whose pages are being copied, or that has not produced a token on its new route yet."""

    move: Move
    source: Route
    since: float
    sent: int = 0  # pages whose copies were requested
    rounds: int = 0
    waiting: dict[str, int] = field(default_factory=dict)  # worker -> number of the export it has not answered
    pages: int = 0  # copied by all of its workers, in the finished rounds
    least: int | None = None  # fewest pages among the answers of this round
    nbytes: int = 0
    refused: int = 0
    reasons: list[str] = field(default_factory=list)
    switch: int = 0  # number of the switch that caused the move; 0: none
    submit: Submit | None = None  # the submission that starts the attempt on the new route, of one that paused
    left: float | None = None  # when its attempt on the old route ended
    handed_over: float | None = None  # when the attempt on the new route was submitted
    reached: int = 0  # tokens reached when it left
    cached: int = 0  # tokens whose KV was found on the new route

    @property
    def recomputed(self) -> int:
        """Tokens that the old route had reached and the new one computes again."""
        return max(self.reached - self.cached, 0)

    @property
    def other_chain(self) -> bool:
        """True if the request goes over to another chain, which is no move."""
        return self.move.route.application != self.source.application

    @property
    def pauses(self) -> bool:
        """True while the request has left its old route and waits for its pages."""
        return self.left is not None and self.handed_over is None


class RouteClaims:
    """The claims of one gateway by request, and the outcomes of past ones (see the module)."""

    def __init__(self) -> None:
        self.open: dict[str, RouteClaim] = {}
        self.due: list[tuple[RouteClaim, ClaimNews]] = []  # what workers have reported that is not settled yet
        self.figures = MoveFigures()
        self._number = 0  # number of the last export

    def claim(self, move: Move, source: Route, now: float, switch: int = 0) -> RouteClaim:
        """Claim a route for a request."""
        made = self.open[move.request] = RouteClaim(move, source, now, switch=switch)
        return made

    def numbered(self) -> int:
        """Return the number of the next export."""
        self._number += 1
        return self._number

    def accept_export(self, news: Exported, worker: str) -> None:
        """Take a worker's answer: it has sent the pages that it could. Due once all workers have answered the round."""
        claim = self.open.get(news.request)
        if claim is None or claim.waiting.get(worker) != news.number:
            return
        del claim.waiting[worker]
        claim.least = news.pages if claim.least is None else min(claim.least, news.pages)
        claim.nbytes += news.nbytes
        claim.refused += news.refused
        if news.reason:
            claim.reasons.append(news.reason)
        if claim.waiting:
            return
        claim.pages, claim.least = claim.pages + claim.least, None
        failed = bool(news.reason or news.refused)
        if claim.handed_over is None:
            self.due.append((claim, ClaimNews.FAILED if failed else ClaimNews.COPIED))

    def accept_plan(self, news: Progressed) -> None:
        """Note that a home has planned the new attempt, or found tokens of it in its prefix cache."""
        claim = self.open[news.request]
        if news.attempt == claim.move.attempt + 1:
            claim.cached = max(claim.cached, news.cached)
            self.due.append((claim, ClaimNews.PLANNED))

    def arrive(self, request: str) -> None:
        """Note a token. The first one on the new route ends the claim."""
        claim = self.open[request]
        if claim.handed_over is not None:
            del self.open[request]
            self.due.append((claim, ClaimNews.ARRIVED))

    def withdraw(self, request: str) -> RouteClaim | None:
        """Withdraw the claim of a request whose attempt, or which itself, ended for another reason."""
        claim = self.open.pop(request, None)
        if claim is not None and not claim.other_chain:
            self.figures.outcomes["abandoned"] += 1
        return claim

    def work(self, work: Mapping[str, int], active: Mapping[str, RequestRecord]) -> dict[str, int]:
        """Return the outstanding tokens of each worker as if all claims in flight were fulfilled."""
        found = dict(work)
        for request, claim in self.open.items():
            if claim.left is None:
                for name in workers_of(claim.move.route):
                    found[name] = found.get(name, 0) + active[request].placement.counted
        return found

    def check(self, active: Mapping[str, RequestRecord]) -> None:
        """Raise AssertionError when an invariant is broken."""
        assert not self.due, "news of a move are not settled"
        for request, claim in self.open.items():
            placement = active[request].placement
            expected = claim.move.attempt + (claim.left is not None)
            assert placement.attempt == expected, f"request {request} moves in another attempt"
            assert placement.workers, f"request {request} moves and is nowhere"
