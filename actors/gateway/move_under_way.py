"""A request on its way from one route to another, and what whoever moves it needs of the gateway's state machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from ...policies.model.chain import Route
from ...policies.requests.dispatch import workers_of
from ...policies.requests.poison import Quarantine
from ...policies.requests.request_timeout import RequestTimeout
from ...policies.requests.routing_table import RoutingTable
from .messages import Effect, Move, Submit
from .record import RequestRecord


def places(route: Route) -> str:
    """The workers of a route, as the names of groups have them: pipelines that begin on one worker are different ones."""
    return "+".join(workers_of(route))


@dataclass(slots=True)
class MoveUnderWay:
    """A request whose pages are copied, or that has not said its first word on its new route."""

    move: Move
    source: Route
    since: float
    sent: int = 0  # pages of which copies were asked for
    rounds: int = 0
    waiting: dict[str, int] = field(default_factory=dict)  # worker -> number of the export that it has not answered
    pages: int = 0  # copied on all of its workers, in the rounds that are over
    least: int | None = None  # of those that have answered in this round
    nbytes: int = 0
    refused: int = 0
    reasons: list[str] = field(default_factory=list)
    switch: int = 0  # because of which it moves; 0: because of none
    submit: Submit | None = None  # what its attempt on the new route begins with, while it pauses
    left: float | None = None  # when its attempt on the old route ended
    handed_over: float | None = None  # when that on the new route was submitted
    reached: int = 0  # tokens that it had come to then
    cached: int = 0  # tokens of which KV was found there

    @property
    def recomputed(self) -> int:
        """Tokens that it had come to, and are computed again."""
        return max(self.reached - self.cached, 0)

    @property
    def pauses(self) -> bool:
        """It has left, and waits for its pages."""
        return self.left is not None and self.handed_over is None


class MovedParts(Protocol):
    """What is needed of ``GatewayState``."""

    address: str
    page_size: int
    table: RoutingTable
    quarantine: Quarantine
    timeouts: RequestTimeout
    active: dict[str, RequestRecord]

    def say(self, effect: Effect) -> None: ...

    def relocate(self, record: RequestRecord, route: Route, now: float, *, cancel: bool) -> Submit: ...

    def restart(self, record: RequestRecord, now: float) -> None: ...
