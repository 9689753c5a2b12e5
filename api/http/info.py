"""Endpoints that describe the server: version and numerics, load, the API reference and a page that shows it."""

from __future__ import annotations

import asyncio
from importlib.resources import files
from typing import Any

from aiohttp import web

from ..answers import LoadAnswer, VersionAnswer
from ..version import VERSION
from .context import FRONT

INVARIANT = "native-"  # prefix of our kernels' numerics, which sum in one fixed order
VARIANT = (
    "a worker computes with {}, whose order of sums depends on the batch; install gcc and install the package again, or "
    "serve with backend native"
)
UNPROVED = "a worker computes with {}, whose bits have not been proved to be free of the batch on this card"
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

    With our kernels for a CPU they do not.
    """
    workers: list[dict[str, Any]] = []
    try:
        async with asyncio.timeout(_CLUSTER_SECONDS):
            workers = (await request.app[FRONT].port.cluster()).get("workers", [])
    except Exception:  # the version is known whatever is wrong with the cluster
        workers = []
    numerics = {worker["numerics"] for worker in workers if worker.get("numerics")}
    others = sorted(name for name in numerics if not name.startswith(INVARIANT))
    answer: VersionAnswer = {
        "version": VERSION,
        "devices": sorted({worker["device"] for worker in workers if worker.get("device")}),
        "numerics": sorted(numerics),
        "batch_invariant": not others if numerics else None,
        "batch_variant_because": _variant(others[0]) if others else None,
    }
    return web.json_response(answer)


def _variant(numerics: str) -> str:
    return (UNPROVED if numerics.startswith("cuda-") else VARIANT).format(numerics)


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
