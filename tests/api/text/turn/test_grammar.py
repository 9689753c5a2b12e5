"""Grammars of turns: random texts of them are read as the request wants them, and turns that were written are in them."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import numpy as np
import pytest

from blockwright.api.text.turn.grammar import MAY, MUST, NEVER, ToolRule, TurnRules, turn_grammar
from blockwright.api.text.turn.reader import TurnReader
from blockwright.api.text.turn.template import THINKING, TurnError, TurnTemplate, read_template
from blockwright.gpu.sampling.grammars import compiled, tokenizer_of
from blockwright.gpu.weights.token_bytes import TokenBytes
from blockwright.policies.plan.grammar import LARK, TokenVocabulary
from blockwright.tests.api.text.turn.turns import TURNS, written
from blockwright.tests.claims import claim
from blockwright.tests.parts import parts

PLACE = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "s": {"type": "string"}},
    "required": ["n"],
    "additionalProperties": False,
}
TOOLS = [ToolRule("get", PLACE), ToolRule("put_it", {"type": "object"})]
END, CALLING = 256, 257
WORDS = [*(bytes([i]) for i in range(256)), b"", b"[TOOL_CALLS]", b"<tool_call>", b"</tool_call>", b"<think>", b"</think>"]
WORDS += [b"<|tool_call|>", b'{"n": 1}']
SPECIAL = {"[TOOL_CALLS]": CALLING}
LIKELY = {*range(END, len(WORDS)), *b'{}"]/,:abc'}
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
    of = TokenVocabulary(file="", digest=b"", size=len(WORDS), ends=[END], hidden=[CALLING])
    return tokenizer_of(of, TokenBytes([*WORDS], b""))


def matcher_of(template: TurnTemplate, rules: TurnRules, thinking: bool) -> Any:
    text = turn_grammar(template, rules, thinking=thinking, settled=False, special=SPECIAL)
    return compiled(LARK, text, vocabulary())


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


@claim("The reader reads every turn that the grammar of turns allows", of="tools")
@pytest.mark.parametrize("part", parts(40, 2))
@pytest.mark.parametrize("kind", sorted(TURNS))
@pytest.mark.parametrize("rule", RULES)
def test_what_is_allowed_is_read(kind: str, rule: str, part: int) -> None:
    template, rules = read_template(TURNS[kind]), RULES[rule]
    thinks = THINKING in template.regions
    for thinking in (False, True)[: 1 + thinks]:
        base = matcher_of(template, rules, thinking)
        for seed in range(part * 8, part * 8 + 8):
            text = walk(base.deep_copy(), seed)
            if text is None:
                continue
            begun = "<think>\n" if thinking else ""
            reader = TurnReader(template, begun, calls=rules.calls != NEVER, constrained=bool(rules.form))
            deltas = reader.feed(text) + reader.finish()
            content = "".join(delta.content for delta in deltas)
            pieces = [delta.call for delta in deltas if delta.call is not None]
            names = [piece.name for piece in pieces if piece.name]
            for index, name in enumerate(names):
                found = json.loads("".join(piece.arguments for piece in pieces if piece.index == index))
                assert isinstance(found, dict)
                assert name in [tool.name for tool in rules.tools]
                assert name != "get" or "n" in found
            assert len(names) <= 1 or rules.many
            assert rules.calls != NEVER or not names
            if rules.calls == MUST:
                assert names, text
                assert not content, text
            if rules.form and not names:
                assert text.strip().endswith(content)
                assert "n" in json.loads(content) if rules.form == "json" else content in ("a/b", "c/")


@pytest.mark.parametrize("kind", sorted(TURNS))
def test_what_is_written_is_allowed(kind: str) -> None:
    template = read_template(TURNS[kind])
    calls: list[tuple[str, Any]] = [("get", {"n": 1, "s": "</tool_call>"}), ("put_it", {})]
    thought = "a <b" if kind == "qwen" else ""
    for rule, content, given in [
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
        matcher = matcher_of(template, RULES[rule], False)
        text = written(kind, thought, content, given).encode()
        before, mark, after = text.partition(b"[TOOL_CALLS]")
        tokens = [*before, *([CALLING] if mark else []), *after]
        assert matcher.try_consume_tokens(tokens) == len(tokens), (rule, text)
        assert matcher.is_accepting(), (rule, text)
    for rule, given in (("one", calls), ("none", calls), ("named", calls[1:])):
        matcher = matcher_of(template, RULES[rule], False)
        before, mark, after = written(kind, "", "", given).encode().partition(b"[TOOL_CALLS]")
        tokens = [*before, *([CALLING] if mark else []), *after]
        assert matcher.try_consume_tokens(tokens) < len(tokens), rule


def test_a_special_token_inside_of_a_delimiter_is_refused() -> None:
    template = read_template({**TURNS["mistral"], "fields": {**TURNS["mistral"]["fields"], "tool_calls": {
        **TURNS["mistral"]["fields"]["tool_calls"], "open": "a[TOOL_CALLS]"}}})  # fmt: skip
    with pytest.raises(TurnError, match="special token inside"):
        turn_grammar(template, RULES["strict"], thinking=False, settled=False, special=SPECIAL)
