"""The beginning of a call's arguments that is JSON, judged by json and by jiter, which Anthropic's client reads it with."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jiter import from_json

from blockwright.api.anthropic.tool_input import DEEPEST, ToolInput, completed

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=20,
)
OBJECTS = st.dictionaries(st.text(max_size=6), VALUES, max_size=5)


def written(value: Any, ascii: bool, indent: int | None) -> str:
    """JSON that is valid Unicode, as a tokenizer's text is."""
    return json.dumps(value, ensure_ascii=ascii, indent=indent).encode(errors="replace").decode()


@given(OBJECTS, st.booleans(), st.sampled_from([None, 1]), st.lists(st.integers(0, 400), max_size=5))
def test_json_is_taken_whole_however_it_is_split(value: Any, ascii: bool, indent: int | None, cuts: list[int]) -> None:
    text = written(value, ascii, indent)
    read = ToolInput()
    at = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    assert "".join(read.feed(text[i:j]) for i, j in itertools.pairwise(at)) == text
    assert completed(text) == json.loads(text)


@given(OBJECTS, st.booleans(), st.integers(0, 400))
def test_the_beginning_of_json_is_an_object_as_the_client_reads_it(value: Any, ascii: bool, cut: int) -> None:
    """A number at the cut may go on, so it is not passed on; all else is."""
    text = written(value, ascii, None)[:cut]
    beginning = ToolInput().feed(text)
    assert text.startswith(beginning)
    assert text[len(beginning) :].lstrip("-+.0123456789eEtrufalsn") == "" or text[len(beginning)] == "\\"
    assert completed(text) == (from_json(beginning.encode(), partial_mode=True) if beginning else {})


@given(st.text(alphabet='{}[]:,"\\ \n0-19.eEtruflsnuD8a\x01é', max_size=30), st.integers(0, 30))
def test_any_text_gives_a_beginning_that_the_client_reads(text: str, cut: int) -> None:
    read = ToolInput()
    beginning = read.feed(text[:cut]) + read.feed(text[cut:])
    assert text.startswith(beginning)
    made = completed(text)
    assert made == completed(beginning)
    if beginning.strip():
        assert made == from_json(beginning.encode(), partial_mode=True)


@pytest.mark.parametrize(
    ("text", "taken", "made"),
    [
        ('{"a": 1, "b": "he', '{"a": 1, "b": "he', {"a": 1}),
        ('{"a": 1, "b": nope}', '{"a": 1, "b": ', {"a": 1}),
        ('{"a": [1, {"c": 2}, 3', '{"a": [1, {"c": 2}, ', {"a": [1, {"c": 2}]}),
        ('{"a": 1e999}', '{"a": ', {}),
        ('{"a": "\\ud800"}', '{"a": "', {}),
        ('{"a": "\\ud83d\\ude00"}', '{"a": "\\ud83d\\ude00"}', {"a": "\N{GRINNING FACE}"}),
        ('{"a": NaN, "b": 2}', '{"a": ', {}),
        ("[1]", "", {}),
        ("", "", {}),
        ('{"a" 1}', '{"a" ', {}),
        ('{"a": 1} {"b": 2}', '{"a": 1} ', {"a": 1}),
        ('{"a": ' + "9" * 5000 + "}", '{"a": ', {}),
    ],
)
def test_what_breaks_the_json_is_held_back(text: str, taken: str, made: Any) -> None:
    assert (ToolInput().feed(text), completed(text)) == (taken, made)


def test_depth_is_bounded() -> None:
    made = completed('{"a": ' * 10_000)
    depth = 0
    while made:
        made = made["a"]
        depth += 1
    assert depth == DEEPEST - 1
