"""The common part of grammars of arguments that are not JSON: names of an object, references, and texts with their end.

They follow the schema exactly, or refuse it by name. What is JSON also in such a format (numbers, and a value between tags
that cannot be a string) is left to the library, which knows schemas of JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from ...constraints.patterns import names_besides
from .call_forms import TurnError
from .lark import ANY, Lark, literal
from .schema_types import target_of, types_of

DEFINITIONS = ("$defs", "definitions")
NOTES = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$schema"}
)  # fmt: skip
_OF_OBJECT = frozenset({"type", "properties", "required", "additionalProperties", "patternProperties", *DEFINITIONS})
_KEYWORDS: Mapping[str, Set[str]] = {
    "string": {"minLength", "maxLength", "pattern", "format"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "object": {"properties", "required", "additionalProperties", "patternProperties", "minProperties", "maxProperties"},
}
ANY_NAME = "[A-Za-z_][A-Za-z0-9_]{0,63}"  # of an argument that the schema does not name
DEEPEST = 100  # schemas inside of each other


def refused(keyword: str, path: str, why: str = "") -> TurnError:
    """Return the error of a schema that the format cannot hold."""
    return TurnError(f"writes arguments in a format that cannot hold {keyword} at {path or '/'} exactly{why}; leave it out")


class Members:
    """The names of an object with their schemas, in their order. ``others``: the schema of further ones, or False."""

    def __init__(self, schema: Mapping[str, Any], path: str) -> None:
        if unknown := sorted(schema.keys() - _OF_OBJECT - NOTES - keywords_besides("object")):
            raise refused(f"the keyword {unknown[0]}", path)
        self.named: dict[str, Any] = dict(schema.get("properties", {}))
        self.required = set(schema.get("required", ()))
        self.others: Any = schema.get("additionalProperties", True)
        patterns = schema.get("patternProperties", {})
        if patterns:  # the check of schemas has written additionalProperties in this way
            if len(patterns) > 1 or self.others is not False:
                raise refused("the keyword patternProperties", path)
            pattern = next(iter(patterns))
            self.others = patterns[pattern]
            if pattern not in (names_besides(self.named), names_besides({})):
                raise refused("the keyword patternProperties", path)
        for name in sorted(self.required - self.named.keys()):
            if self.others is False:
                raise refused(f"the required name {name[:60]!r}", path, ", as it is not in properties")
            self.named[name] = self.others


def keywords_besides(kind: str) -> frozenset[str]:
    """Return keywords about values of other types, which do not matter for this one."""
    return frozenset(word for name, words in _KEYWORDS.items() if name != kind for word in words)


class ArgumentGrammar:
    """The rules of the arguments of one tool. ``prefix``: begins the names of its rules."""

    def __init__(self, lark: Lark, prefix: str, schema: Mapping[str, Any]) -> None:
        self._lark = lark
        self._prefix, self._root = prefix, schema
        self._count = 0

    def _members(self) -> Members:
        """Return the names of the arguments. Raise TurnError."""
        root = self._root
        for _ in range(DEEPEST):
            if "$ref" not in root:
                break
            root = self._resolved(root, "")
        if "object" not in types_of(root, self._root):
            raise refused("a schema without type object", "")
        return Members(root, "")

    def _rule(self, expression: str, *, terminal: bool = False, lazy: bool = False) -> str:
        """Add a rule; return its name. ``lazy``: it ends as soon as it can."""
        self._count += 1
        name = f"{self._prefix}_{self._count}"
        name = name.upper() if terminal else name
        self._lark.add(f"{name}[lazy]" if lazy else name, expression)
        return name

    def _json(self, schema: Mapping[str, Any]) -> str:
        return self._rule(self._lark.json(schema))

    def _resolved(self, schema: Mapping[str, Any], path: str) -> Mapping[str, Any]:
        """Return the schema that a reference points at."""
        beside = sorted(schema.keys() - {"$ref", *NOTES, *(DEFINITIONS if not path else ())})
        target = target_of(schema["$ref"], self._root)
        if beside or not isinstance(target, Mapping):
            raise refused("the keyword $ref", path, f" beside {beside[0]}" if beside else "")
        return target

    def _text(self, schema: Mapping[str, Any], end: str, path: str, *, line: bool = False) -> str:
        """Return the expression of a string with the text that ends it. ``line``: a new line stands before that."""
        least, most = schema.get("minLength", 0), schema.get("maxLength")
        if isinstance(most, int) and most < least:
            raise refused("the keyword minLength", path)
        times = "*" if not least and most is None else f"{{{least},{'' if most is None else most}}}"
        return self._up_to(f"(?s:.{times})" + (r"\n" if line else ""), end)

    def _up_to(self, text: str, end: str) -> str:
        """Return the expression of a text that matches, with what ends it, which is not in it."""
        if self._lark.special_in(end):
            if self._lark.begins_plain(end):
                raise TurnError(f"has the delimiter {end[:60]!r} with a special token inside, which no grammar can have")
            return f"{self._rule(f'/{text}/', terminal=True)} {self._lark.exactly(end)}"
        name = self._rule(f"/{text}{literal(end)}/ & ~/{ANY}{literal(end)}(?s:.+)/", terminal=True)
        return self._rule(name, lazy=True)
