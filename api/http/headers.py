"""The headers on every answer: request id, trace, times, remaining limits, ignored fields.

Headers are set when the answer begins, so a stream reports only what is known by then. Nothing here refuses a request.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from urllib.parse import quote

from aiohttp import web

from ..errors import of_anthropic
from .context import BEGUN, CALL_ID, FRONT, IGNORED, NAME, PROGRESS, TRACE, UNNAMED, CallContext
from .limits import CHARGE, rate_headers

MAX_IGNORED_SHOWN = 20
ECHOED = ("x-correlation-id", "x-session-affinity")  # the client's own ids for related requests
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


async def mark(request: web.Request, response: web.StreamResponse) -> None:
    """Add the headers to an answer, for ``on_response_prepare``; streams included."""
    headers = response.headers
    headers["x-request-id"] = answer_id(request)
    if of_anthropic(request.path):
        headers["request-id"] = answer_id(request)
    headers.update(correlation(request))
    if (begun := request.get(BEGUN)) is not None:
        headers["openai-processing-ms"] = str(round(1000 * (asyncio.get_running_loop().time() - begun)))
    if trace := request.get(TRACE):
        headers["traceparent"] = trace
    progress = request.get(PROGRESS)
    now = progress() if progress is not None else None
    if now is not None and now.queue_seconds is not None:
        headers["x-queue-ms"] = str(round(1000 * now.queue_seconds))
        headers["x-cached-tokens"] = str(now.cached)
    if (charge := request.get(CHARGE)) is not None:
        headers.update(rate_headers(charge.verdict))
    request.app[FRONT].cors.mark(request, response)
    if ignored := request.get(IGNORED):
        names = [quote(name[:64], safe="[]/$", errors="replace") for name in ignored[:MAX_IGNORED_SHOWN]]
        headers["x-ignored-fields"] = ", ".join(names)


def correlation(request: CallContext) -> dict[str, str]:
    """Return the headers in ``ECHOED`` that the client sent, if they are printable and short."""
    given = {name: request.headers.get(name, "") for name in ECHOED}
    return {name: value for name, value in given.items() if _REQUEST_ID.fullmatch(value)}


def log_names(request: CallContext) -> dict[str, str]:
    """Return the names by which a log line can be found: our id, and the ids that the client sent."""
    known = {"request": request.get(CALL_ID), "x-request-id": request.get(NAME), "traceparent": request.get(TRACE)}
    return {name: value[:128] for name, value in known.items() if value} | correlation(request)


def answer_id(request: CallContext) -> str:
    """Return the id that an answer has in its headers: the client's own, our id, or a random one if there is none."""
    given = request.headers.get("x-request-id") or request.get(NAME) or ""
    if _REQUEST_ID.fullmatch(given):
        return given
    if request.get(UNNAMED) is None:
        request[UNNAMED] = f"req-{secrets.token_hex(12)}"
    id: str = request.get(CALL_ID) or request[UNNAMED]
    return id
