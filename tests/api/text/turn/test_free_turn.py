"""Turns that are free but for their calls: whatever is written freely, the reader and the masks agree on where calls are."""

from __future__ import annotations

import json
import random
import re
from functools import cache
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockwright.api.http.held_tools import HeldTools
from blockwright.api.openai.held_calls import free_turn
from blockwright.api.text.turn.grammar import ToolRule, call_grammar
from blockwright.api.text.turn.reader import TurnReader
from blockwright.api.text.turn.template import CALLS, read_template
from blockwright.gpu.sampling.grammars import GrammarStore, ReadVocabulary, tokenizer_of
from blockwright.gpu.sampling.row_grammars import ALL, MADE, OUTSIDE, RowCalls
from blockwright.gpu.weights.token_bytes import TokenBytes
from blockwright.policies.plan.grammar import CALLS as FORM
from blockwright.policies.plan.grammar import Grammar, TokenVocabulary
from blockwright.tests.api.text.turn.test_grammar import PLACE
from blockwright.tests.api.text.turn.test_grammar import SPECIAL as NAMED
from blockwright.tests.api.text.turn.test_grammar import WORDS as COMMON
from blockwright.tests.api.text.turn.turns import SINGLE, THINKERS, TURNS, Turn, written
from blockwright.tests.claims import claim
from blockwright.tests.parts import examples

END = 256
OTHER = {"type": "object", "properties": {"a": {"type": "boolean"}}, "additionalProperties": False}
SCHEMAS = {"get": PLACE, "put_it": OTHER}
# tokens that end, or go on, behind a text that opens a call
MIXED = [
    *(b">\n", b'>{"', b">x", b"ll>\n{", b"ll>'", b"[get(", b"[get(n", b"[see(", b" [put_it(a", b"get(", b"put_it(x"),
    *(b" get(n=1", b'"name": "get"', b'{"name"', b'{"name": "', b'name"x', b'me": "see"', b"call:get{", b"call:x", b"[["),
    *(b"<tool_call>\n", b"x<tool_call>y", b"<function=get>", b"</think>", b"</think>\n<tool_call>", b"functools[{", b"s[x"),
    *(b" to=functions.get", b"to=functions.", b"functions.see", b"s.put_it<", b"\xe3\x80", b"\x80", b"[TOOL_CALLS]["),
    *(b"<th", b"ink>"),
]
WORDS = [*COMMON, *MIXED]
V = len(WORDS)
LIKELY = [*range(END + 1, V), *b'{}[]"(<>=,:n1 \n']
VOCABULARY = TokenVocabulary(file="", digest=b"", size=V, ends=[END], hidden=[*NAMED.values()])


@cache
def vocabulary() -> ReadVocabulary:
    return ReadVocabulary(tokenizer_of(VOCABULARY, TokenBytes([*WORDS], b"")), WORDS)


@cache
def store() -> GrammarStore:
    made = GrammarStore()
    made._vocabularies[VOCABULARY.key] = vocabulary()
    return made


def begun_by(kind: str, thinking: bool) -> str:
    return TURNS[kind]["fields"]["thinking"]["open"] if thinking and kind in THINKERS else ""


def reader_of(kind: str, thinking: bool) -> TurnReader:
    return TurnReader(read_template(TURNS[kind]), begun_by(kind, thinking), schemas=SCHEMAS)


@cache
def grammar_of(kind: str, thinking: bool, to_the_end: bool = False) -> Grammar:
    template = read_template(TURNS[kind])
    tools = [ToolRule(name, schema) for name, schema in SCHEMAS.items()]
    made = call_grammar(template, tools, special=NAMED, ends=["</s>"])
    held = HeldTools(made.text, made.lasts, tuple(SCHEMAS), (), ())
    turn = free_turn(template, reader_of(kind, thinking).standing, held, {id: text for text, id in NAMED.items()})
    assert turn is not None
    grammar = Grammar(form=FORM, text=turn.text, vocabulary=VOCABULARY, to_the_end=to_the_end)
    store().compile(grammar)
    return grammar


