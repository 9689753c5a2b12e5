"""``GET /v1/models`` and ``GET /v1/models/{id}``."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from blockwright.actors.gateway.port import ModelInfo
from blockwright.api.front import FRONT


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
    models = request.app[FRONT].port.models()
    return web.json_response({"object": "list", "data": [_model(info) for info in models]})


async def one_model(request: web.Request) -> web.Response:
    """A 404 for an id that is not served."""
    return web.json_response(_model(request.app[FRONT].catalog.info(request.match_info["id"])))
