"""The common part of grammars of arguments that are not JSON: names of an object, references, and texts with their end.

They follow the schema exactly, or refuse it by name. What is JSON also in such a format (numbers, and a value between tags
that cannot be a string) is left to the library, which knows schemas of JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

from ...constraints.patterns import names_besides
from .call_forms import TurnError
from .lark_rules import ANY, LarkRules, literal
from .schema_types import target_of, type_of, types_of

DEFINITIONS = ("$defs", "definitions")
NOTES = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$schema"}
)  # fmt: skip
_OF_OBJECT = frozenset({"type", "properties", "required", "additionalProperties", "patternProperties", *DEFINITIONS})
KEYWORDS: Mapping[str, Set[str]] = {
    "string": {"minLength", "maxLength", "pattern", "format"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "object": {"properties", "required", "additionalProperties", "patternProperties", "minProperties", "maxProperties"},
}
_ANY_NAME = "[A-Za-z_][A-Za-z0-9_]{0,63}"  # of an argument that the schema does not name
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
    return frozenset(word for name, words in KEYWORDS.items() if name != kind for word in words)


class ArgumentGrammar:
    """The rules of the arguments of one tool. ``prefix``: begins the names of its rules."""

    def __init__(self, lark: LarkRules, prefix: str, schema: Mapping[str, Any]) -> None:
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

    def _times(self, schema: Mapping[str, Any], path: str) -> str:
        """Return how many characters a string may have, as in an expression."""
        least, most = schema.get("minLength", 0), schema.get("maxLength")
        if isinstance(most, int) and most < least:
            raise refused("the keyword minLength", path)
        return "*" if not least and most is None else f"{{{least},{'' if most is None else most}}}"

    def _other_name(self, names: Iterable[str]) -> str:
        """Return the rule of any name of an argument that is none of these."""
        without = "|".join(map(literal, names))
        return self._rule(f"/{_ANY_NAME}/" + (f" & ~/({without})/" if without else ""), terminal=True)

    def _listed_values(self, schema: Mapping[str, Any], path: str) -> list[Any]:
        """Return the values of enum or const that have the schema's types."""
        beside = sorted(schema.keys() - {"enum", "const", "type", *NOTES})
        if beside or ("enum" in schema and "const" in schema):
            raise refused(f"the keyword {beside[0] if beside else 'const'} beside enum", path)
        types = types_of(schema, self._root)
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        return [value for value in values if type_of(value) in types]

    def _up_to(self, text: str, end: str, besides: str = "") -> str:
        """Return the expression of a text that matches, with what ends it, which is not in it.

        ``besides``: an expression of texts that it is not.
        """
        if self._lark.special_in(end):
            self._lark.check_delimiter(end)
            without = f" & ~/{besides}/" if besides else ""
            return f"{self._rule(f'/{text}/{without}', terminal=True)} {self._lark.exactly(end)}"
        without = f" & ~/{besides}{literal(end)}/" if besides else ""
        name = self._rule(f"/{text}{literal(end)}/ & ~/{ANY}{literal(end)}(?s:.+)/{without}", terminal=True)
        return self._rule(name, lazy=True)
