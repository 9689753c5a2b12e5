"""The HTTP front before there is a gateway: the start-up stages, and a stand-in gateway port.

The front listens first, so that ``/health/live`` answers and a taken port is noticed before any worker is started. Nothing
is ready until ``become`` is called; then every call goes to the real port. If every gateway is a process of its own,
``become`` is never called: the head's front then answers only while none of the gateways is up.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ...actors.gateway.port import (
    AnswerBasis,
    ApplicationView,
    Census,
    Credit,
    DispatchFigures,
    DrainAnswered,
    GatewayPort,
    Generation,
    KnownAnswer,
    LengthFigures,
    ModelInfo,
    MoveBegun,
    MoveFigures,
    NewApplication,
    Readiness,
    RemovalView,
    RequestLine,
    RequestView,
    TierFigures,
    TokenStream,
)
from ...policies.requests.rate_limit import LimitStatus, Verdict
from ...policies.requests.refusal import Refusal, RequestRefused
from ...policies.requests.request_ownership import Viewer


class Stages:
    """The stages that the server has reached, with their seconds since the server began. The last one is current."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self.reached: list[tuple[str, float]] = []

    def now(self) -> float:
        """Return the seconds since the server began."""
        return time.monotonic() - self._began

    def reach(self, name: str, at: float | None = None) -> float:
        """Record a stage and return its seconds. ``at``: given if it was reached earlier."""
        seconds = self.now() if at is None else at
        self.reached.append((name, seconds))
        return seconds

    def view(self) -> dict[str, Any]:
        """Return the stages for JSON. No model is named, so that the view is safe to publish."""
        return {
            "stage": self.reached[-1][0] if self.reached else "starting",
            "seconds": round(self.now(), 3),
            "stages": [{"name": name, "seconds": round(seconds, 3)} for name, seconds in self.reached],
        }


class StartingPort:
    """A ``GatewayPort`` that refuses requests until ``become`` names the real one."""

    def __init__(self) -> None:
        self.name = "starting"  # never part of a request id: without a gateway there are no models
        self.reason = "the cluster is starting"
        self._real: GatewayPort | None = None

    def become(self, real: GatewayPort) -> None:
        self._real, self.name = real, real.name

    def models(self) -> list[ModelInfo]:
        return self._real.models() if self._real is not None else []

    def default_model(self) -> str:
        return self._real.default_model() if self._real is not None else ""

    def ready(self) -> Readiness:
        return self._real.ready() if self._real is not None else Readiness(False, self.reason)

    def generate(self, generation: Generation) -> TokenStream:
        return self._there().generate(generation)

    async def answer_basis(self, models: Sequence[str]) -> AnswerBasis:
        return await self._there().answer_basis(models)

    async def remembered(self, generation: Generation) -> KnownAnswer:
        return await self._there().remembered(generation)

    def credits(self, application: str) -> list[Credit]:
        return self._real.credits(application) if self._real is not None else []

    async def credit_grown(self) -> None:
        await self._there().credit_grown()

    def requests(self, viewer: Viewer, limit: int) -> list[RequestLine]:
        return self._real.requests(viewer, limit) if self._real is not None else []

    def describe(self, request: str) -> RequestView | None:
        return self._real.describe(request) if self._real is not None else None

    def census(self) -> dict[str, Census]:
        return self._real.census() if self._real is not None else {}

    def tenants(self) -> dict[str, Census]:
        return self._real.tenants() if self._real is not None else {}

    def lengths(self) -> LengthFigures:
        return self._real.lengths() if self._real is not None else LengthFigures()

    def dispatching(self) -> DispatchFigures:
        return self._real.dispatching() if self._real is not None else DispatchFigures()

    def cancel(self, request: str) -> bool:
        return self._real is not None and self._real.cancel(request)

    def move(self, request: str, worker: str, route: str) -> list[MoveBegun]:
        return self._real.move(request, worker, route) if self._real is not None else []

    def moves(self) -> MoveFigures:
        return self._real.moves() if self._real is not None else MoveFigures()

    def tiers(self) -> TierFigures:
        return self._real.tiers() if self._real is not None else TierFigures()

    async def charge(self, tenant: str, tokens: int) -> Verdict:
        return await self._there().charge(tenant, tokens)

    def settle(self, tenant: str, charged: int, used: int) -> None:
        self._there().settle(tenant, charged, used)

    async def standings(self, tenants: list[str]) -> dict[str, dict[str, LimitStatus]]:
        return await self._real.standings(tenants) if self._real is not None else {}

    async def limit(self, tenant: str, name: str) -> int:
        return await self._there().limit(tenant, name)

    async def add_application(self, new: NewApplication) -> ApplicationView:
        return await self._there().add_application(new)

    async def find_application(self, name: str) -> bool:
        return await self._there().find_application(name)

    async def remove_application(self, name: str, grace: float, default: str = "") -> RemovalView:
        return await self._there().remove_application(name, grace, default)

    async def drain_worker(self, worker: str, drain: bool) -> DrainAnswered:
        return await self._there().drain_worker(worker, drain)

    async def cluster(self) -> dict[str, Any]:
        return await self._there().cluster()

    async def claims(self, workers: Sequence[str], models: Sequence[str]) -> list[dict[str, Any]]:
        return await self._there().claims(workers, models)

    async def actors(self) -> list[dict[str, Any]]:
        return await self._there().actors()

    async def drain(self, seconds: float) -> None:
        if self._real is not None:
            await self._real.drain(seconds)

    def _there(self) -> GatewayPort:
        if self._real is None:
            raise RequestRefused(Refusal.UNAVAILABLE, f"{self.reason}; try again soon", 1.0)
        return self._real
