"""The grammar of a call's arguments where they are not JSON: texts between tags, Python's literals, and JSON's relatives.

It follows the schema exactly, or refuses it by name. What is JSON also in such a format (numbers, and a value between tags
that cannot be a string) is left to the library, which knows schemas of JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...constraints.patterns import names_besides
from .call_forms import ALL, LINE, NamedForm, PythonForm, TagForm, TurnError
from .lark import Lark, literal
from .patterns import Blanks
from .schema_types import EVERY, STRING, target_of, type_of, types_of

_DEFINITIONS = ("$defs", "definitions")
_NOTES = frozenset({"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$schema"})
_OF_OBJECT = frozenset({"type", "properties", "required", "additionalProperties", "patternProperties", *_DEFINITIONS})
_OF_STRING = frozenset({"type", "minLength", "maxLength"})
_OF_NUMBER = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_OF_ARRAY = frozenset({"items", "minItems", "maxItems"})
_NAME = "[A-Za-z_][A-Za-z0-9_]{0,63}"  # of an argument that the schema does not name
DEEPEST = 100  # schemas inside of each other
MOST_ITEMS = 1000


def refused(keyword: str, path: str, why: str = "") -> TurnError:
    """Return the error of a schema that the format cannot hold."""
    return TurnError(f"writes arguments in a format that cannot hold {keyword} at {path or '/'} exactly{why}; leave it out")


class Members:
    """The names of an object with their schemas, in their order. ``others``: the schema of further ones, or False."""

    def __init__(self, schema: Mapping[str, Any], path: str) -> None:
        if unknown := sorted(schema.keys() - _OF_OBJECT - _NOTES - _keywords_besides("object", schema)):
            raise refused(f"the keyword {unknown[0]}", path)
        self.named: dict[str, Any] = dict(schema.get("properties", {}))
        self.required = set(schema.get("required", ()))
        self.others: Any = schema.get("additionalProperties", True)
        patterns = schema.get("patternProperties", {})
        if patterns:  # the check of schemas has written additionalProperties in this way
            if len(patterns) > 1 or self.others is not False:
                raise refused("the keyword patternProperties", path)
            (pattern, self.others) = next(iter(patterns.items()))
            if pattern not in (names_besides(self.named), names_besides({})):
                raise refused("the keyword patternProperties", path)
        for name in sorted(self.required - self.named.keys()):
            if self.others is False:
                raise refused(f"the required name {name[:60]!r}", path, ", as it is not in properties")
            self.named[name] = self.others


def _keywords_besides(kind: str, schema: Mapping[str, Any]) -> frozenset[str]:
    """Return keywords about values of other types, which do not matter for this one."""
    own = {"string": {"minLength", "maxLength", "pattern", "format"}, "array": {*_OF_ARRAY, "prefixItems"}}
    own |= {"number": {*_OF_NUMBER}, "object": {*_OF_OBJECT, "minProperties", "maxProperties"} - {"type", *_DEFINITIONS}}
    return frozenset(word for name, words in own.items() if name != kind for word in words)


class ArgumentGrammar:
    """The rules of the arguments of one tool. ``prefix``: begins the names of its rules."""

    def __init__(self, lark: Lark, form: NamedForm | TagForm | PythonForm, prefix: str, schema: Mapping[str, Any]) -> None:
        self._lark, self._form, self._prefix, self._root = lark, form, prefix, schema
        self._count = 0
        self._depth = 0
        self._references: dict[str, str] = {}

    def made(self) -> str:
        """Return the expression of all arguments. Raise TurnError."""
        root = self._root
        for _ in range(DEEPEST):
            if "$ref" not in root:
                break
            root = self._resolved(root, "")
        if "object" not in types_of(root, self._root):
            raise refused("a schema without type object", "")
        members = Members(root, "")
        return self._tags(members) if isinstance(self._form, TagForm) else self._object(members, "", top=True)

    def _rule(self, expression: str, *, terminal: bool = False) -> str:
        self._count += 1
        name = f"{self._prefix}_{self._count}"
        name = name.upper() if terminal else name
        self._lark.add(name, expression)
        return name

    def _json(self, schema: Mapping[str, Any]) -> str:
        return self._rule(self._lark.json(schema))

    def _resolved(self, schema: Mapping[str, Any], path: str) -> Mapping[str, Any]:
        """Return the schema that a reference points at."""
        beside = sorted(schema.keys() - {"$ref", *_NOTES, *(_DEFINITIONS if not path else ())})
        target = target_of(schema["$ref"], self._root)
        if beside or not isinstance(target, Mapping):
            raise refused("the keyword $ref", path, f" beside {beside[0]}" if beside else "")
        return target

    # Texts between tags.

    def _tags(self, members: Members) -> str:
        form = self._form
        assert isinstance(form, TagForm)
        made = []
        for name, schema in members.named.items():
            path = f"/properties/{name[:60]}"
            if not form.key.fits(name) or self._lark.special_in(name) or name != name.strip():
                raise refused(f"the name {name[:60]!r}", "/properties", ", as it breaks the tag")
            pair = f"{self._tag(literal(name), None)} {self._value(schema, path)} {self._lark.exactly(form.after)}"
            made.append(pair if name in members.required else f"({pair})?")
        if members.others is not False:
            without = "|".join(map(literal, members.named))
            names = self._rule(f"/{_NAME}/" + (f" & ~/({without})/" if without else ""), terminal=True)
            other = self._value(members.others, "/additionalProperties")
            made.append(f"({self._tag('', names)} {other} {self._lark.exactly(form.after)})*")
        if form.tail:
            made.append(f"BLANKS {self._lark.exactly(form.tail)}")
        return " ".join(made)

    def _tag(self, name: str, rule: str | None) -> str:
        """Return the expression of what stands before a value."""
        form = self._form
        assert isinstance(form, TagForm)
        middle = ["BLANKS" if isinstance(part, Blanks) else self._lark.exactly(str(part)) for part in form.middle]
        return " ".join(["BLANKS", self._lark.exactly(form.before), rule or f"/{name}/", *middle])

    def _value(self, schema: Any, path: str) -> str:
        """Return the expression of a text between tags."""
        form = self._form
        assert isinstance(form, TagForm)
        blanks = {ALL: ("BLANKS", "BLANKS"), LINE: (r'"\n"', r'"\n"')}.get(form.strip, ("", ""))
        types = types_of(schema, self._root)
        if STRING not in types and schema is not False and types:
            inner = self._json(self._with_definitions(schema, path))
            return f"{blanks[0]} {inner} {blanks[1]}"
        schema = self._plain(schema, path)
        if isinstance(values := schema.get("enum", [schema["const"]] if "const" in schema else None), list):
            return f"{blanks[0]} ({' | '.join(self._values(values, types, path))}) {blanks[1]}"
        if form.json and types != {STRING}:
            raise refused("a value that may be a string or not", path)
        return f"{blanks[0]} {self._text(schema, form.after, path, strip=form.strip == ALL)} {blanks[1]}"

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
            if schema.keys() - {"anyOf", "oneOf", "allOf", *_NOTES} or len(schema.keys() & {"anyOf", "oneOf", "allOf"}) > 1:
                raise refused("alternatives beside other keywords", path)
            if len(choices) == 1:
                schema = choices[0]
                continue
            return self._joined(choices, "oneOf" in schema, "allOf" in schema, path)
        if not isinstance(schema, Mapping) or "$ref" in schema:
            return {} if schema is True else self._fail(path)
        if "enum" in schema or "const" in schema:
            beside = sorted(schema.keys() - {"enum", "const", "type", *_NOTES})
            if beside or ("enum" in schema and "const" in schema):
                raise refused(f"the keyword {beside[0] if beside else 'const'} beside enum", path)
            return schema
        allowed = _OF_STRING if types_of(schema, self._root) == {STRING} else {"type"}
        unheld = schema.keys() - allowed - _NOTES - _keywords_besides("string", schema)
        if types_of(schema, self._root) != {STRING}:
            unheld = schema.keys() - {"type"} - _NOTES
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
            if choice.keys() - {"type", *_NOTES} or every or (one and found & types):
                raise refused("these alternatives", path)
            found |= types
        return {"type": sorted(found)}

    def _values(self, values: Iterable[Any], types: frozenset[str], path: str) -> list[str]:
        """Return the expressions of values as texts between tags."""
        form = self._form
        assert isinstance(form, TagForm)
        made = []
        for value in values:
            if type_of(value) not in types:
                continue
            text = value if isinstance(value, str) else json.dumps(value)
            if isinstance(value, str) and (self._unclear(value, types) or form.after in value or self._lark.special_in(value)):
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
        return kind in types and (kind != STRING or (isinstance(form, TagForm) and form.json))

    def _text(self, schema: Mapping[str, Any], end: str, path: str, *, strip: bool = False) -> str:
        """Return a terminal for a string up to a text that ends it."""
        least, most = schema.get("minLength", 0), schema.get("maxLength")
        if isinstance(most, int) and most < least:
            raise refused("the keyword minLength", path)
        times = "*" if not least and most is None else f"{{{least},{'' if most is None else most}}}"
        made = f"/(?s:.{times})/{self._lark.without([end])}"
        if any(end.startswith(end[at:]) for at in range(1, len(end))):
            raise TurnError(f"has the delimiter {end[:60]!r} that may begin inside of itself, so no grammar can have it")
        if strip:
            made += r" & ~/\s(?s:.*)/ & ~/(?s:.*)\s/"
        return self._rule(made, terminal=True)

    def _with_definitions(self, schema: Any, path: str) -> Mapping[str, Any]:
        """Return a part of the schema as one of its own."""
        if not isinstance(schema, Mapping):
            return {}
        for reference in _references(schema):
            if not any(reference.startswith(f"#/{name}/") for name in _DEFINITIONS):
                raise refused("the keyword $ref", path, ", as it points outside of $defs")
        kept = {name: value for name, value in schema.items() if name not in _DEFINITIONS}
        return {**{name: self._root[name] for name in _DEFINITIONS if name in self._root}, **kept}

    # Literals.

    def _object(self, members: Members, path: str, *, top: bool = False) -> str:
        """Return the expression of an object. Its names stand in the order of the schema, as in JSON."""
        round_ = top and isinstance(self._form, PythonForm)
        pairs = [
            (self._pair(name, self._literal(schema, f"{path}/properties/{name[:60]}"), f"{path}/properties", bare=round_), name)
            for name, schema in members.named.items()
        ]
        others = ""
        if members.others is not False:
            others = self._pair(None, self._literal(members.others, f"{path}/additionalProperties"), path, round_, members.named)
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
        python = isinstance(self._form, PythonForm)
        plain = name is None or (name.isascii() and name.replace("_", "a").isalnum() and not name[0].isdigit())
        if not plain and bare:
            raise refused(f"the name {str(name)[:60]!r}", path, ", as it is no name of an argument")
        if name is None:
            without = "|".join(map(literal, besides))
            key = self._rule(f"/{_NAME}/" + (f" & ~/({without})/" if without else ""), terminal=True)
        else:
            key = f"/{literal(name)}/"
        unquoted = bare or (isinstance(self._form, NamedForm) and self._form.bare_keys and plain)
        if not unquoted:
            key = self._string_of(name, path) if name is not None else f"{self._quote(0)} {key} {self._quote(1)}"
        return self._rule(f'{key} "=" {value}' if bare else f'{key} ":" {"SPACE" if python else ""} {value}')

    def _quote(self, place: int) -> str:
        strings = self._form.strings if isinstance(self._form, NamedForm) else ()
        return self._lark.exactly(strings[0][place]) if strings else r'"\""'

    def _literal(self, schema: Any, path: str) -> str:
        """Return the rule of a value. Raise TurnError."""
        if schema is True or schema == {}:
            return self._anything()
        if not isinstance(schema, Mapping):
            raise refused("false", path)
        self._depth += 1
        if self._depth > DEEPEST:
            raise refused("so many schemas inside of each other", path)
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
        known = {"type", *_NOTES, *_keywords_besides("", schema)}
        if unknown := sorted(schema.keys() - known):
            raise refused(f"the keyword {unknown[0]}", path)
        made = [self._typed(kind, schema, path) for kind in sorted(types) if kind != "integer" or "number" not in types]
        if not made:
            raise refused("a schema without a type", path)
        return self._rule(" | ".join(made))

    def _choice(self, schema: Mapping[str, Any], keyword: str, path: str) -> str:
        beside = sorted(schema.keys() - {keyword, *_NOTES})
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
        python = isinstance(self._form, PythonForm)
        if kind == "string":
            if unheld := sorted(schema.keys() & {"pattern", "format"}):
                raise refused(f"the keyword {unheld[0]}", path)
            return self._string(schema, path)
        if kind in ("number", "integer"):
            bounds = {key: schema[key] for key in _OF_NUMBER if key in schema}
            return self._json({"type": kind, **bounds})
        if kind == "boolean":
            return '("True" | "False")' if python else '("true" | "false")'
        if kind == "null":
            return '"None"' if python else '"null"'
        if kind == "array":
            return self._array(schema, path)
        return self._object(Members({key: value for key, value in schema.items() if key not in _DEFINITIONS}, path), path)

    def _array(self, schema: Mapping[str, Any], path: str) -> str:
        if "prefixItems" in schema:
            raise refused("the keyword prefixItems", path)
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        items = schema.get("items", True)
        if max(least, most or 0) > MOST_ITEMS or (most is not None and most < least):
            raise refused("the keyword minItems" if least > MOST_ITEMS or (most or 0) <= MOST_ITEMS else "the keyword maxItems", path)
        if most == 0 or (items is False and not least):
            return '"[" "]"'
        item = self._literal(items, f"{path}/items")
        times = "*" if most is None and least <= 1 else f"{{{max(0, least - 1)},{'' if most is None else most - 1}}}"
        inner = f'{item} ("," SPACE {item}){times}'
        return f'"[" {inner} "]"' if least else f'"[" ({inner})? "]"'

    def _string(self, schema: Mapping[str, Any], path: str) -> str:
        if isinstance(self._form, NamedForm) and self._form.strings:
            ends = self._form.strings[0][1]
            return f"{self._quote(0)} {self._text(schema, ends, path)} {self._quote(1)}"
        least, most = schema.get("minLength", 0), schema.get("maxLength")
        times = "*" if not least and most is None else f"{{{least},{'' if most is None else most}}}"
        char = r'[^"\\\x{0}-\x{1F}\x{7F}]|\\["\\nrt]'
        return self._rule(f'/"({char}){times}"/', terminal=True)

    def _string_of(self, text: str, path: str) -> str:
        """Return the expression of one string."""
        if isinstance(self._form, NamedForm) and self._form.strings:
            if self._form.strings[0][1] in text or self._lark.special_in(text):
                raise refused(f"the text {text[:40]!r}", path)
            return f"{self._quote(0)} /{literal(text)}/ {self._quote(1)}" if text else f"{self._quote(0)} {self._quote(1)}"
        written = json.dumps(text, ensure_ascii=False)
        if self._lark.special_in(written):
            raise refused(f"the text {text[:40]!r}", path)
        return f"/{literal(written)}/"

    def _listed(self, schema: Mapping[str, Any], path: str) -> str:
        beside = sorted(schema.keys() - {"enum", "const", "type", *_NOTES})
        if beside or ("enum" in schema and "const" in schema):
            raise refused(f"the keyword {beside[0] if beside else 'const'} beside enum", path)
        types = types_of(schema, self._root)
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        made = [self._of_value(value, path) for value in values if type_of(value) in types]
        if not made:
            raise refused("an empty list of values", path)
        return self._rule(" | ".join(made))

    def _of_value(self, value: Any, path: str) -> str:
        """Return the expression of one value."""
        python = isinstance(self._form, PythonForm)
        if isinstance(value, str):
            return self._string_of(value, path)
        if isinstance(value, dict):
            pairs = [self._pair(name, self._of_value(one, path), path, bare=False) for name, one in value.items()]
            return '"{" ' + ' "," SPACE '.join(pairs) + ' "}"'
        if isinstance(value, list):
            return '"[" ' + ' "," SPACE '.join(self._of_value(one, path) for one in value) + ' "]"'
        word = str(value) if python and not isinstance(value, float) else json.dumps(value)
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