class Row:
    """A row, and the reader of its text."""

    def __init__(self, kind: str, thinking: bool, to_the_end: bool = False) -> None:
        self.grammar = grammar_of(kind, thinking, to_the_end)
        self.calls = RowCalls(self.grammar, store())
        self.reader, self.deltas = reader_of(kind, thinking), []
        self.tokens: list[int] = []
        self.text = ""

    def mask(self) -> tuple[str, list[int]]:
        bits_W = np.zeros(-(-V // 32), dtype=np.uint32)
        made = self.calls.mask(np.asarray(self.tokens, dtype=np.int32), bits_W)
        if made == ALL:
            return made, [*range(V)]
        assert made == MADE
        return made, np.flatnonzero(np.unpackbits(bits_W.view(np.uint8), bitorder="little", count=V)).tolist()

    @property
    def calling(self) -> bool:
        return bool(self.calls._places) and self.calls._places[-1][0] == "call"

    def add(self, token: int) -> None:
        self.tokens.append(token)
        text = WORDS[token].decode(errors="replace") if token != END else ""
        self.text += text
        self.deltas += self.reader.feed(text)
        self.mask()


def opens(kind: str, text: str, more: str, thinking: bool) -> bool:
    """Return whether the reader of a text takes a part of ``more`` as one of a call."""
    reader = reader_of(kind, thinking)
    reader.feed(text)
    opened = []
    for char in more:
        reader.feed(char)
        opened.append(reader.standing[0] == CALLS)
    return any(opened)


@claim(
    "Free text is not constrained where no call is open, and a call is of a tool and by its schema, in each form", of="tools"
)
@examples(600)
@given(kind=st.sampled_from(sorted(TURNS)), thinking=st.booleans(), seed=st.integers(0, 10**6))
def test_free_text_and_calls(kind: str, thinking: bool, seed: int) -> None:
    draw, row = random.Random(seed), Row(kind, thinking)
    marks = [WORDS.index(text) for text in store().scanner(row.grammar.key)._calls if text in WORDS]  # type: ignore[union-attr]
    for _ in range(draw.choice([5, 40, 120])):
        made, allowed = row.mask()
        if not row.calling:
            for token in {*range(V)} - {*allowed}:  # what is forbidden would have opened a call
                assert opens(kind, row.text, WORDS[token].decode(errors="replace"), thinking), (row.text, WORDS[token])
        elif made == ALL:
            raise AssertionError("a call is not held")
        usual = [token for token in allowed if token in LIKELY]
        if not row.calling and draw.random() < 0.2 and marks:
            usual = marks
        token = draw.choice(usual if usual and draw.random() < 0.9 else allowed)
        if token == END:
            break
        row.add(token)
        reading = row.reader.standing[0] == CALLS
        assert reading or not row.calling or "\ufffd" in row.text, row.text
        if kind not in ("llama4", "ministral", "mistral small", "mistral"):  # until a character behind the call is read
            assert row.calling or not reading, row.text
    turn = Turn(row.deltas + row.reader.finish())
    for place, (name, arguments) in enumerate(turn.calls):
        assert name in SCHEMAS, row.text
        if place < len(turn.calls) - 1 or not row.calling:
            jsonschema.validate(json.loads(arguments), SCHEMAS[name])


@pytest.mark.parametrize("kind", sorted(TURNS))
def test_what_is_written_is_allowed_with_text_between(kind: str) -> None:
    calls: list[tuple[str, Any]] = [("get", {"n": 1, "s": "</tool_call>"}), ("put_it", {})]
    single = kind in SINGLE or kind in ("llama3", "llama4")
    text = re.sub(
        ', "id": "[a-z0-9]{9}"', "", written(kind, "", "" if single else "hi", calls[: 1 if kind in SINGLE else 2])
    )
    row, left = Row(kind, False), text.removesuffix("<|return|>").encode()
    while left:
        fits = [token for token in row.mask()[1] if WORDS[token] and left.startswith(WORDS[token])]
        assert fits, (row.text, left)
        row.add(max(fits, key=lambda token: len(WORDS[token])))
        left = left[len(WORDS[row.tokens[-1]]) :]
    turn = Turn(row.deltas + row.reader.finish())
    assert turn.parsed == calls[: len(turn.parsed)]
    assert len(turn.parsed) == (1 if kind in SINGLE else 2)
    assert END in row.mask()[1]


@examples(150)
@given(kind=st.sampled_from(sorted(TURNS)), seed=st.integers(0, 10**6))
def test_whatever_is_written_the_mask_is_of_the_tokens_there(kind: str, seed: int) -> None:
    """Tokens are taken back and written again, as after drafts that do not stand; a row that begins later masks alike."""
    draw, row = random.Random(seed), Row(kind, False, to_the_end=True)
    calls, tokens = row.calls, row.tokens
    bits_W = np.zeros((2, -(-V // 32)), dtype=np.uint32)
    marks = [WORDS.index(text) for text in store().scanner(row.grammar.key)._calls if text in WORDS]  # type: ignore[union-attr]
    for _ in range(60):
        output = np.asarray(tokens, dtype=np.int32)
        made = calls.mask(output, bits_W[0])
        assert RowCalls(row.grammar, store()).mask(output, bits_W[1]) == made
        if made == MADE:
            assert (bits_W[0] == bits_W[1]).all()
        allowed = np.flatnonzero(np.unpackbits(bits_W[0].view(np.uint8), bitorder="little", count=V)).tolist()
        if draw.random() < 0.2 or made == OUTSIDE:
            del tokens[draw.randrange(len(tokens) + 1) :]
            calls.changed(len(tokens))
        tokens.append(draw.choice(allowed if made == MADE and draw.random() < 0.95 else [*marks, *range(V)]))
        calls.changed(len(tokens) - 1)


def test_an_end_behind_a_call_ends_nothing_that_goes_on() -> None:
    """A turn whose ends are ignored goes on behind the end of a call that lasts, and is free again."""
    row = Row("llama3", False, to_the_end=True)
    for token in b'{"name": "put_it", "parameters": {}}':
        row.add(token)
    assert row.mask() == (MADE, [END])
    row.add(END)
    assert row.mask()[0] == ALL
    for token in b'{"name"':
        row.add(token)
    assert row.mask()[0] == ALL  # a turn does not begin here
