"""Liveness and readiness probes.

They are the only endpoints that need no key, so with keys configured they reveal nothing about the applications.
"""

from __future__ import annotations

import math
from typing import Any

from aiohttp import web

from .context import FRONT

PUBLIC = frozenset({"/health", "/health/live", "/health/ready", "/ping"})


async def live(request: web.Request) -> web.Response:
    """Answer 200 while the event loop runs."""
    return web.json_response({"status": "live"})


async def ready(request: web.Request) -> web.Response:
    """Answer 200 if at least one application can be served, else 503 with the reason. Includes the start-up stages."""
    front = request.app[FRONT]
    readiness = front.port.ready()
    body: dict[str, Any] = {"status": "ready" if readiness.ready else "not ready", "reason": readiness.reason}
    body |= front.stages.view()
    headers = request.headers
    if front.keys.caller(headers.get("Authorization"), headers.get("x-api-key")) is not None:
        body["applications"] = readiness.applications
        body["doubts"] = readiness.doubts
    if readiness.ready:
        return web.json_response(body)
    retry = str(max(1, math.ceil(readiness.retry_after)))
    return web.json_response(body, status=503, headers={"Retry-After": retry})
