"""Masks from grammars: the tokens that are drawn form a text of the language, whatever the way to them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from blockwright.gpu.sampling.grammars import GrammarError, GrammarStore, compiled, read_vocabulary
from blockwright.gpu.sampling.masks import TokenMasks, best_tokens, masks
from blockwright.gpu.sampling.row_grammars import MADE, RowGrammar
from blockwright.gpu.sampling.sampler import choose, law, sample
from blockwright.gpu.tables import Tables
from blockwright.policies.plan.grammar import CLIENTS_LARK, JSON, LARK, REGEX, Grammar, TokenVocabulary
from blockwright.policies.plan.sampling import SamplingParams, TokenRules
from blockwright.policies.plan.sweep_plan import OFF_GRAMMAR, SetSampling, WriteTokens
from blockwright.tests.claims import claim

from .conftest import END, V


def argmax(logits_NV: torch.Tensor, masks: TokenMasks | None = None) -> np.ndarray:
    return best_tokens(logits_NV.numpy(), masks)


def tables_with(grammar: Grammar | None, rows: int = 2, compile: bool = True, **params: Any) -> Tables:
    tables = Tables(rows, 256, 1, 16)
    if grammar is not None and compile:
        tables.compiled.compile(grammar)
    sampling = SamplingParams(**{"temperature": 0.0, "grammar": grammar, **params})
    for row in range(rows):
        tables.apply([WriteTokens(row, 0, [5, 6, 7]), SetSampling(row, 3, sampling)])
    return tables


def logits_at(position: int, seed: int = 0) -> torch.Tensor:
    chance = np.random.default_rng((seed, position))
    return torch.from_numpy(chance.standard_normal((1, V)).astype(np.float32) * 5)


def drawn(tables: Tables, row: int, limit: int, seed: int = 0) -> list[int]:
    """Draw until the end token, as a model with random logits would."""
    found: list[int] = []
    while len(found) < limit:
        position = 3 + len(found)
        (token,) = choose(logits_at(position, seed), [row], [position], tables, argmax)
        found.append(token)
        tables.apply([WriteTokens(row, position, [max(token, 0)])])
        if token in (END, OFF_GRAMMAR):
            break
    return found


def text_of(found: list[int], tokens: list[bytes]) -> str:
    return b"".join(tokens[token] for token in found if token != END).decode()


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 4}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@claim(
    "A constrained answer is a text of its language, greedy or sampled, also beside penalties and biases",
    of="structured-output",
)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 1.5, "top_k": 5, "seed": 3},
        {"temperature": 0.7, "min_p": 0.1, "top_p": 0.5},
        {"repetition_penalty": 1.5, "frequency_penalty": 1.0},
        {"rules": TokenRules(bias=[(END, 50.0), (280, 80.0)], min_tokens=40, ends=[END])},
    ],
)
def test_the_text_is_in_the_language(
    vocabulary: TokenVocabulary, tokens: list[bytes], seed: int, params: dict[str, Any]
) -> None:
    grammar = Grammar(form=JSON, text=json.dumps(PERSON), vocabulary=vocabulary)
    found = drawn(tables_with(grammar, **params), 0, 200, seed)
    assert found[-1] == END
    value = json.loads(text_of(found, tokens))
    assert [*value] == ["name", "age"]
    assert len(value["name"]) <= 4
    assert 0 <= value["age"] <= 99


@pytest.mark.parametrize(
    ("form", "text", "language"),
    [(REGEX, "(yes|no|yesterday)", {"yes", "no", "yesterday"}), (LARK, 'start: "a" | "b" "é"', {"a", "bé"})],
)
def test_expressions_and_grammars(
    vocabulary: TokenVocabulary, tokens: list[bytes], form: str, text: str, language: set[str]
) -> None:
    tables = tables_with(Grammar(form=form, text=text, vocabulary=vocabulary), temperature=1.0)
    for seed in range(6):
        found = drawn(tables, 0, 50, seed)
        assert found[-1] == END
        assert text_of(found, tokens) in language
        tables.apply([SetSampling(0, 3, tables.sampling[0])])


def test_an_end_comes_only_where_nothing_else_can_with_to_the_end(vocabulary: TokenVocabulary, tokens: list[bytes]) -> None:
    free = Grammar(form=REGEX, text="a{0,9}", vocabulary=vocabulary)
    whole = replace(free, to_the_end=True)
    assert text_of(drawn(tables_with(whole), 0, 50), tokens) == "a" * 9
    assert len(drawn(tables_with(free), 0, 50)) < 10


@claim("A grammar that allows everything changes no token, greedy or sampled", of="structured-output")
@pytest.mark.parametrize(
    "params", [{}, {"temperature": 1.0, "top_p": 0.9}, {"temperature": 0.8, "min_p": 0.02, "top_k": 40}]
)
def test_a_mask_of_all_tokens_changes_nothing(
    vocabulary: TokenVocabulary, monkeypatch: pytest.MonkeyPatch, params: dict[str, Any]
) -> None:
    everything = Grammar(form=REGEX, text="(?s:.*)", vocabulary=vocabulary)
    tables, free = tables_with(everything, **params), tables_with(None, **params)

    def all_allowed(self: RowGrammar, output: np.ndarray, bits_W: np.ndarray) -> str:
        bits_W[:] = 0xFFFFFFFF
        return MADE

    monkeypatch.setattr(RowGrammar, "mask", all_allowed)
    for position in range(3, 60):
        logits = logits_at(position)
        assert sample(logits, [0], [position], tables, argmax) == sample(logits, [0], [position], free, argmax)
        assert np.array_equal(law(logits[0].numpy(), 0, position, tables), law(logits[0].numpy(), 0, position, free))


@claim(
    "A constrained sequence draws the same tokens after it was moved, and beside drafts that do not stand",
    of="structured-output",
)
def test_the_state_follows_from_the_tokens(vocabulary: TokenVocabulary, tokens: list[bytes]) -> None:
    """A row that begins in the middle, one that goes back, one whose drafts are outside of the language: all draw alike."""
    grammar = Grammar(form=JSON, text=json.dumps(PERSON), vocabulary=vocabulary)
    tables = tables_with(grammar)
    whole = drawn(tables, 0, 200)
    positions = range(3, 3 + len(whole))
    together = torch.cat([logits_at(position) for position in positions])
    assert choose(together, [0] * len(whole), [*positions], tables, argmax) == whole  # as drafts that all stand
    for start in range(len(whole)):
        moved = tables_with(grammar)
        moved.apply([WriteTokens(1, 3, whole[:start])])
        position = 3 + start
        moved.apply([WriteTokens(1, position, [whole[start] + 1, 280, END, 17])])  # drafts, the first one wrong
        several = torch.cat([logits_at(position + i) for i in range(4)])
        found = choose(several, [1] * 4, [position + i for i in range(4)], moved, argmax)
        assert found[0] == whole[start]
        moved.apply([WriteTokens(1, position, whole[start:])])
        if start + 1 < len(whole):
            assert choose(logits_at(position + 1), [1], [position + 1], moved, argmax) == [whole[start + 1]]


def test_log_probabilities_are_of_the_raw_logits(vocabulary: TokenVocabulary) -> None:
    tables = tables_with(Grammar(form=REGEX, text="a", vocabulary=vocabulary), logprobs=2)
    logits = logits_at(3)
    (token,), (entry,) = sample(logits, [0], [3], tables, argmax)
    assert entry is not None
    raw = torch.log_softmax(logits[0].double(), 0)
    assert entry.logprob == pytest.approx(float(raw[token]))
    assert entry.top[0][0] == int(raw.argmax()) != token


# what cannot be held is never free -----------------------------------------------------------------------------------


@claim("An answer whose mask cannot be made fails; it is never drawn freely instead", of="structured-output")
def test_a_row_without_its_mask_fails(vocabulary: TokenVocabulary) -> None:
    grammar = Grammar(form=REGEX, text="a+", vocabulary=vocabulary)
    tables = tables_with(grammar, compile=False)
    assert choose(logits_at(3), [0], [3], tables, argmax) == [OFF_GRAMMAR]
    outside = tables_with(grammar)
    outside.apply([WriteTokens(0, 3, [280])])  # a token that the grammar forbids, which is no draft
    assert choose(logits_at(4), [0], [4], outside, argmax) == [OFF_GRAMMAR]


def beyond_the_limits(key: str) -> list[dict[str, Any]]:
    """Return parts of an allOf whose second mask, behind ``{``, costs too much."""
    return [{"anyOf": [{"type": "object", "properties": {f"{key}{i}_{j}": {}}} for j in range(4)]} for i in range(4)]


def test_a_mask_beyond_the_limits_fails(vocabulary: TokenVocabulary, tokens: list[bytes]) -> None:
    grammar = Grammar(form=JSON, text=json.dumps({"allOf": beyond_the_limits("a")}), vocabulary=vocabulary)
    tables = tables_with(grammar)
    tables.apply([WriteTokens(0, 3, [tokens.index(b"{")])])
    assert choose(logits_at(4), [0], [4], tables, argmax) == [OFF_GRAMMAR]


def test_a_mask_that_fails_behind_a_rejected_draft_changes_nothing(vocabulary: TokenVocabulary, tokens: list[bytes]) -> None:
    """The state behind the draft is not the one that the sequence goes on from."""
    schema = {"anyOf": [{"type": "array"}, {"type": "object", "allOf": beyond_the_limits("a")}]}
    tables = tables_with(Grammar(form=JSON, text=json.dumps(schema), vocabulary=vocabulary))
    tables.apply([WriteTokens(0, 3, [tokens.index(b"{")])])
    two = torch.cat([logits_at(3), logits_at(4)])
    assert choose(two, [0, 0], [3, 4], tables, argmax)[1] == OFF_GRAMMAR  # never free, had the draft stood
    tables.apply([WriteTokens(0, 3, [tokens.index(b"[")])])
    assert choose(logits_at(4), [0], [4], tables, argmax) != [OFF_GRAMMAR]


def test_without_the_library(monkeypatch: pytest.MonkeyPatch, vocabulary: TokenVocabulary) -> None:
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    with pytest.raises(GrammarError, match="pip install llguidance"):
        GrammarStore().compile(Grammar(form=REGEX, text="a", vocabulary=vocabulary))


def test_another_tokenizer_is_noticed(vocabulary: TokenVocabulary) -> None:
    with pytest.raises(GrammarError, match="has changed since"):
        read_vocabulary(replace(vocabulary, digest=b"other"))
    with pytest.raises(GrammarError, match="no end token"):
        read_vocabulary(replace(vocabulary, ends=[]))
    with pytest.raises(GrammarError, match="no readable vocabulary"):
        read_vocabulary(replace(vocabulary, file="/nowhere/tokenizer.json"))


def test_a_schema_cannot_loosen_itself(vocabulary: TokenVocabulary) -> None:
    tokenizer = read_vocabulary(vocabulary).tokenizer
    loose = {"x-guidance": {"lenient": True, "coerce_one_of": True}, "uniqueItems": True, "type": "array"}
    with pytest.raises(GrammarError, match="uniqueItems"):
        compiled(JSON, json.dumps(loose), tokenizer)


@pytest.mark.parametrize(("form", "text"), [(REGEX, "(a"), (LARK, "start: b"), (JSON, '{"$ref": "#"}'), (JSON, "false")])
def test_what_does_not_compile_says_why(vocabulary: TokenVocabulary, form: str, text: str) -> None:
    with pytest.raises(GrammarError, match=r"\w+"):
        compiled(form, text, read_vocabulary(vocabulary).tokenizer)


@claim("A client's grammar that becomes more ambiguous with each token ends by a count of work", of="structured-output")
def test_an_ambiguous_grammar_ends_before_it_is_slow(vocabulary: TokenVocabulary) -> None:
    tokenizer = read_vocabulary(vocabulary).tokenizer
    x = tokenizer.tokenize_str("x")[:1]
    ends = []
    for rules in ('start: s s\ns: s s | "x" |', 'start: s\ns: "x" s | "y"'):
        matcher = compiled(CLIENTS_LARK, rules, tokenizer)
        ends.append(next((i for i in range(400) if not matcher.consume_tokens(x)), 400))
    assert ends[0] < 300  # a token would take a quarter of a second at 900
    assert ends[1] == 400


def test_a_store_has_what_was_not_released(vocabulary: TokenVocabulary) -> None:
    store = GrammarStore()
    other = replace(vocabulary, size=V + 1)
    made = [
        Grammar(form=REGEX, text=text, vocabulary=one) for text, one in (("a", vocabulary), ("b", vocabulary), ("a", other))
    ]
    for one in made:
        store.compile(one)
        store.compile(one)
    store.release(made[0].key)
    store.release(made[2].key)
    assert [store.matcher(one.key) is not None for one in made] == [False, True, False]
    assert {*store._vocabularies} == {vocabulary.key}
    with pytest.raises(GrammarError):
        store.compile(Grammar(form=REGEX, text="(", vocabulary=other))
    assert {*store._vocabularies} == {vocabulary.key}
    store.release(made[1].key)
    assert not store._vocabularies


def test_rows_without_a_grammar_have_no_mask(vocabulary: TokenVocabulary) -> None:
    tables = tables_with(None)
    assert masks([0, 1], [3, 3], tables.grammars, tables.tokens, tables.prompt_length, V, tables.masks) is None
