"""The field types of constraints: OpenAI's ``response_format``, vLLM's ``structured_outputs`` and ``guided_*``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...policies.plan.grammar import JSON
from ..checks import shown
from ..errors import bad_request
from . import constraint
from .constraint import Constraint

Schema = dict[str, Any]
_ANY_OBJECT = '{"type":"object"}'
_OF_FORMAT = {"text": {"type"}, "json_object": {"type"}, "json_schema": {"type", "json_schema"}}
_OF_SCHEMA = {"name", "description", "schema", "strict"}


def schema_constraint(value: object, name: str) -> Constraint:
    """Return the constraint of a schema; raise a 400. See ``schema.py``, without which a gateway starts sooner."""
    from . import schema

    return schema.schema_constraint(value, name)


def _grammar_constraint(value: object, name: str) -> Constraint:
    from . import schema

    return schema.grammar_constraint(value, name)


_READ: dict[str, Callable[[object, str], Constraint]] = {
    "json": schema_constraint,
    "regex": constraint.regex,
    "choice": constraint.choice,
    "grammar": _grammar_constraint,
}
_SHAPES: dict[str, Schema] = {
    "json": {"anyOf": [{"type": "object"}, {"type": "boolean"}, {"type": "string"}]},
    "regex": {"type": "string", "minLength": 1},
    "choice": {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}},
    "grammar": {"type": "string", "minLength": 1},
}


class ResponseFormat:
    """OpenAI's form of an answer: text, any JSON object, or JSON by a schema.

    ``flat``: as in responses, where the schema and its name stand beside the type.
    """

    def __init__(self, *, flat: bool = False) -> None:
        self.flat = flat

    def read(self, value: Any, name: str) -> tuple[Constraint, ...]:
        kind = value.get("type") if isinstance(value, dict) else None
        if not isinstance(kind, str) or kind not in _OF_FORMAT:
            raise bad_request(f"{name} is {shown(value)}; give an object of type text, json_object or json_schema", name)
        of_schema = self.flat and kind == "json_schema"
        _only(value, {"type", *_OF_SCHEMA} if of_schema else _OF_FORMAT[kind], name)
        if kind == "text":
            return ()
        if kind == "json_object":
            return (Constraint(JSON, _ANY_OBJECT, name),)
        inner, at = (value, name) if self.flat else (value.get("json_schema"), f"{name}.json_schema")
        if not isinstance(inner, dict) or inner.get("schema") is None:
            raise bad_request(f"{at}.schema is missing; give a JSON schema, or type json_object", name)
        if not self.flat:
            _only(inner, _OF_SCHEMA, at)
        for key in ("name", "description"):
            if not isinstance(inner.get(key), str | None):
                raise bad_request(f"{at}.{key} is {shown(inner[key])}; give a string", name, "invalid_type")
        if not isinstance(inner.get("strict", None), bool | None):
            raise bad_request(f"{at}.strict is {shown(inner['strict'])}; give true or false", name)
        return (schema_constraint(inner["schema"], f"{at}.schema"),)

    def schema(self) -> Schema:
        inner = {"type": "object", "properties": {"schema": {"type": "object"}}, "required": ["schema"]}
        own: Schema = {"schema": {"type": "object"}} if self.flat else {"json_schema": inner}
        properties = {"type": {"enum": [*_OF_FORMAT]}, **own}
        return {"type": "object", "properties": properties, "required": ["type"]}


class StructuredOutputs:
    """vLLM's form: an object with one of json, regex, choice and grammar."""

    def read(self, value: Any, name: str) -> tuple[Constraint, ...]:
        if not isinstance(value, dict):
            raise bad_request(f"{name} is {shown(value)}; give an object with one of {', '.join(_READ)}", name)
        given = {key: inner for key, inner in value.items() if inner is not None and (key in _READ or inner is not False)}
        if given == {"json_object": True}:
            return (Constraint(JSON, _ANY_OBJECT, name),)
        _only(given, {*_READ}, name)
        if len(given) != 1:
            has = f"has {len(given)} constraints ({', '.join(sorted(given))})" if given else "has no constraint"
            raise bad_request(f"{name} {has}; give one of {', '.join(_READ)}, or leave {name} out", name)
        ((key, inner),) = given.items()
        return (_READ[key](inner, f"{name}.{key}"),)

    def schema(self) -> Schema:
        return {"type": "object", "properties": _SHAPES}


class Guided:
    """An older form of vLLM's: one field for each kind. ``kind``: as in ``StructuredOutputs``."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def read(self, value: Any, name: str) -> tuple[Constraint, ...]:
        return (_READ[self.kind](value, name),)

    def schema(self) -> Schema:
        return _SHAPES[self.kind]


def _only(value: dict[str, Any], known: set[str], name: str) -> None:
    """Raise a 400 for a field that would be ignored although it shapes the answer."""
    if unknown := sorted(key for key in value.keys() - known if value[key] is not None):
        message = f"{name}.{unknown[0][:64]} is not supported by this server; its fields are {', '.join(sorted(known))}"
        raise bad_request(message, f"{name}.{unknown[0][:64]}", "unsupported_parameter")
