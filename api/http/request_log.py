"""One log line for each finished HTTP request: at level info, or debug for endpoints that are polled.

The answer is also counted, and a generation is exported as a span if an exporter is configured. Nothing here refuses or
fails a request.
"""

from __future__ import annotations

import asyncio
import logging
import time

from aiohttp import web

from ...runtime.base.scope import parse_traceparent
from .context import ASKED, BEGUN, CALL_ID, CALLER, FAULT, FRONT, METER, MODEL, PROGRESS, TRACE
from .headers import log_names
from .spans import FinishedRequest

LEFT = 499  # status of a client that disconnected before the answer, as in nginx
_POLLED = ("/health", "/ping", "/load", "/metrics", "/admin/cluster", "/admin/forecasts", "/page/")
_LOOKED_AT = ("/v1/requests", "/admin/actors")  # polled with GET by the page, ps and explain; POST changes something
_GENERATIONS = {  # path -> GenAI operation
    "/v1/completions": "text_completion",
    **dict.fromkeys(("/v1/chat/completions", "/v1/messages", "/v1/responses"), "chat"),
}
log = logging.getLogger(__name__)


def note_call(request: web.Request, status: int) -> None:
    """Record a finished request. ``status``: the answer's, or ``LEFT``."""
    resource = request.match_info.route.resource
    path = "none" if resource is None else resource.canonical
    front = request.app[FRONT]
    front.metrics.answered(path, request.method, status)
    if front.spans is not None and path in _GENERATIONS and request.method == "POST":
        front.spans.note(_finished(request, _GENERATIONS[path], status))
    polled = path == "/" or path.startswith(_POLLED) or (request.method == "GET" and path.startswith(_LOOKED_AT))
    level = logging.DEBUG if polled and status < 500 else logging.INFO
    if log.isEnabledFor(level):
        names = log_names(request)
        names.pop("request", None)  # the line begins with it
        parts = [_line(request, path, status), *(f"{name} {value!a}" for name, value in names.items())]
        log.log(level, "%s", ", ".join(parts), extra=log_names(request))


def _line(request: web.Request, path: str, status: int) -> str:
    seconds = asyncio.get_running_loop().time() - request.get(BEGUN, 0.0)
    id, model = request.get(CALL_ID), request.get(MODEL)
    who = f"{id} ({model})" if id else f"{request.method} {path}" + (f" ({model})" if model else "")
    parts = [f"{who}: {'the client left' if status == LEFT else status} after {seconds:.3f} s"]
    if fault := request.get(FAULT):
        parts.append(fault)
    if (caller := request.get(CALLER)) is not None and caller.tenant:
        parts.append(f"tenant {caller.tenant!a}")
    if (meter := request.get(METER)) is not None and (progress := request.get(PROGRESS)) is not None:
        parts += [*meter.log_parts(), *([f"{now.cached} cached"] if (now := progress()).cached else [])]
        if now.preemptions:
            parts.append(f"preempted {now.preemptions} times")
    return ", ".join(parts)


def _finished(request: web.Request, operation: str, status: int) -> FinishedRequest:
    seconds = asyncio.get_running_loop().time() - request.get(BEGUN, 0.0)
    caller, meter = request.get(CALLER), request.get(METER)
    found = meter.figures() if meter is not None else None
    own = parse_traceparent(request[TRACE]) if TRACE in request else b""
    return FinishedRequest(
        operation=operation,
        model=request.get(MODEL, ""),
        id=request.get(CALL_ID, ""),
        tenant=caller.tenant if caller is not None else "",
        trace=own,
        parent=parse_traceparent(request.headers["traceparent"]) if own else b"",
        began=time.time() - seconds,
        seconds=seconds,
        status=status,
        error=request.get(FAULT, "") or ("client_left: the client left" if status == LEFT else ""),
        asked=request.get(ASKED) or {},
        reasons=found.reasons if found is not None else (),
        prompt_tokens=found.prompt if found is not None else None,
        tokens=found.tokens if found is not None else None,
        queued=found.queued if found is not None else None,
        first_token=found.first_token if found is not None else None,
    )
