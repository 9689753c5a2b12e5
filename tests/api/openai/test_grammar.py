"""Constraints of requests: the grammar that reaches the gateway, and the refusals of those that cannot be held."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from blockwright.api.constraints.checker import CheckerFull, GrammarChecker
from blockwright.policies.plan.grammar import CLIENTS_LARK, JSON, REGEX
from blockwright.policies.sweep.compile_queue import ALL, OWN

OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}


@pytest.mark.parametrize(
    ("fields", "form", "text"),
    [
        ({"response_format": {"type": "json_object"}}, JSON, '{"type":"object"}'),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": OBJECT, "strict": False}}}, JSON,
         json.dumps(OBJECT, separators=(",", ":"))),
        ({"structured_outputs": {"json": OBJECT, "regex": None}}, JSON, json.dumps(OBJECT, separators=(",", ":"))),
        ({"structured_outputs": {"json": True}}, JSON, "{}"),
        ({"guided_json": "true"}, JSON, "{}"),
        ({"structured_outputs": {"json_object": True, "disable_fallback": False}}, JSON, '{"type":"object"}'),
        ({"guided_json": json.dumps(OBJECT)}, JSON, json.dumps(OBJECT, separators=(",", ":"))),
        ({"guided_regex": "a|b"}, REGEX, "a|b"),
        ({"guided_choice": ["yes", "n.o\u00e9"]}, REGEX, "yes|n\\x{2E}o\u00e9"),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, CLIENTS_LARK, 'start: "a"'),
    ],
)  # fmt: skip
async def test_the_grammar_reaches_the_gateway(serve: Any, say: Any, fields: dict[str, Any], form: str, text: str) -> None:
    client, port = await serve(say("{}"))
    asked = {"model": "tiny", "prompt": "x", "ignore_eos": True, **fields}
    answer = await client.post("/v1/completions", json=asked)
    assert answer.status == 200, await answer.text()
    generation = port.streams[-1].generation
    grammar = generation.sampling.grammar
    assert (grammar.form, grammar.text, grammar.to_the_end) == (form, text, True)
    assert grammar.vocabulary.ends
    assert {*grammar.vocabulary.ends} <= {*generation.stop_tokens}  # although end tokens are ignored elsewhere


async def test_what_has_no_effect_is_named(serve: Any, say: Any) -> None:
    client, port = await serve(say("{}"))
    schema = {"type": "string", "format": "phone"}
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "structured_outputs": {"json": schema}}
    answer = await client.post("/v1/chat/completions", json=chat)
    assert answer.status == 200, await answer.text()
    assert answer.headers["x-ignored-fields"] == "structured_outputs.json/format"
    text = {"model": "tiny", "prompt": "x", "response_format": {"type": "text"}}
    assert (await client.post("/v1/completions", json=text)).status == 200
    assert port.streams[-1].generation.sampling.grammar is None


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"response_format": {"type": "xml"}}, "response_format", "text, json_object or json_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "schema is missing"),
        ({"response_format": {"type": "json_object", "schema": {}}}, "response_format.schema", "not supported"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "2 constraints"),
        ({"structured_outputs": {}}, "structured_outputs", "has no constraint; give one of json, regex"),
        ({"structured_outputs": {"json": None, "json_object": False}}, "structured_outputs", "has no constraint"),
        ({"structured_outputs": {"json": False}}, "structured_outputs.json", "is false, a schema that no text satisfies"),
        ({"structured_outputs": {"regex": False}}, "structured_outputs.regex", "is false; give a text"),
        ({"structured_outputs": {"json": False, "regex": "a"}}, "structured_outputs", "2 constraints (json, regex)"),
        ({"structured_outputs": []}, "structured_outputs", "is []; give an object"),
        ({"structured_outputs": {"json": 3}}, "structured_outputs.json", "is 3; give a JSON schema"),
        ({"structured_outputs": {"json": ""}}, "structured_outputs.json", "is empty; give a JSON schema"),
        ({"guided_json": ""}, "guided_json", "is empty; give a JSON schema"),
        ({"guided_json": "false"}, "guided_json", "is false, a schema that no text satisfies"),
        ({"guided_json": "null"}, "guided_json", "is null; give a JSON schema"),
        ({"guided_json": 0}, "guided_json", "is 0; give a JSON schema"),
        ({"guided_regex": ""}, "guided_regex", "give a text that is not empty"),
        ({"guided_grammar": ""}, "guided_grammar", "give a text that is not empty"),
        ({"guided_choice": "yes"}, "guided_choice", "give a list of texts"),
        ({"guided_choice": [""]}, "guided_choice", "none of them empty"),
        ({"guided_choice": [1]}, "guided_choice", "give a list of texts"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": False}}},
            "response_format.json_schema.schema",
            "no text satisfies",
        ),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag", "not supported"),
        ({"guided_choice": []}, "guided_choice", "none of them empty"),
        ({"guided_grammar": "root ::= x"}, "guided_grammar", "Lark"),
        ({"guided_regex": "(a"}, "guided_regex", "does not close"),
        ({"guided_regex": "a", "allowed_token_ids": [5]}, "allowed_token_ids", "may leave no token"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "both constrain"),
    ],
)
async def test_a_refusal_names_the_field(serve: Any, fields: dict[str, Any], param: str, said: str) -> None:
    client, _ = await serve()
    answer = await client.post("/v1/completions", json={"model": "tiny", "prompt": "x", **fields})
    error = (await answer.json())["error"]
    assert (answer.status, error["param"], said in error["message"]) == (400, param, True), error


async def test_a_tokenizer_without_a_table_is_refused(serve: Any, folder: Path, tmp_path: Path) -> None:
    other = shutil.copytree(folder, tmp_path / "other")
    content = json.loads((other / "tokenizer.json").read_text())
    content["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": False}
    (other / "tokenizer.json").write_text(json.dumps(content))
    client, _ = await serve(folder=other)
    answer = await client.post("/v1/completions", json={"model": "tiny", "prompt": "x", "guided_regex": "a"})
    assert answer.status == 400
    assert "stand for no bytes of their own" in (await answer.json())["error"]["message"]


@pytest.mark.parametrize(("queue", "status", "said"), [(OWN, 429, "7 new constraints of your own"), (ALL, 503, "7 new")])
async def test_too_many_new_constraints_are_refused_with_a_time(
    serve: Any, monkeypatch: pytest.MonkeyPatch, queue: str, status: int, said: str
) -> None:
    async def full(self: GrammarChecker, form: str, text: str, tenant: str) -> str:
        raise CheckerFull(queue, 7)

    monkeypatch.setattr(GrammarChecker, "fault", full)
    client, _ = await serve()
    answer = await client.post("/v1/completions", json={"model": "tiny", "prompt": "x", "guided_regex": "a"})
    error = (await answer.json())["error"]
    assert (answer.status, error["param"], error["code"]) == (status, "guided_regex", "too_many_constraints")
    assert said in error["message"]
    assert answer.headers["Retry-After"] == "2"
