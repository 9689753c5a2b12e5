"""The reader of turns: what was written comes back, however it is cut, and as transformers' parser has it."""

from __future__ import annotations

from itertools import takewhile
from time import process_time
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
from blockwright.tests.parts import examples, some

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
@examples(240)
@given(data=st.data(), kind=st.sampled_from(sorted(TURNS)), cuts=st.tuples(*[st.integers(0, 10**6)] * 5))
def test_what_is_written_is_read(data: st.DataObject, kind: str, cuts: tuple[int, ...]) -> None:
    reasoning, content, calls = data.draw(turns(kind))
    turn = read(kind, written(kind, reasoning, content, calls), cuts, schemas=schemas_of(calls))
    assert (turn.reasoning, turn.content) == (reasoning, content)
    assert turn.parsed == [*map(tuple, calls)]


@claim("The parser of transformers reads the same turns in the same way", of="tools")
@examples(240)
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


@pytest.mark.parametrize("cut", range(6))
@pytest.mark.parametrize("begun", ["", "<think>\n\n</think>\n\n"])
def test_a_constrained_content_keeps_its_blanks(begun: str, cut: int) -> None:
    assert read("qwen", " \n x \n", (cut,), begun, constrained=True).content == " \n x \n"
    assert read("qwen", " \n ", (cut,), begun, constrained=True).content == " \n "
    assert read("qwen", " \n x \n", (cut,), begun).content == "x"


@pytest.mark.parametrize("text", ["  <thin", "<tool_c", "<think>a</think>\n\n<tool", " "])
def test_a_constrained_content_that_is_cut_off_begins_with_no_delimiter(text: str) -> None:
    for cut, content in ((True, ""), (False, text.rpartition("</think>\n\n")[2])):
        reader = TurnReader(read_template(TURNS["qwen"]), constrained=True)
        deltas = reader.feed(text) + reader.finish(cut=cut)
        assert "".join(delta.content for delta in deltas) == content


@pytest.mark.parametrize("cut", range(0, 24, 4))
def test_blanks_behind_thinking_are_of_no_content(cut: int) -> None:
    turn = read("qwen", "a</think>\n\nb c \n", (cut,), "<think>\n", constrained=True)
    assert (turn.reasoning, turn.content) == ("a", "b c \n")
    call = '\n<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    turn = read("qwen", call, (cut,), constrained=True)
    assert (turn.content, turn.calls) == ("", [["f", "{}"]])
    text = "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|> b "
    assert read("harmony", text, (cut,), constrained=True).content == " b "


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


STARTS = ['{"name": "get", "arguments": {', '"parameters": ', "x:", "get", "true", "\\u00e"]
JUNK = st.sampled_from([*"\"'\\{}[](),:= \nag1é", *STARTS])


@st.composite
def muddles(draw: st.DrawFn, kind: str) -> str:
    """Delimiters and parts of calls in any order, perhaps behind the beginning of a call."""
    parts = JUNK | st.sampled_from(sorted(read_template(TURNS[kind]).delimiters))
    call = written(kind, "", "", [("get", {"s": "a", "n": [1, {"k": None}]})])
    text = "".join(draw(st.lists(parts, max_size=12)))
    return call[: draw(st.integers(0, len(call)))] + text + call[draw(st.integers(0, len(call))) :]


@claim("Any text is read in the same way however it is cut into pieces", of="tools")
@examples(300)
@given(data=st.data(), kind=st.sampled_from(sorted(TURNS)), cuts=st.tuples(*[st.integers(0, 10**6)] * 4))
def test_any_text_is_read_the_same_in_pieces(data: st.DataObject, kind: str, cuts: tuple[int, ...]) -> None:
    text = data.draw(muddles(kind))
    whole = read(kind, text)
    assert read(kind, text, cuts) == whole
    assert read(kind, text, tuple(range(len(text)))) == whole


def cost(kind: str, text: str) -> float:
    """Seconds of the processor for a character, if a text comes in pieces of one."""
    reader = TurnReader(read_template(TURNS[kind]), schemas={"get": {"properties": {"s": {"type": "string"}}}})
    begin = process_time()
    for char in text:
        reader.feed(char)
    reader.finish()
    return (process_time() - begin) / len(text)


