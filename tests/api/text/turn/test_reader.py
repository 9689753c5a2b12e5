"""The reader of turns: what was written comes back, however it is cut, and as transformers' parser has it."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockwright.api.text.turn.reader import TurnDelta, TurnReader
from blockwright.api.text.turn.template import read_template
from blockwright.tests.api.text.turn.turns import TURNS, written
from blockwright.tests.claims import claim
from blockwright.tests.parts import examples

TEXT = st.text(st.characters(exclude_characters="<[", exclude_categories=["Cs", "Cc", "Z"]), max_size=20)
INNER = st.lists(st.sampled_from([*'ab"\\<>{}[]:, é', "</tool_call>", "[TOOL_CALLS]"]), max_size=8).map("".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | INNER,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(INNER, inner, max_size=3),
    max_leaves=6,
)
CALLS = st.lists(
    st.tuples(st.sampled_from(["weather", "a.b-c", "arguments"]), st.dictionaries(INNER, VALUES, max_size=3)), max_size=3
)


class Turn:
    """What deltas join to."""

    def __init__(self, deltas: list[TurnDelta]) -> None:
        self.reasoning = "".join(delta.reasoning for delta in deltas)
        self.content = "".join(delta.content for delta in deltas)
        self.calls: list[list[str]] = []
        for piece in (delta.call for delta in deltas if delta.call is not None):
            if piece.name:
                assert piece.index == len(self.calls)
                self.calls.append([piece.name, ""])
            self.calls[piece.index][1] += piece.arguments


def read(kind: str, text: str, cuts: tuple[int, ...] = (), begun: str = "", **how: Any) -> Turn:
    reader = TurnReader(read_template(TURNS[kind]), begun, **how)
    places = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    deltas = [delta for a, b in pairwise(places) for delta in reader.feed(text[a:b])]
    return Turn(deltas + reader.finish())


@claim("A turn is read as it was written, however it is cut into pieces", of="tools")
@examples(150)
@given(
    kind=st.sampled_from(sorted(TURNS)),
    reasoning=TEXT,
    content=TEXT,
    calls=CALLS,
    cuts=st.tuples(*[st.integers(0, 10**6)] * 5),
)
def test_what_is_written_is_read(
    kind: str, reasoning: str, content: str, calls: list[tuple[str, Any]], cuts: tuple[int, ...]
) -> None:
    reasoning = reasoning if kind == "qwen" else ""
    text = written(kind, reasoning, content, calls)
    turn = read(kind, text, cuts)
    assert (turn.reasoning, turn.content) == (reasoning, content)
    assert [(name, json.loads(arguments)) for name, arguments in turn.calls] == [*map(tuple, calls)]


@claim("The parser of transformers reads the same turns in the same way", of="tools")
@examples(100)
@given(
    kind=st.sampled_from(sorted(TURNS)),
    reasoning=TEXT,
    content=TEXT,
    calls=st.lists(st.tuples(st.just("get"), st.dictionaries(TEXT, TEXT | st.integers(), max_size=3)), max_size=3),
)
def test_transformers_agrees(kind: str, reasoning: str, content: str, calls: list[tuple[str, Any]]) -> None:
    from transformers.utils.chat_parsing import parse_response

    text = written(kind, reasoning if kind == "qwen" else "", content, calls)
    found = parse_response(text, TURNS[kind], prefix="")
    turn = read(kind, text)
    assert (found.get("thinking", ""), found.get("content", "")) == (turn.reasoning, turn.content)
    theirs = [(one["function"]["name"], one["function"]["arguments"]) for one in found.get("tool_calls", [])]
    assert theirs == [(name, json.loads(arguments)) for name, arguments in turn.calls]


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
