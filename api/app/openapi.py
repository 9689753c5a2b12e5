"""The reference of the API (OpenAPI 3.1), made from the endpoints' own fields and types. Pure.

A ``TypedDict`` becomes a named schema, to which others refer. Only annotations that ``answers.py`` uses are known.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Sequence
from typing import Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from ..openai.field_types import Schema, object_schema
from .endpoint import Endpoint

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
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
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
        "security": [] if endpoint.public else [{"key": []}, {"x-api-key": []}],
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
        events = {"type": "string", "description": endpoint.stream}
        content["text/event-stream"] = {"schema": events, "x-event-schema": schemas.of(endpoint.chunk)}
    made: dict[str, Any] = {}
    for status in (endpoint.success, *endpoint.also):
        made[str(status)] = {"description": _REASONS[status], "content": content}
    error = {"application/json": {"schema": schemas.of(endpoint.error)}}
    for status in sorted({*endpoint.errors, *(() if endpoint.public else (401,))}):
        made[str(status)] = {"description": _REASONS[status], "content": error}
    return made


def _head(operation: dict[str, Any]) -> dict[str, Any]:
    responses = {status: {"description": answer["description"]} for status, answer in operation["responses"].items()}
    return {**operation, "operationId": operation["operationId"] + "_head", "responses": responses}


def _name(endpoint: Endpoint) -> str:
    words = re.findall(r"[a-z0-9]+", _PARAMETER.sub(r"\1", endpoint.path))
    return "_".join([endpoint.method.lower(), *words])


_PLAIN: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


class Schemas:
    """A collection of the named schemas."""

    def __init__(self) -> None:
        self.named: dict[str, Schema] = {}

    def of(self, annotation: Any) -> Schema:
        """Return the schema of an annotation; raise TypeError if it has none here."""
        if annotation is Any:
            return {}
        if annotation in _PLAIN:
            return {"type": _PLAIN[annotation]}
        if is_typeddict(annotation):
            return self._reference(annotation)
        origin, args = get_origin(annotation), get_args(annotation)
        if origin in (Union, types.UnionType):
            return {"anyOf": [self.of(one) for one in args]}
        if origin is Literal:
            return {"enum": list(args)}
        if origin is list:
            return {"type": "array", "items": self.of(args[0])}
        if origin is dict and args[0] is str:
            return {"type": "object", "additionalProperties": self.of(args[1])}
        raise TypeError(f"{annotation} has no JSON Schema here")

    def _reference(self, kind: Any) -> Schema:
        name = kind.__name__
        if name not in self.named:
            self.named[name] = {}  # so that a type may refer to itself
            hints = get_type_hints(kind, include_extras=True)
            optional = {key for key, hint in hints.items() if get_origin(hint) is NotRequired}
            properties = {key: self.of(get_args(hint)[0] if key in optional else hint) for key, hint in hints.items()}
            required = [key for key in hints if key not in optional]
            made: Schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
            if kind.__doc__:
                made["description"] = inspect.cleandoc(kind.__doc__)
            self.named[name] = made
        return {"$ref": f"#/components/schemas/{name}"}
