"""Endpoints that move running work: one request to another worker, or everything off a worker (drain)."""

from __future__ import annotations

from functools import partial
from typing import Any

from aiohttp import web

from ...actors.gateway.port import accepted
from ..answers import DrainedAnswer, MoveAnswer
from ..checks import shown
from ..errors import ApiError, bad_request
from ..http.context import CALLER, FRONT, PEER
from .bodies import read_fields
from .field_types import Field, Flag, Text
from .request_body import read_body

MOVE_FIELDS = (
    Field("worker", Text(200), "The worker to move to. Without worker and route: the best other route."),
    Field("route", Text(4096), "The id of the route to move to, as in /admin/cluster."),
)
DRAIN_FIELDS = (Field("drain", Flag(), "true: drain the worker; false: use it again.", default=True),)


async def move(request: web.Request) -> web.Response:
    """Move a running request to another worker; its answer does not show it."""
    values = await _order(request, MOVE_FIELDS)
    worker, route = values.get("worker") or "", values.get("route") or ""
    if worker and route:
        raise bad_request("worker and route are two ways to say where to; give one of them", "route")
    id, viewer = request.match_info["id"], request[CALLER].viewer
    peers = request.app[PEER]
    if peers:
        found = await peers[0].move_anywhere(id, viewer, worker, route)
    else:
        found = request.app[FRONT].move(id, viewer, worker, route)
    accepted(found.refused)
    if not found.moves:
        raise ApiError(404, f"there is no request {shown(id)} that runs", param="id")
    answer: MoveAnswer = {
        "id": id,
        "moves": [
            {"request": m.request, "from": m.source, "to": m.target, "route": m.route, "pages": m.pages, "bytes": m.nbytes}
            for m in found.moves
        ],
    }
    return web.json_response(answer, status=202)


async def drain(request: web.Request) -> web.Response:
    """Drain a worker: its requests continue elsewhere, and it gets no new ones."""
    return await _drain(request, (await _order(request, DRAIN_FIELDS)).get("drain", True))


async def resume(request: web.Request) -> web.Response:
    """Make a drained worker available again."""
    return await _drain(request, False)


async def _order(request: web.Request, fields: tuple[Field, ...]) -> dict[str, Any]:
    """Return the fields of an order. Unknown fields are refused whatever ``unknown_fields`` says.

    A misspelt field would otherwise do something else than was meant.
    """
    check = partial(read_fields, fields=fields, unknown="reject")
    return (await read_body(request, check))[0] if request.can_read_body else {}


async def _drain(request: web.Request, wanted: bool) -> web.Response:
    worker = request.match_info["id"]
    found = await request.app[FRONT].port.drain_worker(worker, wanted)
    queue = {"running": found.running, "waiting": found.waiting}
    answer: DrainedAnswer = {"worker": worker, "draining": wanted, "queue": queue}
    return web.json_response(answer, status=202 if wanted else 200)
