"""Endpoints for operators: the cluster, the history of one request, forecasts, metrics."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from ...actors.gateway.port import GatewayPort, RequestView
from ...actors.load_history import memory_of
from ..checks import shown
from ..errors import ApiError, bad_request
from .context import CALLER, FRONT, PEER
from .tenants import key_tenants, tenants_view

log = logging.getLogger(__name__)
MOST_LISTED = 1000  # most requests in one answer
_WHOSE = "only the key that sent it may see it, or an admin key"
_CLAIMS_SECONDS = 1.0  # after this long, a request is shown without them
_CLUSTER_SECONDS = 2.0  # after this long, a scrape answers without the workers' numbers


async def cluster(request: web.Request) -> web.Response:
    front = request.app[FRONT]
    view = await _cluster(request)
    front.history.memory = memory_of(view)
    return web.json_response(view)


async def _cluster(request: web.Request) -> dict[str, Any]:
    """Return the controller's view of the cluster with the tenants' counts, added up over all processes that answer."""
    front, peers = request.app[FRONT], request.app[PEER]
    view = await front.port.cluster()
    uses = [front.tenant_uses(), *(await peers[0].tenant_uses_elsewhere() if peers else [])]
    standings = await front.port.standings(key_tenants(front.settings.network))
    return view | {"tenants": tenants_view(front.settings, view, uses, standings)}


async def actors(request: web.Request) -> web.Response:
    return web.json_response({"nodes": await request.app[FRONT].port.actors()})


async def one_request(request: web.Request) -> web.Response:
    """Show one request to the key that sent it and to admin keys. The id is ours, or the one that the client chose."""
    id, viewer = request.match_info["id"], request[CALLER].viewer
    front, peers = request.app[FRONT], request.app[PEER]
    view = await peers[0].describe_anywhere(id, viewer) if peers else front.describe(id, viewer)
    if view is None:
        whose = "" if viewer.everything or not front.keys.required else f"; {_WHOSE}"
        raise ApiError(404, f"there is no request {shown(id)}; ids are kept for a while after the end{whose}", param="id")
    body = dataclasses.asdict(view)
    del body["key"], body["arrival"]
    return web.json_response(body | {"claims": await _claims(front.port, view)})


async def _claims(port: GatewayPort, view: RequestView) -> list[dict[str, Any]]:
    """Return who claims the components of a request's route on its workers; nothing where the controller does not answer."""
    models = dict.fromkeys([view.model, *([view.tier.tier] if view.tier is not None else [])])
    if view.state not in ("waiting", "running") or not view.route:
        return []
    try:
        async with asyncio.timeout(_CLAIMS_SECONDS):
            return await port.claims([hop["worker"] for hop in view.route], [*models])
    except Exception as error:  # the rest of the history is useful whatever is wrong with the cluster
        log.warning("request %s without the claims on its route: %s", view.id, error)
        return []


async def list_requests(request: web.Request) -> web.Response:
    """List the latest requests of the key, or of all keys for an admin key: running and waiting ones first, then ended."""
    viewer, text = request[CALLER].viewer, request.query.get("limit", "20")
    if not text.isdecimal() or not 1 <= int(text) <= MOST_LISTED:
        raise bad_request(f"limit is {shown(text)}; give a number from 1 to {MOST_LISTED}", "limit")
    peers, limit = request.app[PEER], int(text)
    found = await peers[0].requests_anywhere(viewer, limit) if peers else request.app[FRONT].requests(viewer, limit)
    return web.json_response({"object": "list", "data": [dataclasses.asdict(line) for line in found]})


async def cancel(request: web.Request) -> web.Response:
    """Cancel a running request, for the key that sent it and for admin keys. The request itself is answered with a 409."""
    id, viewer = request.match_info["id"], request[CALLER].viewer
    front, peers = request.app[FRONT], request.app[PEER]
    if not (await peers[0].cancel_anywhere(id, viewer) if peers else front.cancel(id, viewer)):
        whose = "" if viewer.everything or not front.keys.required else f"; {_WHOSE}"
        raise ApiError(404, f"there is no request {shown(id)} that runs{whose}", param="id")
    return web.json_response({"id": id, "cancelled": True})


async def forecasts(request: web.Request) -> web.Response:
    """Return the forecasts of all processes that answer."""
    peers = request.app[PEER]
    found = await peers[0].forecasts_anywhere() if peers else request.app[FRONT].forecasts()
    return web.json_response({"data": [dataclasses.asdict(point) for point in found]})


async def metrics(request: web.Request) -> web.Response:
    front = request.app[FRONT]
    numbers = {}
    try:
        async with asyncio.timeout(_CLUSTER_SECONDS):
            numbers = await _cluster(request)
    except Exception as error:  # the request counters are useful whatever is wrong with the cluster
        log.warning("metrics without the cluster's numbers: %s", error)
    peers = request.app[PEER]
    others = await peers[0].counters_elsewhere() if peers else []
    return web.Response(body=front.metrics.render(numbers, others), headers={"Content-Type": CONTENT_TYPE_LATEST})
