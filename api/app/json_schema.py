"""JSON Schema of types: a ``TypedDict`` becomes a named schema, to which others refer.

Pure. Only the annotations that ``answers.py`` uses are known; others are refused.
"""

from __future__ import annotations

import inspect
import types
from typing import Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from ..openai.field_types import Schema

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
