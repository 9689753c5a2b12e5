"""Endpoints that describe the server: version and numerics, load, the API reference and a page that shows it."""

from __future__ import annotations

import asyncio
from importlib.resources import files
from typing import Any

from aiohttp import web

from ..answers import LoadAnswer, VersionAnswer
from ..version import VERSION
from .context import FRONT

FAST = "-fast-"  # in the numerics of products by a library
CHOSEN = "a worker computes with {}, whose order of sums depends on the batch, because bits is fast"
UNPROVED = "a worker computes with {}, and has not proved yet that its bits are free of the batch on this card"
DIFFERS = "a worker computes with {}, and its proof on this card did not hold: {}"
CARD = "cuda-"  # prefix of the numerics of cards, and of their twins
REFERENCE: web.AppKey[bytes] = web.AppKey("reference", bytes)  # body of /openapi.json
_PAGE_HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
    ),
}
_CLUSTER_SECONDS = 2.0


async def version(request: web.Request) -> web.Response:
    """Return the version, and the workers' devices and numerics, which tell if results depend on the batch.

    On a CPU they do not. On a card the worker's own proof says so.
    """
    workers: list[dict[str, Any]] = []
    try:
        async with asyncio.timeout(_CLUSTER_SECONDS):
            workers = (await request.app[FRONT].port.cluster()).get("workers", [])
    except Exception:  # the version is known whatever is wrong with the cluster
        workers = []
    numerics = {worker["numerics"] for worker in workers if worker.get("numerics")}
    reasons = sorted({why for worker in workers if worker.get("numerics") and (why := _variant(worker))})
    answer: VersionAnswer = {
        "version": VERSION,
        "devices": sorted({worker["device"] for worker in workers if worker.get("device")}),
        "numerics": sorted(numerics),
        "batch_invariant": not reasons if numerics else None,
        "batch_variant_because": reasons[0] if reasons else None,
    }
    return web.json_response(answer)


def _variant(worker: dict[str, Any]) -> str:
    """Return why a worker's results may depend on the batch; "" if they do not."""
    numerics, proof = worker["numerics"], worker.get("proof") or {}
    if not numerics.startswith(CARD) or proof.get("invariant"):
        return ""
    if FAST in numerics:
        return CHOSEN.format(numerics)
    return DIFFERS.format(numerics, proof["why"]) if proof.get("why") else UNPROVED.format(numerics)


async def load(request: web.Request) -> web.Response:
    answer: LoadAnswer = {"server_load": request.app[FRONT].metrics.active}
    return web.json_response(answer)


async def reference(request: web.Request) -> web.Response:
    return web.Response(body=request.app[REFERENCE], content_type="application/json")


async def dashboard(request: web.Request) -> web.Response:
    """Return the dashboard for Grafana (Dashboards, New, Import)."""
    body = files("blockwright.api.http").joinpath("grafana.json").read_bytes()
    return web.Response(body=body, content_type="application/json")


async def page(request: web.Request) -> web.Response:
    """Return the static reference page. It fetches /openapi.json itself, with the key that its reader enters."""
    return web.Response(body=files("blockwright.api.http").joinpath("reference.html").read_bytes(), headers=_PAGE_HEADERS)
