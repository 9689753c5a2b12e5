"""The grammar of arguments that are literals: Python's, and JSON with bare keys or other texts around strings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from .argument_grammar import DEEPEST, DEFINITIONS, NOTES, ArgumentGrammar, Members, keywords_besides, refused
from .call_forms import NamedForm, PythonForm
from .lark_rules import LarkRules, literal
from .schema_types import EVERY, types_of

_OF_NUMBER = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_CHARACTER = r'[^"\\\x{0}-\x{1F}\x{7F}]|\\["\\nrt]'  # of a string in quotes
MOST_ITEMS = 1000


class LiteralGrammar(ArgumentGrammar):
    """The rules of the arguments of one tool."""

    def __init__(self, lark: LarkRules, form: NamedForm | PythonForm, prefix: str, schema: Mapping[str, Any]) -> None:
        super().__init__(lark, prefix, schema)
        self._form = form
        self._python = isinstance(form, PythonForm)
        self._strings = form.strings if isinstance(form, NamedForm) else ()
        self._bare_keys = isinstance(form, NamedForm) and form.bare_keys
        self._depth = 0
        self._references: dict[str, str] = {}

    def made(self) -> str:
        """Return the expression of all arguments. Raise TurnError."""
        return self._object(self._members(), "", top=True)

    def _object(self, members: Members, path: str, *, top: bool = False) -> str:
        """Return the expression of an object. Its names stand in the order of the schema, as in JSON."""
        round_ = top and self._python
        pairs = [
            (
                self._pair(name, self._literal(schema, f"{path}/properties/{name[:60]}"), f"{path}/properties", bare=round_),
                name,
            )
            for name, schema in members.named.items()
        ]
        others = ""
        if members.others is not False:
            others = self._pair(
                None, self._literal(members.others, f"{path}/additionalProperties"), path, round_, members.named
            )
        # Two rules for what follows each pair: without and with a pair before it.
        first, later = (f'({others} ("," SPACE {others})*)?', f'("," SPACE {others})*') if others else ('""', '""')
        for pair, name in reversed(pairs):
            needed = name in members.required
            new_later = self._rule(f'"," SPACE {pair} {later}' if needed else f'("," SPACE {pair})? {later}')
            first = self._rule(f"{pair} {later}" if needed else f"{pair} {later} | {first}")
            later = new_later
        opens, closes = ("(", ")") if round_ else ("{", "}")
        return f'"{opens}" {first} "{closes}"'

    def _pair(self, name: str | None, value: str, path: str, bare: bool, besides: Iterable[str] = ()) -> str:
        """Return the expression of a name with its value. None: any name that is not among these."""
        plain = name is None or (name.isascii() and name.replace("_", "a").isalnum() and not name[0].isdigit())
        if not plain and bare:
            raise refused(f"the name {str(name)[:60]!r}", path, ", as it is no name of an argument")
        key = self._other_name(besides) if name is None else f"/{literal(name)}/"
        unquoted = bare or (self._bare_keys and plain)
        if not unquoted:
            key = self._string_of(name, path) if name is not None else f"{self._quote(0)} {key} {self._quote(1)}"
        return self._rule(f'{key} "=" {value}' if bare else f'{key} ":" {"SPACE" if self._python else ""} {value}')

    def _quote(self, place: int) -> str:
        return self._lark.exactly(self._strings[0][place]) if self._strings else r'"\""'

    def _literal(self, schema: Any, path: str) -> str:
        """Return the rule of a value. Raise TurnError."""
        if schema is True or schema == {}:
            return self._anything()
        if not isinstance(schema, Mapping):
            raise refused("false", path)
        self._depth += 1
        if self._depth > DEEPEST:
            raise refused(f"more than {DEEPEST} schemas inside of each other", path)
        made = self._one(schema, path)
        self._depth -= 1
        return made

    def _one(self, schema: Mapping[str, Any], path: str) -> str:
        if "$ref" in schema:
            target, reference = self._resolved(schema, path), schema["$ref"]
            if reference not in self._references:
                self._count += 1
                self._references[reference] = name = f"{self._prefix}_{self._count}"
                self._lark.add(name, self._literal(target, str(reference)[1:]))
            return self._references[reference]
        if "enum" in schema or "const" in schema:
            return self._listed(schema, path)
        for keyword in ("anyOf", "oneOf", "allOf"):
            if keyword in schema:
                return self._choice(schema, keyword, path)
        types = types_of(schema, self._root)
        known = {"type", *NOTES, *keywords_besides("")}
        if unknown := sorted(schema.keys() - known):
            raise refused(f"the keyword {unknown[0]}", path)
        made = [self._typed(kind, schema, path) for kind in sorted(types) if kind != "integer" or "number" not in types]
        if not made:
            raise refused("a schema without a type", path)
        return self._rule(" | ".join(made))

    def _choice(self, schema: Mapping[str, Any], keyword: str, path: str) -> str:
        beside = sorted(schema.keys() - {keyword, *NOTES})
        if beside:
            raise refused(f"the keyword {beside[0]} beside {keyword}", path)
        choices = schema[keyword]
        if keyword == "allOf" and len(choices) > 1:
            raise refused("the keyword allOf", path)
        types = [types_of(choice, self._root) for choice in choices]
        if keyword == "oneOf" and sum(map(len, types)) > len(frozenset().union(*types)):
            raise refused("the keyword oneOf", path, ", as its alternatives are not of different types")
        made = [self._literal(choice, f"{path}/{keyword}/{i}") for i, choice in enumerate(choices)]
        return self._rule(" | ".join(made))

    def _typed(self, kind: str, schema: Mapping[str, Any], path: str) -> str:
        if kind == "string":
            if unheld := sorted(schema.keys() & {"pattern", "format"}):
                raise refused(f"the keyword {unheld[0]}", path)
            return self._string(schema, path)
        if kind in ("number", "integer"):
            bounds = {key: schema[key] for key in _OF_NUMBER if key in schema}
            return self._json({"type": kind, **bounds})
        if kind == "boolean":
            return '("True" | "False")' if self._python else '("true" | "false")'
        if kind == "null":
            return '"None"' if self._python else '"null"'
        if kind == "array":
            return self._array(schema, path)
        return self._object(Members({key: value for key, value in schema.items() if key not in DEFINITIONS}, path), path)

    def _array(self, schema: Mapping[str, Any], path: str) -> str:
        if "prefixItems" in schema:
            raise refused("the keyword prefixItems", path)
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        items = schema.get("items", True)
        if least > MOST_ITEMS or (most is not None and most < least):
            raise refused("the keyword minItems", path)
        if (most or 0) > MOST_ITEMS:
            raise refused("the keyword maxItems", path, f", which is more than {MOST_ITEMS:,}")
        if most == 0 or (items is False and not least):
            return '"[" "]"'
        item = self._literal(items, f"{path}/items")
        times = "*" if most is None and least <= 1 else f"{{{max(0, least - 1)},{'' if most is None else most - 1}}}"
        inner = item if most == 1 else f'{item} ("," SPACE {item}){times}'
        return f'"[" {inner} "]"' if least else f'"[" ({inner})? "]"'

    def _string(self, schema: Mapping[str, Any], path: str) -> str:
        if self._strings:
            text = f"(?s:.{self._times(schema, path)})"
            return f"{self._quote(0)} {self._up_to(text, self._strings[0][1])}"
        return self._rule(f'/"({_CHARACTER}){self._times(schema, path)}"/', terminal=True)

    def _string_of(self, text: str, path: str) -> str:
        """Return the expression of one string."""
        if self._strings:
            if self._strings[0][1] in text or self._lark.special_in(text):
                raise refused(f"the text {text[:40]!r}", path)
            return f"{self._quote(0)} /{literal(text)}/ {self._quote(1)}" if text else f"{self._quote(0)} {self._quote(1)}"
        written = json.dumps(text, ensure_ascii=False)
        if self._lark.special_in(written):
            raise refused(f"the text {text[:40]!r}", path)
        return f"/{literal(written)}/"

    def _listed(self, schema: Mapping[str, Any], path: str) -> str:
        made = [self._of_value(value, path) for value in self._listed_values(schema, path)]
        if not made:
            raise refused("an empty list of values", path)
        return self._rule(" | ".join(made))

    def _of_value(self, value: Any, path: str) -> str:
        """Return the expression of one value."""
        if isinstance(value, str):
            return self._string_of(value, path)
        if isinstance(value, dict):
            pairs = [self._pair(name, self._of_value(one, path), path, bare=False) for name, one in value.items()]
            return '"{" ' + ' "," SPACE '.join(pairs) + ' "}"'
        if isinstance(value, list):
            return '"[" ' + ' "," SPACE '.join(self._of_value(one, path) for one in value) + ' "]"'
        word = str(value) if self._python and not isinstance(value, float) else json.dumps(value)
        return f"/{literal(word)}/"

    def _anything(self) -> str:
        """Return the rule of any literal."""
        name = f"{self._prefix}_any"
        if "any" not in self._references:
            self._references["any"] = name
            every = {"type": sorted(EVERY - {"array", "object"})}
            scalar = " | ".join(self._typed(kind, every, "") for kind in every["type"] if kind != "integer")
            pair = self._pair(None, name, "", bare=False)
            self._lark.add(
                name,
                f'{scalar} | "[" ({name} ("," SPACE {name})*)? "]" | "{{" ({pair} ("," SPACE {pair})*)? "}}"',
            )
        return name
