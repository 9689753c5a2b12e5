"""The check of a JSON schema: every keyword of it is held exactly, or refused by name and path.

JSON Schema 2020-12. A keyword that only annotates is left out of the grammar. One that is unknown, and an unknown
``format``, only annotate too, as the standard has it; they are reported as ignored. Remote references are never fetched.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

from ...policies.plan.grammar import CLIENTS_LARK, JSON
from ..checks import shown, unicode_text
from ..errors import ApiError, bad_request
from .constraint import Constraint, check_length, text_of
from .keywords import LISTS, MAPS, ONE
from .lark import checked_grammar
from .patterns import LONGEST_NAME, names_besides, schema_pattern

DEEPEST = 100  # levels of JSON
MOST_PROPERTIES, MOST_VALUES = 2000, 5000  # of all objects, of all enums
LARGEST_STEP = 1000  # of multipleOf, without its decimal point
SMALLEST_STEP = 9  # decimals of multipleOf
LARGEST_NUMBER = 2**53  # the library computes with floats, which have every whole number up to here
FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"})
TYPES = frozenset({"null", "boolean", "object", "array", "number", "string", "integer"})
_COUNTS = frozenset({"minProperties", "maxProperties", "minItems", "maxItems", "minLength", "maxLength"})
_NAMES = frozenset({"properties", "required", "additionalProperties", "patternProperties"})
_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_NOTES = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$schema",
     "$vocabulary", "contentEncoding", "contentMediaType", "contentSchema"}
)  # fmt: skip
_REFUSED = {
    **dict.fromkeys(("not", "if", "then", "else", "dependentSchemas", "dependentRequired", "dependencies"), ""),
    **dict.fromkeys(("contains", "minContains", "maxContains", "uniqueItems", "propertyNames"), ""),
    **dict.fromkeys(("unevaluatedItems", "unevaluatedProperties"), "give additionalProperties or items instead"),
    **dict.fromkeys(("$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor"), "use $ref instead"),
    "additionalItems": "use prefixItems and items instead",
}


def schema_constraint(value: object, name: str) -> Constraint:
    """Return the constraint of a schema; raise a 400 that names the keyword and its path if it cannot be held exactly."""
    if isinstance(value, str):
        check_length(len(value), name)
        what = "no valid JSON" if value.strip() else "empty"
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise bad_request(f"{name} is {what}; give a JSON schema", name) from None
    if not isinstance(value, dict | bool):
        raise bad_request(f"{name} is {shown(value)}; give a JSON schema, which is an object", name, "invalid_type")
    if (depth := _depth(value)) > DEEPEST:
        raise bad_request(f"{name} is nested {depth:,} levels deep; give at most {DEEPEST}", name)
    check_length(len(json.dumps(value, separators=(",", ":"))), name)
    check = _Check(name)
    text = json.dumps(check.schema(value), separators=(",", ":"), ensure_ascii=False)
    return Constraint(JSON, unicode_text(text, name), name, tuple(check.ignored))


def grammar_constraint(value: object, name: str) -> Constraint:
    """Return the constraint of a Lark grammar, in which there may be schemas; raise a 400."""
    ignored: list[str] = []

    def schema(inner: object, path: str) -> str:
        made = schema_constraint(inner, path)
        ignored.extend(made.ignored)
        return made.text

    return Constraint(CLIENTS_LARK, checked_grammar(text_of(value, name), name, schema), name, tuple(ignored))


def _depth(value: object) -> int:
    """Return the levels of a JSON value, counted without recursion."""
    level: list[Any] = [value]
    depth = 0
    while level:
        depth += 1
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, dict | list)
        ]
    return depth


class _Check:
    """The check of one schema. ``ignored``: paths of what has no effect."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._properties = self._values = 0
        self._known = {""}  # pointers of all schemas inside, and anchors
        self._references: list[tuple[str, str]] = []  # path, pointer
        self._moved: list[str] = []  # pointers of schemas that stand elsewhere in the grammar
        self.ignored: list[str] = []

    def schema(self, value: dict[str, Any] | bool) -> Any:
        """Return the schema without annotations."""
        if value is False:
            why = "is false, a schema that no text satisfies; give another one, or true for any JSON"
            raise bad_request(f"{self._name} {why}", self._name, "unsupported_schema")
        made = self._one({} if value is True else value, "", root=True)
        for path, pointer in self._references:
            if pointer not in self._known:
                raise self._refusal(path, "$ref", "points at no schema in this one; define it in $defs")
            for moved in self._moved:
                if f"{pointer}/".startswith(f"{moved}/"):
                    raise self._refusal(path, "$ref", f"points into {moved}, which is written otherwise; define it in $defs")
        return made

    def _refusal(self, path: str, keyword: str, why: str) -> ApiError:
        at = f"{self._name}{path}"
        return bad_request(f"the keyword {keyword} at {at or '/'} {why}", self._name, "unsupported_schema")

    def _one(self, value: Any, path: str, *, root: bool = False) -> Any:
        if isinstance(value, bool):
            return value
        if not isinstance(value, dict):
            raise bad_request(f"{self._name}{path} is {shown(value)}; give a schema, which is an object", self._name)
        made: dict[str, Any] = {}
        for keyword, given in value.items():
            for key, held in self._keyword(keyword, given, path, value, root):
                made[key] = held
        if made.get("additionalProperties") is not False and not _NAMES.isdisjoint(made):
            self._spell_names(made, path)
        return made

    def _spell_names(self, made: dict[str, Any], path: str) -> None:
        """Give the further names of an object as a pattern.

        The library spells the names of patterns in one way. Those of additionalProperties it would also spell with escapes,
        and so let a name of properties through with any value ("\\u0061" is "a").
        """
        if made.get("patternProperties"):
            why = "is beside additionalProperties that are not false, whose names it cannot tell apart; make them false"
            raise self._refusal(path, "patternProperties", why)
        others = made.get("additionalProperties", True)
        names = made.get("properties", {}) if others is not True else {}
        if (long := max(map(len, names), default=0)) > LONGEST_NAME or "\x00" in "".join(names):
            what = f"a name of {long:,} characters" if long > LONGEST_NAME else r"the character \x00 in a name"
            why = f"is beside {what}, which is too hard to rule out; give at most {LONGEST_NAME}, or false here"
            raise self._refusal(path, "additionalProperties", why)
        self._moved.append(f"{path}/additionalProperties")
        made |= {"patternProperties": {names_besides(names): others}, "additionalProperties": False}

    def _keyword(self, keyword: str, given: Any, path: str, beside: dict[str, Any], root: bool) -> Iterator[tuple[str, Any]]:
        """Yield the keyword with what the grammar is made of; nothing for an annotation."""
        at = f"{path}/{keyword}"
        if keyword in _REFUSED and not (keyword == "uniqueItems" and given is False):
            remedy = _REFUSED[keyword] or "leave it out, and check the answer yourself"
            raise self._refusal(path, keyword, f"cannot be held exactly; {remedy}")
        if keyword in MAPS:
            yield keyword, self._map(keyword, given, at)
        elif keyword in ONE:
            if isinstance(given, list):
                raise self._refusal(path, keyword, "is a list, as before 2020-12; use prefixItems instead")
            yield keyword, self._inner(given, at)
        elif keyword in LISTS:
            if not isinstance(given, list) or not given:
                raise self._refusal(path, keyword, f"is {shown(given)}; give a list of schemas")
            yield keyword, [self._inner(one, f"{at}/{i}") for i, one in enumerate(given)]
        elif keyword == "$ref":
            yield keyword, self._reference(given, path)
        elif keyword == "$anchor" and isinstance(given, str):
            self._known.add(given)
            yield keyword, given
        elif keyword == "$id":
            if not root:
                raise self._refusal(path, keyword, "gives a part of the schema its own address; leave it out")
        elif keyword == "format":
            if not isinstance(given, str):
                raise self._refusal(path, keyword, f"is {shown(given)}; give the name of a format")
            if given in FORMATS:
                yield keyword, given
            else:
                self.ignored.append(f"{self._name}{at}")
        elif keyword in ("pattern", "type", "enum", "const", "required") or keyword in _COUNTS or keyword in _BOUNDS:
            yield keyword, self._assertion(keyword, given, path, beside)
        elif keyword not in _NOTES and keyword != "uniqueItems":
            self.ignored.append(f"{self._name}{at}")

    def _inner(self, value: Any, at: str) -> Any:
        self._known.add(at)
        return self._one(value, at)

    def _map(self, keyword: str, given: Any, at: str) -> dict[str, Any]:
        if not isinstance(given, dict):
            raise bad_request(f"{self._name}{at} is {shown(given)}; give an object of schemas", self._name)
        self._properties += len(given)
        if self._properties > MOST_PROPERTIES:
            raise bad_request(f"{self._name} has more than {MOST_PROPERTIES:,} properties; give fewer", self._name)
        made = {name: self._inner(one, f"{at}/{_escaped(name)}") for name, one in given.items()}
        if keyword != "patternProperties":
            return made
        path = at.rpartition("/")[0]
        patterns = {self._pattern(pattern, path, keyword): one for pattern, one in made.items()}
        if len(patterns) < len(made):
            raise self._refusal(path, keyword, "has two expressions for the same names; give one")
        return patterns

    def _reference(self, given: Any, path: str) -> str:
        if not isinstance(given, str) or not given.startswith("#"):
            why = f"is {shown(given)}, and nothing is fetched; define it in $defs and use #/$defs/..."
            raise self._refusal(path, "$ref", why)
        self._references.append((path, unquote(given[1:])))
        return given

    def _pattern(self, pattern: Any, path: str, keyword: str) -> str:
        if not isinstance(pattern, str):
            raise self._refusal(path, keyword, f"is {shown(pattern)}; give an expression")
        written, fault = schema_pattern(pattern)
        if fault:
            raise self._refusal(path, keyword, fault)
        if written != pattern and keyword == "patternProperties":
            self._moved.append(f"{path}/{keyword}/{_escaped(pattern)}")
        return written

    def _assertion(self, keyword: str, given: Any, path: str, beside: dict[str, Any]) -> Any:
        """Return the value of a keyword about the instance alone."""
        if keyword == "pattern":
            return self._pattern(given, path, keyword)
        if keyword == "type":
            names = given if isinstance(given, list) else [given]
            if not names or not all(isinstance(one, str) and one in TYPES for one in names):
                why = f"is {shown(given)}; give one of {', '.join(sorted(TYPES))}, or a list of them"
                raise self._refusal(path, keyword, why)
        elif keyword == "enum":
            self._values += len(given) if isinstance(given, list) else 0
            if not isinstance(given, list) or not given:
                raise self._refusal(path, keyword, f"is {shown(given)}; give a list of values")
            if self._values > MOST_VALUES:
                raise self._refusal(path, keyword, f"makes more than {MOST_VALUES:,} values; give fewer")
            self._value(given, path, keyword)
        elif keyword == "const":
            self._value(given, path, keyword)
        elif keyword == "required":
            if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
                raise self._refusal(path, keyword, f"is {shown(given)}; give a list of names")
        elif keyword in _COUNTS:
            return self._count(keyword, given, path, beside)
        elif keyword in _BOUNDS:
            self._bound(keyword, given, path)
        return given

    def _count(self, keyword: str, given: Any, path: str, beside: dict[str, Any]) -> int:
        if isinstance(given, float) and given.is_integer():
            given = int(given)
        if isinstance(given, bool) or not isinstance(given, int) or given < 0:
            raise self._refusal(path, keyword, f"is {shown(given)}; give a whole number from 0 on")
        required = beside.get("required")
        sure = len({*required}) if isinstance(required, list) and all(isinstance(one, str) for one in required) else 0
        properties = beside.get("properties")
        if keyword.endswith("Properties") and isinstance(properties, dict) and len(properties) > sure:
            raise self._refusal(path, keyword, "is beside properties that are not all in required; name them there")
        if keyword == "minProperties" and given > max(1, sure):
            why = f"is {given}, more than the names in required, and a name may come twice; name them in required"
            raise self._refusal(path, keyword, why)
        return given

    def _value(self, given: Any, path: str, keyword: str) -> None:
        """Check the numbers of a value; its depth has been checked."""
        if isinstance(given, dict | list):
            for inner in given.values() if isinstance(given, dict) else given:
                self._value(inner, path, keyword)
        elif isinstance(given, float) and not math.isfinite(given):
            raise self._refusal(path, keyword, f"has {shown(given)}, which is no JSON; give a number")
        elif isinstance(given, int) and abs(given) > LARGEST_NUMBER:
            raise self._refusal(path, keyword, f"has {shown(given)}; give whole numbers up to {LARGEST_NUMBER:,}")

    def _bound(self, keyword: str, given: Any, path: str) -> None:
        if isinstance(given, bool) or not isinstance(given, int | float) or given != given:
            raise self._refusal(path, keyword, f"is {shown(given)}; give a number")
        if abs(given) > LARGEST_NUMBER:
            raise self._refusal(path, keyword, f"is {shown(given)}; give at most {LARGEST_NUMBER:,}, or leave it out")
        if keyword == "multipleOf":
            whole = Decimal(str(given)).normalize().as_tuple()
            exponent = whole.exponent if isinstance(whole.exponent, int) else 0
            step = int("".join(map(str, whole.digits))) * 10 ** max(0, exponent)
            if given <= 0 or step > LARGEST_STEP or exponent < -SMALLEST_STEP:
                raise self._refusal(path, keyword, f"is {shown(given)}; give at most {LARGEST_STEP}, in few digits")


def _escaped(name: str) -> str:
    """Return a name as it stands in a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")
