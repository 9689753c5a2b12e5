"""Grammars of turns: random texts of them are read as the request wants them, and turns that were written are in them."""

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

from blockwright.api.text.turn.grammar import MAY, MUST, NEVER, ToolRule, TurnRules, turn_grammar
from blockwright.api.text.turn.template import TurnError, read_template
from blockwright.gpu.sampling.grammars import compiled, tokenizer_of
from blockwright.gpu.weights.token_bytes import TokenBytes
from blockwright.policies.plan.grammar import LARK, TokenVocabulary
from blockwright.tests.api.text.turn.turns import ALONE, SINGLE, THINKERS, TURNS, read, written
from blockwright.tests.claims import claim
from blockwright.tests.parts import examples

PLACE = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "s": {"type": "string"}},
    "required": ["n"],
    "additionalProperties": False,
}
TOOLS = [ToolRule("get", PLACE), ToolRule("put_it", {"type": "object"})]
END = 256
MARKS = sorted(
    {text for turn in TURNS.values() for text in read_template(turn).delimiters} | {"[TOOL_CALLS]", "<|message|>"}
)
WORDS = [*(bytes([i]) for i in range(256)), b"", *(mark.encode() for mark in MARKS), b'{"n": 1}', b"</", b'"]', b"'s"]
SPECIAL = {
    WORDS[id].decode(): id
    for id in range(END + 1, END + 1 + len(MARKS))
    if WORDS[id].startswith((b"[", b"<|", b"<tool_call|", b"<channel|")) and WORDS[id] != b"<|tool_call|>"
}
LIKELY = {*range(END, len(WORDS)), *b'{}"]/,:abc1()=<>'}
CUT = re.compile("|".join(map(re.escape, sorted(SPECIAL, key=len, reverse=True))))
RULES = {
    "none": TurnRules(),
    "strict": TurnRules(tools=TOOLS, calls=MAY),
    "one": TurnRules(tools=TOOLS, calls=MAY, many=False),
    "required": TurnRules(tools=TOOLS, calls=MUST),
    "named": TurnRules(tools=TOOLS[:1], calls=MUST, many=False),
    "json": TurnRules(form="json", text=json.dumps(PLACE)),
    "json or calls": TurnRules(tools=TOOLS, calls=MAY, form="json", text=json.dumps(PLACE)),
    "regex": TurnRules(form="regex", text=r"a/b|c\/\n"),
}


@cache
def vocabulary() -> Any:
    of = TokenVocabulary(file="", digest=b"", size=len(WORDS), ends=[END], hidden=[*SPECIAL.values()])
    return tokenizer_of(of, TokenBytes([*WORDS], b""))


@cache
def matcher_of(kind: str, rule: str, thinking: bool) -> Any:
    try:
        return matcher_for(kind, RULES[rule], thinking)
    except TurnError:
        assert (kind, rule) in {("llama3", "json or calls"), ("llama4", "json or calls")}
        return None


def matcher_for(kind: str, rules: TurnRules, thinking: bool) -> Any:
    template = read_template(TURNS[kind])
    text = turn_grammar(template, rules, thinking=thinking, settled=False, special=SPECIAL)
    return compiled(LARK, text, vocabulary())


def tokens_of(text: str) -> list[int]:
    """The tokens of a text: special ones where their names are, else bytes."""
    made, at = [], 0
    for found in CUT.finditer(text):
        made += [*text[at : found.start()].encode(), SPECIAL[found[0]]]
        at = found.end()
    return [*made, *text[at:].encode()]


def walk(matcher: Any, seed: int, longest: int = 200) -> str | None:
    """A random text of the language, or None if it is longer."""
    draw, made = random.Random(seed), b""
    row = np.zeros((1, -(-len(WORDS) // 32)), dtype=np.int32)
    for _ in range(longest):
        matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8)[0], bitorder="little", count=len(WORDS))).tolist()
        likely = [token for token in allowed if token in LIKELY]
        token = draw.choice(likely if likely and draw.random() < 0.95 else allowed)
        if token == END:
            return made.decode(errors="replace")
        matcher.consume_token(token)
        made += WORDS[token]
    return None


