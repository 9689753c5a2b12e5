"""An in-flight move of a request from one route to another, and the parts of the gateway state that moves need."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from ...model.chain import Route
from ..dispatch import workers_of
from ..poison import Quarantine
from ..request_timeout import RequestTimeout
from ..routing_table import RoutingTable
from .messages import Effect, Move, Submit
from .record import RequestRecord


def places(route: Route) -> str:
    """Return a route's workers as one label. It names every worker, since different pipelines may begin on the same one."""
    return "+".join(workers_of(route))


@dataclass(slots=True)
class MoveInProgress:
    """A request whose pages are being copied, or that has not produced a token on its new route yet."""

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
    submit: Submit | None = None  # the submission that starts the attempt on the new route, while it pauses
    left: float | None = None  # when its attempt on the old route ended
    handed_over: float | None = None  # when the attempt on the new route was submitted
    reached: int = 0  # tokens reached when it left
    cached: int = 0  # tokens whose KV was found on the new route

    @property
    def recomputed(self) -> int:
        """Tokens that the old route had reached and the new one computes again."""
        return max(self.reached - self.cached, 0)

    @property
    def pauses(self) -> bool:
        """True while the request has left its old route and waits for its pages."""
        return self.left is not None and self.handed_over is None


class MovedParts(Protocol):
    """The parts of ``RequestBook`` that moves need."""

    address: str
    page_size: int
    table: RoutingTable
    quarantine: Quarantine
    timeouts: RequestTimeout
    active: dict[str, RequestRecord]

    def emit(self, effect: Effect) -> None: ...

    def relocate(self, record: RequestRecord, route: Route, now: float, *, cancel: bool) -> Submit: ...

    def restart(self, record: RequestRecord, now: float) -> None: ...
