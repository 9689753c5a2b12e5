"""The grammar of arguments that are texts between tags: a string as it stands, other values as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from .argument_grammar import (
    DEEPEST,
    DEFINITIONS,
    KEYWORDS,
    NOTES,
    ArgumentGrammar,
    Members,
    keywords_besides,
    refused,
)
from .arguments import PYTHON_WORDS
from .call_forms import ALL, LINE, TagForm
from .lark_rules import LarkRules, literal
from .patterns import Blanks
from .schema_types import STRING, type_of, types_of

_ALTERNATIVES = frozenset({"anyOf", "oneOf", "allOf"})
_LENGTHS = frozenset({"minLength", "maxLength"})
_NUMBER = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?"
_WRITTEN = {"null": "null", "boolean": "(true|false)", "integer": "-?(0|[1-9][0-9]{0,14})", "number": _NUMBER}
_LIKE = {"null": "null|None", "boolean": "true|false|True|False", "integer": _NUMBER, "number": _NUMBER}


class TagGrammar(ArgumentGrammar):
    """The rules of the arguments of one tool."""

    def __init__(self, lark: LarkRules, form: TagForm, prefix: str, schema: Mapping[str, Any]) -> None:
        super().__init__(lark, prefix, schema)
        self._form = form

    def made(self) -> str:
        """Return the expression of all arguments. Raise TurnError."""
        return self._tags(self._members())

    def _tags(self, members: Members) -> str:
        form = self._form
        made = []
        for name, schema in members.named.items():
            path = f"/properties/{name[:60]}"
            if not form.key.fits(name) or self._lark.special_in(name) or name != name.strip():
                raise refused(f"the name {name[:60]!r}", "/properties", ", as it breaks the tag")
            pair = f"{self._tag(literal(name), None)} {self._value(schema, path)}"
            made.append(pair if name in members.required else f"({pair})?")
        if members.others is not False:
            names = self._other_name(members.named)
            other = self._value(members.others, "/additionalProperties")
            made.append(f"({self._tag('', names)} {other})*")
        if form.tail:
            made.append(f"BLANKS {self._lark.exactly(form.tail)}")
        return " ".join(made)

    def _tag(self, name: str, rule: str | None) -> str:
        """Return the expression of what stands before a value."""
        form = self._form
        middle = ["BLANKS" if isinstance(part, Blanks) else self._lark.exactly(str(part)) for part in form.middle]
        return " ".join(["BLANKS", self._lark.exactly(form.before), rule or f"/{name}/", *middle])

    def _value(self, schema: Any, path: str) -> str:
        """Return the expression of a text between tags, with the text that ends it."""
        form = self._form
        blank = {ALL: "BLANKS", LINE: r'"\n"'}.get(form.strip, "")
        types = types_of(schema, self._root)
        if STRING not in types and schema is not False and types:
            inner = self._json(self._with_definitions(schema, path))
            return f"{blank} {inner} {blank} {self._lark.exactly(form.after)}"
        if form.json and types != {STRING}:
            raise refused("a value that may be a string or not", path)
        choices = self._alternatives(schema, path, 0)
        if STRING in types and all(not choice.keys() - {"type", *NOTES} for choice in choices):
            return f"{blank} ({self._ended('(?s:.*)')})"
        words = [word for choice in choices for word in self._words(choice, types, path)]
        made = [self._ended(f"({'|'.join(words)})")] if words else []
        made += [self._ended(length, self._like_others(types)) for length in self._lengths(choices, path)]
        return f"{blank} ({' | '.join(made)})"

    def _ended(self, text: str, besides: str = "") -> str:
        """Return the expression of a text with what ends it. ``besides``: an expression of texts that it is not."""
        form = self._form
        if form.strip == ALL:
            text = r"(\S((?s:.*)\S)?)?" if text == "(?s:.*)" else text
            text = rf"\s{{0,3}}{text}\s{{0,3}}"
        return self._up_to(text + (r"\n" if form.strip == LINE else ""), form.after, besides)

    def _alternatives(self, schema: Any, path: str, depth: int) -> list[Mapping[str, Any]]:
        """Return the schemas of which a value has to fulfil one, without references."""
        if depth > DEEPEST or not isinstance(schema, Mapping):
            if schema is True:
                return [{}]
            raise refused("this schema", path)
        if "$ref" in schema:
            return self._alternatives(self._resolved(schema, path), path, depth + 1)
        found = sorted(schema.keys() & _ALTERNATIVES)
        if not found:
            return [schema]
        if beside := sorted(schema.keys() - {found[0], *NOTES}):
            raise refused(f"the keyword {beside[0]} beside {found[0]}", path)
        made = [self._alternatives(choice, path, depth + 1) for choice in schema[found[0]]]
        if found[0] == "allOf" and len(made) > 1:
            raise refused("the keyword allOf", path)
        types = [frozenset().union(*(types_of(one, self._root) for one in choice)) for choice in made]
        if found[0] == "oneOf" and sum(map(len, types)) > len(frozenset().union(*types)):
            raise refused("the keyword oneOf", path, ", as its alternatives are not of different types")
        return [one for choice in made for one in choice]

    def _words(self, schema: Mapping[str, Any], types: frozenset[str], path: str) -> list[str]:
        """Return expressions of the listed values, and of values that are no strings."""
        if "enum" in schema or "const" in schema:
            return [self._word(value, types, path) for value in self._listed_values(schema, path)]
        own = types_of(schema, self._root)
        unheld = schema.keys() - {"type", *NOTES} - (_LENGTHS if STRING in own else set()) - keywords_besides("")
        unheld |= {key for kind in own for key in schema.keys() & KEYWORDS.get(kind, set()) - _LENGTHS}
        if unheld or own & {"object", "array"}:
            raise refused(f"the keyword {min(unheld)}" if unheld else "objects beside strings", path)
        return [_WRITTEN[kind] for kind in sorted(own & _WRITTEN.keys())]

    def _word(self, value: Any, types: frozenset[str], path: str) -> str:
        """Return the expression of one value as a text between tags."""
        form = self._form
        text = value if isinstance(value, str) else json.dumps(value)
        unclear = isinstance(value, str) and (self._is_json(text, types) or (form.strip == ALL and text != text.strip()))
        if unclear or form.after in text or self._lark.special_in(text):
            raise refused(f"the value {text[:40]!r}", path)
        return literal(text)

    def _is_json(self, text: str, types: frozenset[str]) -> bool:
        """Return whether a string would be read as another value."""
        if types == {STRING}:
            return False
        bare = PYTHON_WORDS.get(text.strip(), text.strip())
        try:
            return type_of(json.loads(bare)) in types - {STRING}
        except (ValueError, RecursionError):
            return False

    def _lengths(self, choices: Iterable[Mapping[str, Any]], path: str) -> list[str]:
        """Return expressions of the texts that are any strings of a length."""
        made = []
        for choice in choices:
            if STRING not in types_of(choice, self._root) or "enum" in choice or "const" in choice:
                continue
            if self._form.strip == ALL and choice.keys() & _LENGTHS:
                raise refused(f"the keyword {min(choice.keys() & _LENGTHS)}", path, ", as blanks around a text do not count")
            made.append(f"(?s:.{self._times(choice, path)})")
        return made

    def _like_others(self, types: frozenset[str]) -> str:
        """Return an expression of the texts that would be read as a value of these types, and no string."""
        found = [_LIKE[kind] for kind in sorted(types & _LIKE.keys())]
        return rf"\s*({'|'.join(found)})\s*" if found else ""

    def _with_definitions(self, schema: Any, path: str) -> Mapping[str, Any]:
        """Return a part of the schema as one of its own."""
        if not isinstance(schema, Mapping):
            return {}
        for reference in _references(schema):
            if not any(reference.startswith(f"#/{name}/") for name in DEFINITIONS):
                raise refused("the keyword $ref", path, ", as it points outside of $defs")
        kept = {name: value for name, value in schema.items() if name not in DEFINITIONS}
        return {**{name: self._root[name] for name in DEFINITIONS if name in self._root}, **kept}


def _references(value: Any) -> Iterable[str]:
    """Yield all references inside of a schema, whose depth is limited."""
    if isinstance(value, Mapping):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for inner in value.values():
            yield from _references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _references(inner)
