"""A gateway port that can be served before there is a gateway.

The HTTP front listens first, so that ``/health/live`` answers and a taken port is noticed before any worker is started.
Until ``become`` is called nothing is ready; from then on everything is the real port's.
"""

from __future__ import annotations

from typing import Any

from blockwright.actors.gateway.port import GatewayError, GatewayPort, Generation, ModelInfo, Readiness, RequestView, Stream


class StartingPort:
    """Implements ``GatewayPort``."""

    def __init__(self) -> None:
        self.name = "starting"  # in no request id: there are no models before there is a gateway
        self._real: GatewayPort | None = None

    def become(self, real: GatewayPort) -> None:
        self._real, self.name = real, real.name

    def models(self) -> list[ModelInfo]:
        return self._real.models() if self._real is not None else []

    def ready(self) -> Readiness:
        return self._real.ready() if self._real is not None else Readiness(False, "the cluster is starting")

    def generate(self, generation: Generation) -> Stream:
        return self._there().generate(generation)

    def describe(self, request: str) -> RequestView | None:
        return self._real.describe(request) if self._real is not None else None

    async def cluster(self) -> dict[str, Any]:
        return await self._there().cluster()

    async def drain(self, seconds: float) -> None:
        if self._real is not None:
            await self._real.drain(seconds)

    def _there(self) -> GatewayPort:
        if self._real is None:
            raise GatewayError(503, "the cluster is starting; try again soon", retry_after=1.0)
        return self._real
