"""Turn templates: what is taken, and the sentence for what is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blockwright.actors.settings.errors import SettingsError
from blockwright.actors.settings.settings import Settings
from blockwright.api.text.turn.call_forms import JsonForm
from blockwright.api.text.turn.known_templates import known_template
from blockwright.api.text.turn.source import read_turns
from blockwright.api.text.turn.template import TurnError, read_template
from blockwright.tests.api.text.turn.turns import PYTHON, TURNS
from blockwright.tests.checkpoints import CHAT_TEMPLATE

CONTENT: dict[str, Any] = {"content": {}}
FORM = {"type": "function", "function": "{content}"}
TAG = r"<p=(?P<key>[^>]+)>(?P<value>.*?)</p>"
HEADED = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
XML = {"open_pattern": "<f=(?P<name>[^>]+)>", "close": "</f>", "content": "xml-inline", "transform": HEADED}
XML |= {"content_args": {"tag_pattern": TAG}}


def turn(**fields: Any) -> dict[str, Any]:
    return {"start_anchor": "a", "fields": {**CONTENT, **fields}}


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([], "is no object"),
        ({"start_anchor": "a"}, "has no fields"),
        ({**turn(), "version": 2}, "has version 2"),
        ({"fields": CONTENT}, "has no start_anchor"),
        ({**turn(), "start_anchor_pattern": "(a+)+$"}, "start_anchor_pattern, which is not supported"),
        ({"start_anchor": "a", "fields": {"thinking": {"open": "a", "close": "b"}}}, "no field content"),
        (turn(sound={}), "the field 'sound'"),
        (turn(thinking={"open": "a", "close": "b"}, reasoning={"open": "a", "close": "b"}), "each once"),
        (turn(thinking={"open": "a"}), "without close"),
        (turn(thinking={"open": "", "close": "b"}), "empty or long text"),
        (turn(thinking={"open": "a" * 10**6, "close": "b"}), "empty or long text"),
        (turn(thinking={"open": ["a"] * 99, "close": "b"}), "at most 16"),
        (turn(thinking=7), "is no object"),
        (turn(tool_calls={"open_pattern": "(x+x+)+y"}), "repeats more than single characters"),
        (turn(tool_calls={"open_pattern": "a.*b"}), "open_pattern that has a repetition that is not supported"),
        (turn(tool_calls={"open_pattern": "a(?P<name>.*?)"}), "that no text ends"),
        (turn(tool_calls={"open_pattern": r"a(?P<name>\w+)b"}), "a run of characters among which 'b' is"),
        (turn(tool_calls={"open_pattern": r"a(?P<name>\w+)[^x]+c"}), "whose end is not plain to see"),
        (turn(tool_calls={"open_pattern": r"(?P<name>\w+)-"}), "begins with no text"),
        (turn(tool_calls={"open_pattern": "a" * 600}), "has 600 characters"),
        (turn(tool_calls={"open_pattern": "(" * 400}), "is no expression"),
        (turn(tool_calls={"open_pattern": "(a|bc)(a|bc)(a|bc)(a|bc)(a|bc)"}), "more than 16 ways"),
        (turn(tool_calls={"open_pattern": "(?<=a)b"}), "not supported"),
        (turn(tool_calls={"open_pattern": r"(a)\1"}), "not supported"),
        (turn(tool_calls={"open_pattern": "a(?=b+)"}), "looks ahead for more than a text"),
        (turn(tool_calls={"open_pattern": "^a"}), "give a text to look for"),
        (turn(tool_calls={"open_pattern": "a^b"}), r"has \^ behind"),
        (turn(tool_calls={"open": "a", "open_pattern": "a"}), "give one"),
        (turn(tool_calls={"open": "a", "close_pattern": "b{3}"}), "parts that are not supported"),
        (turn(tool_calls={}), "without open"),
        (turn(tool_calls={"open": "a", "content": "kv-lines"}), "give json, xml-inline or python-calls"),
        (turn(tool_calls={"open": "a", "content": "xml-inline"}), "without a group name"),
        (turn(tool_calls={**XML, "content_args": {}}), "has no fields.tool_calls.content_args.tag_pattern"),
        (turn(tool_calls={**XML, "content_args": {"tag_pattern": "(?P<value>.*?)x"}}), "that is not a text"),
        (turn(tool_calls={**XML, "content_args": {"tag_pattern": TAG, "value_parser": {"name": "int"}}}), "value_parser"),
        (turn(tool_calls={**XML, "content_args": {"tag_pattern": TAG, "merge_duplicates": True}}), "merge_duplicates"),
        (turn(tool_calls={**XML, "transform": FORM}), "does not name function.name"),
        (
            turn(tool_calls={**XML, "content": "json", "content_args": {"string_delims": [["a"]]}}),
            "string_delims; give",
        ),
        (turn(tool_calls={**XML, "content": "json", "content_args": {"allow_non_json": True}}), "allow_non_json"),
        (turn(thinking={"open_pattern": "a(?=b)", "close": "c"}), "only tool_calls can have"),
        (turn(tool_calls={"open": "a", "content": "json"}), "does not name function.name"),
        (turn(tool_calls={"open": "a", "content": "json", "transform": FORM, "transform_each": True}), "does not name"),
        (turn(tool_calls={"open": "a", "content": "json", "content_args": {"unquoted_keys": True}}), "only strip"),
    ],
)
def test_a_hostile_template_is_one_sentence(value: Any, says: str) -> None:
    with pytest.raises(TurnError, match=says) as caught:
        read_template(value)
    assert len(str(caught.value)) < 250


def test_keys_of_calls_come_from_the_transform() -> None:
    function = {"name": "{content.tool}", "arguments": "{content.parameters}"}
    made = read_template(turn(tool_calls={"open": "a", "content": "json", "transform": {"function": function}}))
    assert made.regions["tool_calls"].calls == JsonForm(False, "tool", "parameters")


def test_known_ones_are_told_apart() -> None:
    assert known_template(CHAT_TEMPLATE) is None
    assert known_template("<|im_start|> {{ tools }}") is None
    assert "thinking" in TURNS["qwen"]["fields"]
    thinking = known_template("<|im_start|></think>")
    assert thinking is not None
    assert sorted(thinking["fields"]) == ["content", "thinking"]
    kinds = {json.dumps(turn["fields"]["tool_calls"]): kind for kind, turn in TURNS.items()}
    assert len(kinds) == len(TURNS)  # each has a form of its own


def test_transformers_takes_the_known_ones() -> None:
    from transformers.utils.chat_parsing.response_templates import load_response_template

    for kind in TURNS.keys() - PYTHON:
        load_response_template(TURNS[kind])


def test_those_that_transformers_ships_are_taken() -> None:
    from transformers.cli.serving.utils import _RESPONSE_TEMPLATE_FALLBACKS

    for template in _RESPONSE_TEMPLATE_FALLBACKS.values():
        read_template(template)


def test_the_setting(tmp_path: Path) -> None:
    file = tmp_path / "turn.json"
    file.write_text(json.dumps(TURNS["qwen"]))
    assert read_turns({"m": str(file)}) == {"m": read_template(TURNS["qwen"])}
    for text, says in (
        ("{", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("[]", "is no object"),
        (" " * (1 << 21), "cannot be read"),
    ):
        file.write_text(text)
        with pytest.raises(SettingsError, match=f"turns.m: .*{says}"):
            read_turns({"m": str(file)})
    with pytest.raises(SettingsError, match="cannot be read"):
        read_turns({"m": str(tmp_path / "none")})
    with pytest.raises(SettingsError, match=r"turns.other names no application; there are: m"):
        Settings(applications={"m": "x"}, turns={"other": str(file)})
