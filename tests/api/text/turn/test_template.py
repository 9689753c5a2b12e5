"""Turn templates: what is taken, and the sentence for what is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blockwright.actors.settings.errors import SettingsError
from blockwright.actors.settings.settings import Settings
from blockwright.api.text.turn.known import known_template
from blockwright.api.text.turn.source import read_turns
from blockwright.api.text.turn.template import TurnError, read_template
from blockwright.tests.api.text.turn.turns import TURNS
from blockwright.tests.checkpoints import CHAT_TEMPLATE

CONTENT: dict[str, Any] = {"content": {}}
FORM = {"type": "function", "function": "{content}"}


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
        (turn(tool_calls={"open_pattern": "(x+x+)+y"}), "open_pattern, which is not supported"),
        (turn(tool_calls={"open": "a", "content": "xml-inline"}), "only JSON calls"),
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
    calls = made.regions["tool_calls"].calls
    assert calls is not None
    assert (calls.many, calls.name, calls.arguments) == (False, "tool", "parameters")


def test_known_ones_are_told_apart() -> None:
    assert known_template(CHAT_TEMPLATE) is None
    assert known_template("<|im_start|> <tool_call><function=") is None  # calls that are no JSON
    assert "thinking" in TURNS["qwen"]["fields"]
    thinking = known_template("<|im_start|></think>")
    assert thinking is not None
    assert sorted(thinking["fields"]) == ["content", "thinking"]


def test_transformers_takes_the_known_ones() -> None:
    from transformers.utils.chat_parsing.response_templates import load_response_template

    for template in TURNS.values():
        load_response_template(template)


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
