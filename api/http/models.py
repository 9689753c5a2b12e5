"""``GET /v1/models`` and ``GET /v1/models/{id}``."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from ...actors.gateway.port import ModelInfo
from .context import CALLER, FRONT


def _shown(request: web.Request) -> dict[str, dict[str, Any]]:
    """Return the models that the key may use, by id.

    Even the names of other models stay hidden; ``parent`` would reveal them.
    """
    front, caller = request.app[FRONT], request[CALLER]
    usable = {info.id: info for info in front.port.models() if front.access.may_use(caller, info.id)}
    default = front.port.default_model()
    return {info.id: _model(info, usable, info.id == default) for info in usable.values()}


def _model(info: ModelInfo, usable: dict[str, ModelInfo], default: bool) -> dict[str, Any]:
    root = info
    seen = {info.id}
    while root.parent in usable and root.parent not in seen:  # an adapter's base may be newer than the adapter
        seen.add(root.parent)
        root = usable[root.parent]
    return {
        "id": info.id,
        "object": "model",
        "created": info.created,
        "owned_by": "blockwright",
        "root": root.id,
        "parent": info.parent if info.parent in usable else None,
        "max_model_len": info.max_length,
        "ready": info.ready,
        "default": default,
    }


async def list_models(request: web.Request) -> web.Response:
    """List the served models. Answer 503 while none is loaded.

    A client that asks early, or while the only gateway restarts, then asks again. It would take an empty list for the
    answer.
    """
    request.app[FRONT].catalog.models()
    return web.json_response({"object": "list", "data": list(_shown(request).values())})


async def one_model(request: web.Request) -> web.Response:
    """Show one model; answer 404 for an id that is not served, 403 for one that the key may not use."""
    info = request.app[FRONT].model(request, request.match_info["id"])
    return web.json_response(_shown(request)[info.id])
