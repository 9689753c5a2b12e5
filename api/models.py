"""``GET /v1/models`` and ``GET /v1/models/{id}``."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from blockwright.actors.gateway.port import ModelInfo
from blockwright.api.front import CALLER, FRONT


def _model(info: ModelInfo) -> dict[str, Any]:
    return {
        "id": info.id,
        "object": "model",
        "created": info.created,
        "owned_by": "blockwright",
        "root": info.parent or info.id,
        "parent": info.parent,
        "max_model_len": info.max_length,
        "ready": info.ready,
    }


async def list_models(request: web.Request) -> web.Response:
    """Those that the key may use."""
    front, caller = request.app[FRONT], request[CALLER]
    models = [_model(info) for info in front.port.models() if front.door.may_use(caller, info.id)]
    return web.json_response({"object": "list", "data": models})


async def one_model(request: web.Request) -> web.Response:
    """A 404 for an id that is not served, a 403 for one that the key may not use."""
    return web.json_response(_model(request.app[FRONT].model(request, request.match_info["id"])))
