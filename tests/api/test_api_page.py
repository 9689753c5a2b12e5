"""docs/api.md is what endpoints and fields say of themselves. ``python tests/api/test_api_page.py`` writes it again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from blockwright.api.app.endpoint import Endpoint
from blockwright.api.app.openapi import document
from blockwright.api.app.routes import ENDPOINTS
from blockwright.api.openai.field_types import Field, Only, Record, Schema
from blockwright.api.openai.foreign_fields import BEGINNINGS, FAMILIES, GENERATING
from blockwright.tests.claims import claim

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
DOCUMENT = document(ENDPOINTS, "")
SCHEMAS: dict[str, Schema] = DOCUMENT["components"]["schemas"]
HEAD = """# The API

This page lists every endpoint. It is generated from the declarations that the server uses to parse requests; a running
server has the same as `/openapi.json`, and as a web page at `/docs`. [serving.md](serving.md) explains how to use it.

- With API keys, every request except the health probes needs `Authorization: Bearer KEY`; without it the answer is 401.
- Every GET endpoint also answers HEAD. `null` means the same as leaving a field out.
- An error is `{"error": {"message", "type", "param", "code"}}`: a sentence for people and a code for programs.
- Unknown fields, that is all fields not listed here, are named in the header `x-ignored-fields`, or refused (setting
  `unknown_fields`). The same holds for unknown fields of messages.
