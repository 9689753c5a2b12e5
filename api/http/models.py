"""``GET /v1/models`` and ``GET /v1/models/{id}``."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from ...actors.gateway.port import ModelInfo
from .context import CALLER, FRONT


def _shown(request: web.Request) -> dict[str, dict[str, Any]]:
    """The models that the key may use, by id. Of the others not even the names are told, as ``parent`` would."""
    front, caller = request.app[FRONT], request[CALLER]
    usable = {info.id: info for info in front.port.models() if front.access.may_use(caller, info.id)}
    default = front.port.default_model()
    return {info.id: _model(info, usable, info.id == default) for info in usable.values()}


def _model(info: ModelInfo, usable: dict[str, ModelInfo], default: bool) -> dict[str, Any]:
    root = info
    seen = {info.id}
    while root.parent in usable and root.parent not in seen:  # the base of an adapter may have come later than it
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
    """A 503 while nothing is loaded: a client that starts early, or when the only gateway is started again, asks again. It
    would take an empty list for the answer."""
    request.app[FRONT].catalog.models()
    return web.json_response({"object": "list", "data": list(_shown(request).values())})


async def one_model(request: web.Request) -> web.Response:
    """A 404 for an id that is not served, a 403 for one that the key may not use."""
    info = request.app[FRONT].model(request, request.match_info["id"])
    return web.json_response(_shown(request)[info.id])
