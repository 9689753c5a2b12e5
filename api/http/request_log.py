"""What the log says of an HTTP request once it is over: one line at level info, at debug for what is asked again and again.

Counts the answer, too. Never refuses and never fails a request.
"""

from __future__ import annotations

import asyncio
import logging

from aiohttp import web

from blockwright.api.http.context import BEGUN, CALL_ID, CALLER, FAULT, FRONT, METER, MODEL, PROGRESS
from blockwright.api.http.headers import log_names

LEFT = 499  # status of who went before the answer, as nginx has it
_POLLED = ("/health", "/ping", "/load", "/metrics", "/admin/cluster", "/admin/forecasts", "/page/")
log = logging.getLogger(__name__)


def note_call(request: web.Request, status: int) -> None:
    """The request is over. ``status``: of its answer, or ``LEFT``."""
    resource = request.match_info.route.resource
    path = "none" if resource is None else resource.canonical
    request.app[FRONT].metrics.answered(path, request.method, status)
    polled = path == "/" or path.startswith(_POLLED)
    level = logging.DEBUG if polled and status < 500 else logging.INFO
    if log.isEnabledFor(level):
        names = log_names(request)
        names.pop("request", None)  # the line begins with it
        told = [_line(request, path, status), *(f"{name} {value!a}" for name, value in names.items())]
        log.log(level, "%s", ", ".join(told), extra=log_names(request))


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
        parts += [*meter.told(), *([f"{now.cached} cached"] if (now := progress()).cached else [])]
        if now.preemptions:
            parts.append(f"preempted {now.preemptions} times")
    return ", ".join(parts)