- A field that chooses or shapes the answer of another server is [refused](#fields-of-other-servers) with a remedy, unless
  its value asks for nothing. So is a misspelling of a field (`temprature`, `maxTokens`).
- Keep the connection open in both directions until the answer is there: a client that shuts its sending side after the
  request (half-close) counts as gone, and gets no answer.
- A message's role can be any string of up to 64 characters; the model's chat template decides which there are. `developer`
  is passed as `system` to a template that does not know it. Text parts reach templates that take parts, and are joined by
  line breaks for the others. `reasoning_content` (or `reasoning`) of an assistant's message reaches the template.
- Stop strings are looked for in all that the model says, special tokens included, even hidden ones.
"""
FOREIGN = """## Fields of other servers

The generating endpoints and batches refuse these fields, and `/tokenize` the ones that choose the model or shape the prompt.
`null`, empty values and values that change nothing (`"mirostat": 0`, `"typical_p": 1`) are ignored, and so is a value that
the body also has under our name. The fields within `options` are treated like those of the body. Fields that only concern
the other server, such as `keep_alive` or `cache_prompt`, are ignored and named in `x-ignored-fields`.

`lora_...` stands for all names that begin like that, and `...lora...` for all other names with that word, such as
`useLora`. Names with a word such as `cache`, `draft` or `timings` are not meant. A bound on tokens or lengths (`max`,
`min` or `num` with `tokens`, `length` or `new`) is refused with the names of ours. `prefix`, `images` and `thinking` are
refused in messages, too, and fields of a request beside the `body` of a batch's line.

| fields | what the refusal says |
| --- | --- |"""


def page() -> str:
    lines = [HEAD]
    for endpoint in ENDPOINTS:
        lines += section(endpoint)
    lines += [FOREIGN, *foreign_table(), ""]
    lines.append("## Types\n\nA key with `?` may be missing.\n")
    for name, schema in SCHEMAS.items():
        if not name.endswith("Body"):
            lines += record(name, schema)
    return "\n".join(lines).rstrip() + "\n"


def section(endpoint: Endpoint) -> Iterator[str]:
    path, _, _ = endpoint.path.partition(":")
    shown = endpoint.path.replace(":.+", "")
    assert shown.startswith(path)
    yield f"## {endpoint.method} {shown}\n"
    yield f"{endpoint.text}\n"
    served = [field for field in endpoint.fields if not isinstance(field.kind, Only)]
    if served:
        yield from table(served)
        yield ""
    if endpoint.query:
        yield from table(endpoint.query, kind="parameter")
        yield ""
    refused = [field for field in endpoint.fields if isinstance(field.kind, Only)]
    if refused:
        yield f"Refused, unless the value asks for nothing: {', '.join(f'`{field.name}`' for field in refused)}.\n"
    yield from answers(endpoint)


def foreign_table() -> Iterator[str]:
    """By remedy, in the order of the first field that has it."""
    names: dict[str, list[str]] = {}
    families = {f"{begin}...": one for begin, one in BEGINNINGS.items()}
    families |= {f"...{word}...": one for word, one in FAMILIES.items()}
    for name, foreign in (GENERATING | families).items():
        names.setdefault(foreign.remedy.format(value="its name"), []).append(f"`{name}`")
    for remedy, fields in names.items():
        yield f"| {', '.join(fields)} | {remedy} |"


def table(fields: Sequence[Field], prefix: str = "", kind: str = "field") -> Iterator[str]:
    if not prefix:
        yield f"| {kind} | takes | default | meaning |\n| --- | --- | --- | --- |"
    for field in fields:
        default = "required" if field.required else "" if field.default is None else f"{field.default!r}".lower()
        inner = field.kind.fields if isinstance(field.kind, Record) else ()
        takes = "object" if inner else kind_of(field.kind.schema())
        yield f"| `{prefix}{field.name}` | {takes} | {default} | {field.text} |"
        yield from table(inner, f"{prefix}{field.name}.") if inner else ()


def answers(endpoint: Endpoint) -> Iterator[str]:
    found = DOCUMENT["paths"][endpoint.path.replace(":.+", "")][endpoint.method.lower()]["responses"]
    success = str(endpoint.success)
    body = found[success]["content"]
    kind = kind_of(body[endpoint.media]["schema"]) if endpoint.answer is not None else f"`{endpoint.media}`"
    streamed = ""
    if endpoint.chunk is not None:
        streamed = f"; with `stream` events of {kind_of(body['text/event-stream']['x-event-schema'])}, then `[DONE]`"
    yield f"Answers {success} with {kind}{streamed}.\n"
    errors = [f"- {status}: {answer['description']}" for status, answer in found.items() if status not in (success, "401")]
    if errors:
        yield "\n".join(errors) + "\n"


def record(name: str, schema: Schema) -> Iterator[str]:
    yield f"### {name}\n"
    if "description" in schema:
        yield f"{' '.join(schema['description'].replace('``', '`').split())}\n"
    yield "| key | type |\n| --- | --- |"
    for key, inner in schema["properties"].items():
        yield f"| `{key}{'' if key in schema['required'] else '?'}` | {kind_of(inner)} |"
    yield ""


def kind_of(schema: Schema) -> str:
    """In words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(kind_of(one) for one in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{one if isinstance(one, str) else json.dumps(one)}`" for one in schema["enum"])
    if not schema:
        return "anything"
    if schema["type"] == "array":
        bound = f", at most {schema['maxItems']:,}" if "maxItems" in schema else ""
        return f"list of {kind_of(schema['items'])}{bound}" if schema["items"] else f"list{bound}"
    if schema["type"] == "object":
        values = schema.get("additionalProperties")
        return f"object of {kind_of(values)}" if isinstance(values, dict) and values else "object"
    return str(schema["type"]) + bounds(schema)


def bounds(schema: dict[str, Any]) -> str:
    if "maxLength" in schema:
        least = f"{schema['minLength']} to " if "minLength" in schema else "at most "
        return f" ({least}{schema['maxLength']:,} characters)"
    if "exclusiveMinimum" in schema:
        return f" above {schema['exclusiveMinimum']:g} to {schema['maximum']:g}"
    if "maximum" in schema:
        return f" {schema['minimum']} to {schema['maximum']}"
    return f" from {schema['minimum']}" if "minimum" in schema else ""


@claim("The command line and API pages are generated from the code", of="code-and-tests")
def test_the_page_tells_every_endpoint_and_field() -> None:
    assert PAGE.read_text() == page(), "write it again: python tests/api/test_api_page.py"


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 9}, "integer 1 to 9"),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, "number above 0 to 1"),
        (
            {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 4}},
            "list of string (1 to 4 characters)",
        ),
        ({"anyOf": [{"$ref": "#/x/Ab"}, {"enum": ["a", None]}]}, "[Ab](#ab) or `a`, `null`"),
    ],
)
def test_kinds_are_named_in_words(schema: Schema, words: str) -> None:
    assert kind_of(schema) == words


if __name__ == "__main__":
    PAGE.write_text(page())
