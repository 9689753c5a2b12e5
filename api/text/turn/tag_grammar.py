"""The grammar of arguments that are texts between tags: a string as it stands, other values as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .argument_grammar import ANY_NAME, DEEPEST, DEFINITIONS, NOTES, ArgumentGrammar, Members, keywords_besides, refused
from .call_forms import ALL, LINE, TagForm
from .lark import Lark, literal
from .patterns import Blanks
from .schema_types import STRING, type_of, types_of

_OF_STRING = frozenset({"type", "minLength", "maxLength"})
_ALTERNATIVES = frozenset({"anyOf", "oneOf", "allOf"})


class TagGrammar(ArgumentGrammar):
    """The rules of the arguments of one tool."""

    def __init__(self, lark: Lark, form: TagForm, prefix: str, schema: Mapping[str, Any]) -> None:
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
            without = "|".join(map(literal, members.named))
            names = self._rule(f"/{ANY_NAME}/" + (f" & ~/({without})/" if without else ""), terminal=True)
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
        after = f"{blank} {self._lark.exactly(form.after)}"
        types = types_of(schema, self._root)
        if STRING not in types and schema is not False and types:
            return f"{blank} {self._json(self._with_definitions(schema, path))} {after}"
        schema = self._plain(schema, path)
        if isinstance(values := schema.get("enum", [schema["const"]] if "const" in schema else None), list):
            return f"{blank} ({' | '.join(self._values(values, types, path))}) {after}"
        if form.json and types != {STRING}:
            raise refused("a value that may be a string or not", path)
        if form.strip != ALL:
            return f"{blank} {self._text(schema, form.after, path, line=form.strip == LINE)}"
        if unheld := sorted(schema.keys() & {"minLength", "maxLength"}):
            raise refused(f"the keyword {unheld[0]}", path, ", as blanks around a text do not count")
        return self._up_to(r"\s{0,3}(\S((?s:.*)\S)?)?\s{0,3}", form.after)

    def _plain(self, schema: Any, path: str) -> Mapping[str, Any]:
        """Return a schema that admits strings as one without references and alternatives."""
        for _ in range(DEEPEST):
            if not isinstance(schema, Mapping):
                break
            if "$ref" in schema:
                schema = self._resolved(schema, path)
                continue
            choices = next((schema[one] for one in ("anyOf", "oneOf", "allOf") if one in schema), None)
            if choices is None:
                break
            if schema.keys() - _ALTERNATIVES - NOTES or len(schema.keys() & _ALTERNATIVES) > 1:
                raise refused("alternatives beside other keywords", path)
            if len(choices) == 1:
                schema = choices[0]
                continue
            return self._joined(choices, "oneOf" in schema, "allOf" in schema, path)
        if not isinstance(schema, Mapping) or "$ref" in schema:
            return {} if schema is True else self._fail(path)
        if "enum" in schema or "const" in schema:
            beside = sorted(schema.keys() - {"enum", "const", "type", *NOTES})
            if beside or ("enum" in schema and "const" in schema):
                raise refused(f"the keyword {beside[0] if beside else 'const'} beside enum", path)
            return schema
        allowed = _OF_STRING if types_of(schema, self._root) == {STRING} else {"type"}
        unheld = schema.keys() - allowed - NOTES - keywords_besides("string")
        if types_of(schema, self._root) != {STRING}:
            unheld = schema.keys() - {"type"} - NOTES
        if unheld:
            raise refused(f"the keyword {min(unheld)}", path)
        return schema

    def _fail(self, path: str) -> Mapping[str, Any]:
        raise refused("this schema", path)

    def _joined(self, choices: Sequence[Any], one: bool, every: bool, path: str) -> Mapping[str, Any]:
        """Return alternatives as one schema, if they are types without other keywords."""
        plain = [self._plain(choice, path) for choice in choices]
        found: set[str] = set()
        for choice in plain:
            types = types_of(choice, self._root)
            if choice.keys() - {"type", *NOTES} or every or (one and found & types):
                raise refused("these alternatives", path)
            found |= types
        return {"type": sorted(found)}

    def _values(self, values: Iterable[Any], types: frozenset[str], path: str) -> list[str]:
        """Return the expressions of values as texts between tags."""
        form = self._form
        made = []
        for value in values:
            if type_of(value) not in types:
                continue
            text = value if isinstance(value, str) else json.dumps(value)
            if isinstance(value, str) and (
                self._unclear(value, types) or form.after in value or self._lark.special_in(value)
            ):
                raise refused(f"the value {value[:40]!r}", path)
            if form.strip == ALL and text != text.strip():
                raise refused(f"the value {text[:40]!r}", path, ", as blanks around it do not count")
            made.append(f"/{literal(text)}/" if text else '""')
        if not made:
            raise refused("an empty list of values", path)
        return made

    def _unclear(self, text: str, types: frozenset[str]) -> bool:
        """Return whether a string would be read as something else."""
        form = self._form
        if types == {STRING}:
            return False
        bare = {"True": "true", "False": "false", "None": "null"}.get(text.strip(), text.strip())
        try:
            kind = type_of(json.loads(bare))
        except (ValueError, RecursionError):
            return False
        return kind in types and (kind != STRING or form.json)

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