@claim("Reading a turn takes linear time, in pieces of one character, too", of="tools")
@pytest.mark.parametrize("kind", some(sorted(TURNS), "coder"))
def test_a_long_answer_is_read_in_linear_time(kind: str, pytestconfig: pytest.Config) -> None:
    longest = 10**6 if pytestconfig.getoption("--nightly") else 4 * 10**4
    call = written(kind, "", "", [("get", {"s": "QQ"})])
    before = call[: call.index("QQ")]
    head = before[: before.index("get")]
    shapes = {"text": ("a", "a <b "), "value": (before, "zz</ "), "heads": ("", f"{head}g")}
    shapes |= {"name": (head, "g"), "blanks": ("a", " ")}
    for name, (begin, part) in shapes.items():
        short, long = (cost(kind, begin + part * (size // len(part))) for size in (longest // 10, longest))
        assert long < 4 * short + 1e-5, name


@pytest.mark.parametrize("kind", sorted(TURNS))
def test_a_turn_that_is_cut_off_is_a_beginning_of_it(kind: str) -> None:
    calls: list[tuple[str, Any]] = [("get", {"n": 1, "s": 'a"b\n', "l": [1, {"k": "v"}], "z": None}), ("put_it", {})]
    calls = calls[:1] if kind in SINGLE else calls
    text = written(kind, "hm so" if kind in THINKERS else "", "" if kind in ALONE else "I say", calls)
    whole = read(kind, text, schemas=schemas_of(calls))
    begun = read_template(TURNS[kind]).delimiters | {text}
    for end in range(len(text)):
        part = read(kind, text[:end], schemas=schemas_of(calls))
        for said, every in ((part.reasoning, whole.reasoning), (part.content, whole.content)):
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(said, every, strict=False)))
            assert any(said[same:].strip() in one for one in begun), said  # a delimiter that was cut off
        assert len(part.calls) <= len(whole.calls)
        for (name, arguments), (known, every) in zip(part.calls, whole.calls, strict=False):
            assert name == known
            assert every.startswith(arguments)


@pytest.mark.parametrize(
    ("kind", "text", "content", "calls"),
    [
        ("llama3", ' \n{"name": "f", "parameters": {"a": [1]}}', "", [["f", '{"a": [1]}']]),
        ("llama3", '<|python_tag|>{"name": "f", "parameters": {}}', "", [["f", "{}"]]),
        ("llama3", '{"name', '{"name', []),
        ("llama3", '{"names": 1}', '{"names": 1}', []),
        ("llama3", 'so {"name": "f"}', 'so {"name": "f"}', []),
        ("llama4", "[1, 2]", "[1, 2]", []),
        ("llama4", "[f(x=New York, y='a\\'b', z={'k': (1, None)})]", "",
         [["f", '{"x": "New York", "y": "a\'b", "z": {"k": [1, null]}}']]),
        ("llama4", "[f()] and more", "and more", [["f", "{}"]]),
        ("ministral", "a[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[ARGS]x", "a[TOOL_CALLS]g[ARGS]x", [["f", "{}"]]),
        ("ministral", "[TOOL_CALLS]f g[ARGS]{}", "[TOOL_CALLS]f g[ARGS]{}", []),
        ("coder", "<tool_call>\n<function=f>\n</function>\n</tool_call>", "", [["f", "{}"]]),
        ("coder", "<tool_call><function=f><parameter=a>1</parameter></function></tool_call>b", "b", [["f", '{"a": 1}']]),
        ("coder", "<tool_call>f</tool_call>", "<tool_call>f</tool_call>", []),
        ("glm", "<tool_call>f</tool_call>", "", [["f", "{}"]]),
        ("glm", "<tool_call>f<arg_key>a</arg_key><arg_value>b c</arg_value></tool_call>", "", [["f", '{"a": "b c"}']]),
        ("harmony", "<|channel|>final<|message|>hi<|return|>", "hi", []),
        ("harmony", " to=functions.f<|channel|>commentary json<|message|>{}<|call|>", "", [["f", "{}"]]),
        ("harmony", "<|channel|>commentary to=functions.f<|message|>no",
         "<|channel|>commentary to=functions.f<|message|>no", []),
        ("phi", "use functools.partial", "use functools.partial", []),
        ("gemma", '<|tool_call>call:f{a:{b:[1,<|"|>x, "y"<|"|>]},"c":"d"}<tool_call|>', "",
         [["f", '{"a": {"b": [1, "x, \\"y\\""]}, "c": "d"}']]),
        ("olmo", "<function_calls>\nf(a=1)\ng()\n</function_calls>", "", [["f", '{"a": 1}'], ["g", "{}"]]),
        ("lfm", "<|tool_call_start|>[f(a=True), g()]<|tool_call_end|>ok", "ok", [["f", '{"a": true}'], ["g", "{}"]]),
    ],
)  # fmt: skip
def test_what_models_write(kind: str, text: str, content: str, calls: list[list[str]]) -> None:
    for cuts in ((), range(len(text))):
        turn = read(kind, text, tuple(cuts))
        assert (turn.content, turn.calls) == (content, calls)
