"""Schemas are held exactly or refused: every instance of the JSON-Schema-Test-Suite, and schemas of our own by jsonschema.

``suite/`` has the tests of the 2020-12 draft, unchanged in content, one case a line (https://github.com/json-schema-org/
JSON-Schema-Test-Suite, MIT, see its LICENSE).
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from blockwright.api.constraints.constraint import LONGEST
from blockwright.api.constraints.schema import DEEPEST, FORMATS, schema_constraint
from blockwright.api.errors import ApiError
from blockwright.gpu.sampling.grammars import GrammarError, compiled, tokenizer_of
from blockwright.gpu.weights.token_bytes import TokenBytes
from blockwright.policies.plan.grammar import JSON, TokenVocabulary
from blockwright.tests.claims import claim

SUITE = sorted((Path(__file__).parent / "suite").glob("*.json"))
END = 256
# Valid instances in a form that the grammar never writes: numbers as 1.0, names in another order, and instances that only
# a known format forbids, which the standard takes for an annotation. Nothing invalid is ever written.
NARROWER = {"allOf", "const", "enum", "format", "type", "vocabulary"}


@cache
def letters() -> Any:
    """A vocabulary of all bytes."""
    alphabet = TokenBytes([*(bytes([i]) for i in range(256)), b""], b"")
    return tokenizer_of(TokenVocabulary(file="", digest=b"", size=257, ends=[END]), alphabet)


def matcher(schema: Any) -> Any:
    """Raise ApiError or GrammarError for a schema that is refused."""
    return compiled(JSON, schema_constraint(schema, "schema").text, letters())


def holds(made: Any, instance: Any) -> bool:
    text = json.dumps(instance, ensure_ascii=False).encode("utf-8", "surrogatepass")
    copy = made.deep_copy()
    return copy.try_consume_tokens([*text]) == len(text) and bool(copy.is_accepting())


@claim("A JSON schema is held exactly or refused, by the JSON-Schema-Test-Suite", of="structured-output")
@pytest.mark.parametrize("path", SUITE, ids=lambda path: path.stem)
def test_no_invalid_instance_of_the_suite_is_in_the_language(path: Path) -> None:
    wrong, judged = [], 0
    for case in json.loads(path.read_text()):
        try:
            made = matcher(case["schema"])
        except (ApiError, GrammarError):
            continue
        for test in case["tests"]:
            judged += 1
            if holds(made, test["data"]) != test["valid"] and (not test["valid"] or path.stem not in NARROWER):
                wrong.append((case["description"], test["description"]))
    assert not wrong
    refused = (
        "contains defs dependentRequired dependentSchemas dynamicRef if-then-else maxContains minContains not propertyNames "
        "patternProperties refRemote unevaluatedItems unevaluatedProperties uniqueItems oneOf"
    )
    assert judged or path.stem in refused.split()


REFUSED = [
    ({"not": {}}, "not", ""),
    ({"properties": {"a": {"items": {"uniqueItems": True}}}}, "uniqueItems", "/properties/a/items"),
    ({"allOf": [{"if": True, "then": False}]}, "if", "/allOf/0"),
    ({"$defs": {"a/b": {"contains": {}}}}, "contains", "/$defs/a~1b"),
    ({"unevaluatedProperties": False}, "unevaluatedProperties", ""),
    ({"dependentSchemas": {}}, "dependentSchemas", ""),
    ({"propertyNames": {}}, "propertyNames", ""),
    ({"prefixItems": [{}, {"pattern": "a(?=b)"}]}, "pattern", "/prefixItems/1"),
    ({"pattern": r"\bword"}, "pattern", ""),
    ({"pattern": "[a&&b]"}, "pattern", ""),
    ({"patternProperties": {"(?i)a": {}}}, "patternProperties", ""),
    ({"$ref": "https://example.com/schema"}, "$ref", ""),
    ({"$ref": "#/$defs/none"}, "$ref", ""),
    ({"$ref": "#/properties/a/enum/0", "properties": {"a": {"enum": [{}]}}}, "$ref", ""),
    ({"items": [{}]}, "items", ""),
    ({"properties": {"a": {"$id": "http://x/"}}}, "$id", "/properties/a"),
    ({"minProperties": 2}, "minProperties", ""),
    ({"minProperties": 1, "properties": {"a": {}}}, "minProperties", ""),
    ({"maxLength": -1}, "maxLength", ""),
    ({"multipleOf": 99991}, "multipleOf", ""),
    ({"exclusiveMinimum": True, "minimum": 3}, "exclusiveMinimum", ""),
    ({"type": "text"}, "type", ""),
    ({"enum": []}, "enum", ""),
    ({"required": "a"}, "required", ""),
    ({"format": ["date"]}, "format", ""),
    ({"enum": [{"a": 12345678901234567890}]}, "enum", ""),
    ({"const": float("inf")}, "const", ""),
    ({"minimum": -1e19}, "minimum", ""),
    ({"maximum": 10**400}, "maximum", ""),
    ({"multipleOf": 1e-13}, "multipleOf", ""),
    ({"pattern": r"[\x00-\x1f]"}, "pattern", ""),
    ({"pattern": r"\P{Po}"}, "pattern", ""),
    ({"pattern": r"a\z"}, "pattern", ""),
    ({"pattern": r"\Aa"}, "pattern", ""),
    ({"pattern": r"[^\a]"}, "pattern", ""),
    ({"properties": {"a": {"patternProperties": {"^x": {}}}}}, "patternProperties", "/properties/a"),
    ({"properties": {"a" * 81: {}}, "additionalProperties": {"type": "null"}}, "additionalProperties", ""),
    ({"additionalProperties": {}, "items": {"$ref": "#/additionalProperties"}}, "$ref", "/items"),
]


@claim("A schema that cannot be held exactly is a 400 that names keyword and path", of="structured-output")
@pytest.mark.parametrize(("schema", "keyword", "path"), REFUSED)
def test_a_refusal_names_keyword_and_path(schema: Any, keyword: str, path: str) -> None:
    with pytest.raises(ApiError) as refused:
        schema_constraint(schema, "schema")
    assert f"the keyword {keyword} at schema{path} " in refused.value.message
    assert refused.value.status == 400
    assert refused.value.param == "schema"


def deep(levels: int) -> Any:
    schema: Any = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (deep(DEEPEST), "levels deep; give at most"),
        ("[" * 100_000, "no valid JSON"),
        ({"description": "x" * LONGEST}, "bytes; give at most"),
        ({"properties": {f"p{i}": {} for i in range(3000)}}, "more than 2,000 properties"),
        ({"enum": [*range(6000)]}, "more than 5,000 values"),
        (3, "give a JSON schema"),
        ({"properties": 3}, "an object of schemas"),
        ({"const": "\ud800"}, "lone surrogate"),
        ({"properties": {"a": 3}}, "/properties/a is 3; give a schema"),
    ],
)
def test_large_and_wrong_schemas_are_refused_at_once(schema: Any, said: str) -> None:
    with pytest.raises(ApiError, match=said):
        schema_constraint(schema, "schema")


def test_a_schema_of_ten_thousand_levels_needs_no_stack() -> None:
    schema: Any = {}
    for _ in range(10_000):
        schema = {"items": schema}
    with pytest.raises(ApiError, match=r"10,001 levels"):
        schema_constraint(schema, "schema")


def test_what_has_no_effect_is_named() -> None:
    schema = {
        "title": "t", "description": "d", "default": 3, "$schema": "x", "$id": "http://x/", "examples": [1],
        "requird": ["a"],
        "properties": {"a": {"type": "string", "format": "phone"}, "b": {"format": "date"}},
        "uniqueItems": False,
    }  # fmt: skip
    made = schema_constraint(schema, "f")
    assert made.ignored == ("f/requird", "f/properties/a/format")
    assert json.loads(made.text)["properties"] == {"a": {"type": "string"}, "b": {"format": "date"}}
    assert schema_constraint(json.dumps(schema), "f") == made


@claim("A property's name spelled with escapes does not evade the property's schema", of="structured-output")
@pytest.mark.parametrize("rest", [{}, {"additionalProperties": {"type": "string"}}, {"required": ["b"]}])
def test_a_name_spelled_with_escapes_does_not_evade_its_schema(rest: Any) -> None:
    made = matcher({"properties": {"a": {"type": "integer"}, 'q"\\': {"type": "integer"}}, **rest})
    for name in (r"\u0061", "a", r"q\"\\", r"\u0071\"\\", r"\/"):
        text = f'{{"{name}":"x","b":"x"}}'.encode()
        copy = made.deep_copy()
        assert copy.try_consume_tokens([*text]) < len(text) or not copy.is_accepting(), name
    assert holds(made, {"a": 1, 'q"\\': 2, "b": "x", "ab": "x", 'q"': "y", "": "z", "\n": "x"})


@pytest.mark.parametrize("pattern", ['^[^"]$', r"^[^\\]+$", '^(?:|[^"].)$', r"^[^\x00-\x1f\"]$", "^[a-z]$", r"^[^\s]\W$"])
def test_a_class_of_a_pattern_matches_no_character_that_it_leaves_out(pattern: str) -> None:
    made = matcher({"type": "string", "pattern": pattern})
    for text in ("", '"', "\\", "b", "n", "u", "\x01", '"b', '\\"', "a-"):
        assert holds(made, text) == bool(re.search(pattern, text)), text


def test_every_format_that_is_not_ignored_is_held() -> None:
    for name in FORMATS:
        made = matcher({"type": "string", "format": name})
        assert not holds(made, "\n")


OURS: list[Any] = [
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a", "b"]},
    {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "null"}},
    {"type": "object", "patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False},
    {"type": "object", "properties": {"xa": {"maximum": 9}}, "patternProperties": {"^x": {"type": "integer"}},
     "additionalProperties": False},
    {"type": "object", "properties": {"a": {"type": "integer"}, "\"": {"type": "null"}}, "required": ["c"]},
    {"allOf": [{"properties": {"a": {"type": "integer"}}}, {"properties": {"b": {"type": "string"}}, "required": ["b"]}]},
    {"type": "string", "pattern": "^[^\"a]+$"},
    {"type": ["string", "integer", "null"], "maxLength": 3, "minimum": -5},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    {"type": "array", "prefixItems": [{"const": 1}, {"type": "string"}], "items": False},
    {"anyOf": [{"type": "integer", "minimum": 3}, {"type": "string", "pattern": "^[a-c]+$"}]},
    {"oneOf": [{"type": "integer"}, {"type": "string"}]},
    {"allOf": [{"type": "integer"}, {"minimum": 2}, {"exclusiveMaximum": 20}, {"multipleOf": 3}]},
    {"type": "number", "minimum": -1.5, "exclusiveMaximum": 2.25},
    {"type": "string", "minLength": 2, "maxLength": 4},
    {"enum": [1, "1", None, [1, {"a": 2}], {"k": "v"}]},
    {"type": "object", "properties": {"v": {"type": "integer"}}, "required": ["v"], "additionalProperties": {"$ref": "#"}},
    {"$defs": {"n": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/p"}]},
               "p": {"type": "array", "items": {"$ref": "#/$defs/n"}}},
     "$ref": "#/$defs/p"},
    {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1, "maxProperties": 2},
]  # fmt: skip


def value(chance: random.Random, depth: int = 0) -> Any:
    """A JSON value that comes near to the schemas above."""
    kind = chance.randrange(8 if depth < 3 else 6)
    if kind == 6:
        return [value(chance, depth + 1) for _ in range(chance.randrange(4))]
    if kind == 7:
        names = ["a", "b", "c", "v", "xa", "xb", "k"]  # in the order of the schemas
        return {name: value(chance, depth + 1) for name in names if chance.random() < 0.3}
    texts = chance.choice(["", "a", "abc", "abcde", "1"])
    return [None, True, chance.randrange(-6, 24), chance.choice([1.5, -1.25, 2.25]), texts, chance.choice([1, "1", "v"])][
        kind
    ]


@pytest.mark.parametrize("schema", OURS, ids=lambda schema: json.dumps(schema)[:40])
def test_jsonschema_agrees_on_random_instances(schema: Any) -> None:
    made, judge = matcher(schema), jsonschema.Draft202012Validator(schema)
    chance = random.Random(1)
    for _ in range(300):
        instance = value(chance)
        assert not holds(made, instance) or judge.is_valid(instance), instance


@claim("The validator jsonschema accepts every text that a schema's mask lets through", of="structured-output")
@pytest.mark.parametrize("schema", OURS, ids=lambda schema: json.dumps(schema)[:40])
def test_jsonschema_accepts_what_random_choices_write(schema: Any) -> None:
    """Tokens drawn at random from the mask, which write what no one would think of."""
    import numpy as np

    made, judge = matcher(schema), jsonschema.Draft202012Validator(schema)
    chance = random.Random(2)
    ended = 0
    for _ in range(12):
        walk, text = made.deep_copy(), b""
        while len(text) < 150:
            allowed = np.flatnonzero(np.unpackbits(np.frombuffer(walk.compute_bitmask(), np.uint8), bitorder="little"))
            likely = [t for t in allowed if t in (END, *b'"}],')] if chance.random() < 0.6 else []
            token = int(chance.choice(likely or [*allowed]))
            if token == END:
                ended += 1
                assert judge.is_valid(json.loads(text)), text
                break
            assert walk.consume_token(token)
            text += bytes([token])
    assert ended


def test_a_gateway_starts_without_what_checks_schemas() -> None:
    code = "import sys, blockwright.api.app.application; sys.exit('blockwright.api.constraints.schema' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