@claim("The reader reads every turn that the grammar of turns allows; its chat template writes it so, too", of="tools")
@examples(900)
@given(
    kind=st.sampled_from(sorted(TURNS)),
    rule=st.sampled_from(sorted(RULES)),
    thinking=st.booleans(),
    seed=st.integers(0, 10**6),
    cuts=st.tuples(*[st.integers(0, 10**6)] * 4),
)
def test_what_is_allowed_is_read(kind: str, rule: str, thinking: bool, seed: int, cuts: tuple[int, ...]) -> None:
    thinking = thinking and kind in THINKERS
    base = matcher_of(kind, rule, thinking)
    text = walk(base.deep_copy(), seed) if base is not None else None
    if text is None:
        return
    rules = RULES[rule]
    begun = TURNS[kind]["fields"]["thinking"]["open"] if thinking else ""
    how: dict[str, Any] = {"calls": rules.calls != NEVER, "constrained": bool(rules.form)}
    how |= {"schemas": {tool.name: tool.schema for tool in rules.tools}}
    turn = read(kind, text, (), begun, **how)
    assert read(kind, text, cuts, begun, **how) == turn
    for name, found in turn.parsed:
        assert isinstance(found, dict)
        assert name in [tool.name for tool in rules.tools]
        if name == "get":
            jsonschema.validate(found, PLACE)
    assert len(turn.calls) <= 1 or rules.many
    assert rules.calls != NEVER or not turn.calls
    if rules.calls == MUST:
        assert turn.calls, text
        assert not turn.content, text
    if rules.form and not turn.calls:
        assert turn.content in text
        assert "n" in json.loads(turn.content) if rules.form == "json" else turn.content in ("a/b", "c/\n")
    again = read(kind, written(kind, turn.reasoning, turn.content, turn.parsed), **how)
    assert again.parsed == turn.parsed
    # Templates leave blanks out, or write some.
    assert (again.reasoning, again.content.strip()) == (turn.reasoning, turn.content.strip())


@pytest.mark.parametrize("kind", sorted(TURNS))
def test_what_is_written_is_allowed(kind: str) -> None:
    calls: list[tuple[str, Any]] = [("get", {"n": 1, "s": "</tool_call>"}), ("put_it", {})]
    thought = "a <b" if kind in THINKERS else ""
    for rule, content, made in [
        ("required", "", calls),
        ("strict", "", calls),
        ("strict", "hi", calls),
        ("strict", "hi", []),
        ("one", "hi", calls[:1]),
        ("named", "", calls[:1]),
        ("none", "hi", []),
        ("json", '{"n": 2}', []),
        ("json or calls", "", calls),
    ]:
        matcher = matcher_of(kind, rule, False)
        if matcher is None or (content and made and kind in ALONE) or (len(made) > 1 and kind in SINGLE):
            continue
        matcher = matcher.deep_copy()
        text = re.sub(', "id": "[a-z0-9]{9}"', "", written(kind, thought, content, made))  # which only templates write
        text = text.removesuffix("<|return|>")  # an end token
        tokens = tokens_of(text)
        assert matcher.try_consume_tokens(tokens) == len(tokens), (rule, text)
        assert matcher.is_accepting(), (rule, text)
    for rule, made in (("one", calls), ("none", calls), ("named", calls[1:])):
        tokens = tokens_of(written(kind, "", "", made[:1] if kind in SINGLE else made))
        if rule != "one" or kind not in SINGLE:
            assert matcher_of(kind, rule, False).deep_copy().try_consume_tokens(tokens) < len(tokens), rule


def test_a_special_token_inside_of_a_delimiter_is_refused() -> None:
    template = read_template({**TURNS["mistral"], "fields": {**TURNS["mistral"]["fields"], "tool_calls": {
        **TURNS["mistral"]["fields"]["tool_calls"], "open": "a[TOOL_CALLS]"}}})  # fmt: skip
    with pytest.raises(TurnError, match="special token inside"):
        turn_grammar(template, RULES["strict"], thinking=False, settled=False, special=SPECIAL)


@pytest.mark.parametrize("kind", sorted(TURNS))
@pytest.mark.parametrize("bounds", [(0, 1), (1, 1), (1, 2), (2, 2), (0, 0)])
def test_lists_have_as_many_items_as_their_schema_says(kind: str, bounds: tuple[int, int]) -> None:
    listed = {"type": "array", "items": {"enum": [1, 2]}, "minItems": bounds[0], "maxItems": bounds[1]}
    schema = {"type": "object", "properties": {"n": listed}, "required": ["n"], "additionalProperties": False}
    rules = TurnRules(tools=[ToolRule("get", schema)], calls=MUST, many=False)
    matcher = matcher_for(kind, rules, False)
    texts = [text for seed in range(4) if (text := walk(matcher.deep_copy(), seed))]
    assert texts
    for text in texts:
        ((_, found),) = read(kind, text, (), "", schemas={"get": schema}).parsed
        jsonschema.validate(found, schema)


def test_a_text_behind_thinking_begins_with_no_blank() -> None:
    rules = TurnRules(form="regex", text=" ?ab ?")
    matcher = matcher_for("qwen", rules, True)
    texts = {text for seed in range(60) if (text := walk(matcher.deep_copy(), seed))}
    assert {read("qwen", text, (), "<think>", constrained=True).content for text in texts} <= {"ab", "ab "}
    assert texts
