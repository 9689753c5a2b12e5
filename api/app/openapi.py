"""The reference of the API (OpenAPI 3.1), made from the endpoints' own fields and types. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ..answers import ErrorAnswer
from ..openai.field_types import Schema, object_schema
from .json_schema import Schemas
from .routes import Endpoint

_REASONS = {
    200: "Success.",
    202: "Accepted; the work continues after the answer.",
    400: "A field is missing, invalid or not supported, or the prompt does not fit.",
    401: "The API key is missing or not valid.",
    403: "The API key may not use this.",
    404: "No such model, request, file, batch or path.",
    408: "The body arrived too slowly.",
    409: "Another request cancelled it, the name is in use, or the state does not allow it.",
    413: "The body or the file exceeds the limit.",
    429: "The tenant has reached a limit; Retry-After says how long to wait.",
    500: "The request failed and would fail again.",
    503: "The server cannot answer now; Retry-After says when to try again.",
    507: "The disk is full.",
}
_PARAMETER = re.compile(r"\{(\w+)(?::[^}]*)?\}")


def document(endpoints: Sequence[Endpoint], version: str) -> dict[str, Any]:
    """Return the contents of ``/openapi.json``."""
    schemas, paths = Schemas(), dict[str, dict[str, Any]]()
    for endpoint in endpoints:
        path = paths.setdefault(_PARAMETER.sub(r"{\1}", endpoint.path), {})
        path[endpoint.method.lower()] = _operation(endpoint, schemas)
        if endpoint.method == "GET":
            path["head"] = _head(path["get"])
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Blockwright",
            "version": version,
            "description": "Many language models from shared blocks, behind the API that clients of OpenAI and vLLM speak.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas.named,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(endpoint: Endpoint, schemas: Schemas) -> dict[str, Any]:
    made: dict[str, Any] = {
        "operationId": _name(endpoint),
        "summary": endpoint.text,
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for name in _PARAMETER.findall(endpoint.path)
        ]
        + [
            {"name": one.name, "in": "query", "required": False, "description": one.text, "schema": one.kind.schema()}
            for one in endpoint.query
        ],
        "responses": _responses(endpoint, schemas),
        "security": [] if endpoint.public else [{"key": []}],
    }
    if endpoint.fields:
        name = _name(endpoint).title().replace("_", "") + "Body"
        schemas.named[name] = object_schema(endpoint.fields)
        content = {endpoint.takes: {"schema": {"$ref": f"#/components/schemas/{name}"}}}
        made["requestBody"] = {"required": True, "content": content}
    return made


def _responses(endpoint: Endpoint, schemas: Schemas) -> dict[str, Any]:
    schema: Schema = schemas.of(endpoint.answer) if endpoint.answer is not None else {"type": "string"}
    content = {endpoint.media: {"schema": schema}}
    if endpoint.chunk is not None:
        events = {"type": "string", "description": "data: lines, each with a chunk; the last is [DONE]."}
        content["text/event-stream"] = {"schema": events, "x-event-schema": schemas.of(endpoint.chunk)}
    made: dict[str, Any] = {}
    for status in (endpoint.success, *endpoint.also):
        made[str(status)] = {"description": _REASONS[status], "content": content}
    error = {"application/json": {"schema": schemas.of(ErrorAnswer)}}
    for status in sorted({*endpoint.errors, *(() if endpoint.public else (401,))}):
        made[str(status)] = {"description": _REASONS[status], "content": error}
    return made


def _head(operation: dict[str, Any]) -> dict[str, Any]:
    responses = {status: {"description": answer["description"]} for status, answer in operation["responses"].items()}
    return {**operation, "operationId": operation["operationId"] + "_head", "responses": responses}


def _name(endpoint: Endpoint) -> str:
    words = re.findall(r"[a-z0-9]+", _PARAMETER.sub(r"\1", endpoint.path))
    return "_".join([endpoint.method.lower(), *words])
