"""The reader of turns: what was written comes back, however it is cut, and as transformers' parser has it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockwright.api.text.turn.reader import TurnReader
from blockwright.api.text.turn.template import read_template
from blockwright.tests.api.text.turn.turns import (
    ALONE,
    BARE_NAMES,
    PYTHON,
    SINGLE,
    THINKERS,
    TURNS,
    read,
    schemas_of,
    written,
)
from blockwright.tests.claims import claim
from blockwright.tests.parts import examples

TEXT = st.text(st.characters(exclude_characters="<[{", exclude_categories=["Cs", "Cc", "Z"]), max_size=20)
INNER = st.lists(st.sampled_from([*'ab"\\<>{}[]:, é\n1', "</tool_call>", "[TOOL_CALLS]"]), max_size=8).map("".join)
PLAIN = st.text(st.sampled_from('ab"\\:, é\n1'), max_size=8)  # of which no parser makes a delimiter
WORD = st.sampled_from(["a", "b_1", "arguments", "name"])
CONTENT, CALLS = "content", "tool_calls"


def values(names: st.SearchStrategy[str], inner: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    return st.recursive(
        st.none() | st.booleans() | st.integers(-(10**9), 10**9) | inner,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
        max_leaves=6,
    )


@st.composite
def turns(draw: st.DrawFn, kind: str, inner: st.SearchStrategy[str] = INNER) -> tuple[str, str, list[tuple[str, Any]]]:
    """Reasoning, content and calls that a chat template of this kind can write."""
    keys = WORD if kind in BARE_NAMES else inner
    arguments = st.dictionaries(keys, values(keys, inner), max_size=3)
    names = st.sampled_from(["weather", "a.b", "arguments"])
    calls = draw(st.lists(st.tuples(names, arguments), max_size=1 if kind in SINGLE else 3, unique_by=lambda call: call[0]))
    content = "" if calls and kind in ALONE else draw(TEXT)
    return draw(TEXT) if kind in THINKERS else "", content, calls


@claim("A turn is read as its chat template writes it, however it is cut into pieces", of="tools")
@examples(450)
@given(data=st.data(), kind=st.sampled_from(sorted(TURNS)), cuts=st.tuples(*[st.integers(0, 10**6)] * 5))
def test_what_is_written_is_read(data: st.DataObject, kind: str, cuts: tuple[int, ...]) -> None:
    reasoning, content, calls = data.draw(turns(kind))
    turn = read(kind, written(kind, reasoning, content, calls), cuts, schemas=schemas_of(calls))
    assert (turn.reasoning, turn.content) == (reasoning, content)
    assert turn.parsed == [*map(tuple, calls)]


@claim("The parser of transformers reads the same turns in the same way", of="tools")
@examples(450)
@given(data=st.data(), kind=st.sampled_from(sorted({*TURNS} - PYTHON)))
def test_transformers_agrees(data: st.DataObject, kind: str) -> None:
    from transformers.utils.chat_parsing import parse_response

    reasoning, content, calls = data.draw(turns(kind, PLAIN))
    text, schemas = written(kind, reasoning, content, calls), schemas_of(calls)
    tools = [{"type": "function", "function": {"name": name, "parameters": schemas[name]}} for name in schemas]
    turn = read(kind, text, schemas=schemas)
    found = parse_response(text, TURNS[kind], prefix="", tools=tools)
    assert (found.get("thinking", ""), found.get("content", "")) == (turn.reasoning, turn.content)
    theirs = [(one["function"]["name"], one["function"]["arguments"]) for one in found.get("tool_calls", [])]
    assert theirs == turn.parsed


@pytest.mark.parametrize("begun", ["<think>\n", "<think>\na", "<think>\nab</think>\n\n", "x"])
def test_what_the_prompt_has_begun_goes_on(begun: str) -> None:
    turn = read("qwen", "b c</think>\n\nd ", (1,), begun)
    thinking = begun.startswith("<think>") and "</think>" not in begun
    assert (turn.reasoning, turn.content) == (("b c", "d") if thinking else ("", "b c</think>\n\nd"))


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("a <tool_call>b</tool_call> c", "a <tool_call>b</tool_call> c", []),
        ("a <tool_call>[]</tool_call>", "a <tool_call>[]</tool_call>", []),
        ('<tool_call>{"name": 3}</tool_call>', '<tool_call>{"name": 3}</tool_call>', []),
        ('<tool_call>{"nam', '<tool_call>{"nam', []),
        ('<tool_call>{"name": "f"}</tool_call>', "", [["f", "{}"]]),
        ('<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [["f", "{}"]]),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [["f", '{"a": 1}']]),
        ('<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', "", [["f", '{"a": 1}']]),
        ('<tool_call>{"name": "f", "arguments": {"a": [1', "", [["f", '{"a": [1']]),
        ('<tool_call>{"name": "f", "arguments": {}} so</tool_call>', "so</tool_call>", [["f", "{}"]]),
        ("<tool", "<tool", []),
    ],
)
def test_odd_calls(text: str, content: str, calls: list[list[str]]) -> None:
    for cut in range(len(text)):
        turn = read("qwen", text, (cut,))
        assert (turn.content, turn.calls) == (content, calls), cut


def test_calls_that_nothing_asked_for_are_text() -> None:
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert read("qwen", text, calls=False).content == text


def test_a_delimiter_in_a_constrained_content_is_text() -> None:
    turn = read("qwen", '<think>a</think> {"b": "<think>c</think><tool_call>"}', (20, 25), constrained=True)
    assert (turn.reasoning, turn.content, turn.calls) == ("a", '{"b": "<think>c</think><tool_call>"}', [])


def test_tokens_of_thinking_are_counted_by_their_places() -> None:
    reader = TurnReader(read_template(TURNS["qwen"]), "")
    text = "<think>abc</think>\n\nhello"
    reader.feed(text)
    assert reader.reasoning_tokens(range(len(text))) == len("<think>abc</think>")
    opened = TurnReader(read_template(TURNS["qwen"]), "<think>\n")
    opened.feed("abc")
    assert opened.reasoning_tokens(range(3)) == 3


@pytest.mark.parametrize("begun", ["<", "</think", "<tool_call"])
def test_little_is_held_back(begun: str) -> None:
    """What is given back lags behind by less than a delimiter, so no character is looked at often."""
    reader, given = TurnReader(read_template(TURNS["qwen"])), 0
    for n in range(300):
        given += sum(len(delta.content) for delta in reader.feed(begun))
        assert (n + 1) * len(begun) - given < 16
    inside = TurnReader(read_template(TURNS["qwen"]))
    inside.feed('<tool_call>{"name": "f", "arguments": {"a": "')
    passed = sum(len(delta.call.arguments) for _ in range(300) for delta in inside.feed("</tool_call>") if delta.call)
    assert passed > 299 * len("</tool_call>")
