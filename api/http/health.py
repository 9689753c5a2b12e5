"""Liveness and readiness. The only answers that need no key, so with keys they say nothing about the applications."""

from __future__ import annotations

import math
from typing import Any

from aiohttp import web

from .context import FRONT

PUBLIC = frozenset({"/health", "/health/live", "/health/ready", "/ping"})


async def live(request: web.Request) -> web.Response:
    """The event loop turns."""
    return web.json_response({"status": "live"})


async def ready(request: web.Request) -> web.Response:
    """200 when at least one application can be served; else 503 with the reason. With the stages of the start-up."""
    front = request.app[FRONT]
    readiness = front.port.ready()
    body: dict[str, Any] = {"status": "ready" if readiness.ready else "not ready", "reason": readiness.reason}
    body |= front.stages.view()
    if front.keys.caller(request.headers.get("Authorization")) is not None:
        body["applications"] = readiness.applications
    if readiness.ready:
        return web.json_response(body)
    retry = str(max(1, math.ceil(readiness.retry_after)))
    return web.json_response(body, status=503, headers={"Retry-After": retry})
