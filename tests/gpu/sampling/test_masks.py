"""The masks of a row follow from the tokens in the table, and cost the same however many there are."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockwright.gpu.sampling.masks import MaskMemory
from blockwright.gpu.sampling.row_grammars import MADE, OFF, RowGrammar
from blockwright.gpu.tables import Tables
from blockwright.policies.plan.grammar import JSON, REGEX, Grammar, TokenVocabulary
from blockwright.policies.plan.sampling import SamplingParams
from blockwright.policies.plan.sweep_plan import SetSampling, WriteTokens
from blockwright.tests.claims import claim
from blockwright.tests.parts import examples

from .conftest import V
from .test_grammars import PERSON

PROMPT = 3
WORDS = -(-V // 32)


class CountedArray(np.ndarray):
    """An array that counts the elements which are read."""

    read = 0

    def tolist(self) -> Any:
        CountedArray.read += self.size
        return super().tolist()


def table(grammar: Grammar) -> Tables:
    tables = Tables(1, 1024, 1, 16)
    tables.compiled.compile(grammar)
    tables.apply([WriteTokens(0, 0, [5] * PROMPT), SetSampling(0, PROMPT, SamplingParams(grammar=grammar))])
    return tables


def mask_at(tables: Tables, position: int) -> tuple[str, bytes]:
    grammar = tables.grammars[0]
    assert grammar is not None
    bits_W = np.zeros(WORDS, dtype=np.uint32)
    made = grammar.mask(tables.tokens[0, PROMPT:position], bits_W)
    return made, bits_W.tobytes() if made is MADE else b""


def fresh_mask(tables: Tables, position: int) -> tuple[str, bytes]:
    """Return the mask that a row makes which has never made one."""
    grammar = tables.sampling[0].grammar
    assert grammar is not None
    bits_W = np.zeros(WORDS, dtype=np.uint32)
    made = RowGrammar(grammar, tables.compiled).mask(tables.tokens[0, PROMPT:position], bits_W)
    return made, bits_W.tobytes() if made is MADE else b""


@claim("The cost of a mask does not grow with the answer", of="structured-output")
def test_a_mask_reads_the_new_tokens_alone(vocabulary: TokenVocabulary, tokens: list[bytes]) -> None:
    tables = table(Grammar(form=REGEX, text="[ab]*", vocabulary=vocabulary))
    grammar = tables.grammars[0]
    assert grammar is not None
    bits_W = np.zeros(WORDS, dtype=np.uint32)
    for position in range(PROMPT, 1000):
        CountedArray.read = 0
        output = tables.tokens[0, PROMPT:position].view(CountedArray)
        assert grammar.mask(output, bits_W) is MADE
        assert CountedArray.read <= 1
        tables.append(np.asarray([0]), np.asarray([position]), np.asarray([tokens.index(b"ab"[position % 2 :][:1])]))
    tables.append(np.asarray([0]), np.asarray([PROMPT + 7]), np.asarray([tokens.index(b"a")]))
    CountedArray.read = 0
    assert grammar.mask(tables.tokens[0, PROMPT:1000].view(CountedArray), bits_W) is MADE
    assert CountedArray.read == 1000 - PROMPT - 7  # from the token on that was written again


@given(seed=st.integers(0, 100_000))
@examples(25)
def test_whatever_is_written_the_mask_is_of_the_tokens_there(
    seed: int,
    vocabulary: TokenVocabulary,
    tokens: list[bytes],
) -> None:
    """Tokens are drawn, drafts written and judged, earlier ones replaced, and the tables grow between."""
    chance = random.Random(seed)
    tables = table(Grammar(form=JSON, text=json.dumps(PERSON), vocabulary=vocabulary))
    length = PROMPT
    for _ in range(60):
        made, bits = mask_at(tables, length)
        assert (made, bits) == fresh_mask(tables, length)
        if made is not MADE or length > 200:
            length = PROMPT + chance.randrange(max(1, length - PROMPT))
            continue
        allowed = np.flatnonzero(np.unpackbits(np.frombuffer(bits, dtype=np.uint8), bitorder="little"))
        token = int(chance.choice(allowed.tolist()))
        what = chance.random()
        if what < 0.2:  # drafts, of which the first may stand
            drafts = [chance.choice([token, chance.randrange(V - 1)]), *(chance.randrange(V - 1) for _ in range(3))]
            tables.apply([WriteTokens(0, length, drafts)])
            for i in range(1, 5):
                assert mask_at(tables, length + i) == fresh_mask(tables, length + i)
        elif what < 0.3:
            tables.append(np.asarray([0]), np.asarray([chance.randrange(PROMPT, length + 1)]), np.asarray([token]))
        elif what < 0.4:
            for _ in tables.grow(tables.max_length + 64, 1):
                pass
        tables.append(np.asarray([0]), np.asarray([length]), np.asarray([token]))
        length += 1


def test_a_mask_of_another_vocabulary_is_off(vocabulary: TokenVocabulary) -> None:
    tables = table(Grammar(form=REGEX, text="a", vocabulary=vocabulary))
    grammar = tables.grammars[0]
    assert grammar is not None
    assert grammar.mask(tables.tokens[0, :0], np.zeros(WORDS + 1, dtype=np.uint32)) is OFF


@pytest.mark.parametrize("count", [1, 3])
def test_the_memory_of_masks_is_used_again(count: int) -> None:
    memory = MaskMemory()
    first = memory.take(3, WORDS)
    assert memory.take(count, WORDS) is first
    assert memory.nbytes == 3 * WORDS * 4
    assert memory.take(4, WORDS).shape == (4, WORDS)
    assert memory.take(1, 2).shape == (4, 2)


def test_rows_are_counted_that_have_a_grammar(vocabulary: TokenVocabulary) -> None:
    grammar = Grammar(form=REGEX, text="a", vocabulary=vocabulary)
    tables = Tables(2, 16, 1, 16)
    found = []
    for row, one in ((0, grammar), (1, None), (1, grammar), (0, None), (0, None), (1, grammar), (1, None)):
        tables.apply([SetSampling(row, 1, SamplingParams(grammar=one))])
        found.append(tables.constrained)
    assert found == [1, 1, 2, 1, 1, 1, 0]


FIXED = {
    "type": "object",
    "properties": {
        "temperature_of_the_day": {"enum": ["exceptionally warm", "exceptionally cold"]},
        "b": {"const": "always"},
    },
    "required": ["temperature_of_the_day", "b"],
    "additionalProperties": False,
}


@claim("A token is computed as a forced one only where the grammar allows no other", of="structured-output")
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("schema", [PERSON, FIXED, {"enum": ["yes, of course", "yes, perhaps"]}])
def test_forced_tokens_are_the_only_ones_and_change_no_mask(
    vocabulary: TokenVocabulary, tokens: list[bytes], seed: int, schema: dict[str, Any]
) -> None:
    chance = random.Random(seed)
    text = json.dumps(schema)
    tables = table(Grammar(form=JSON, text=text, vocabulary=vocabulary, forced=True))
    row = tables.grammars[0]
    assert row is not None
    length, forced = PROMPT, list[int]()
    found = 0
    while True:
        made, bits = mask_at(tables, length)
        assert (made, bits) == fresh_mask(tables, length)
        if made is not MADE:
            break
        allowed = np.flatnonzero(np.unpackbits(np.frombuffer(bits, dtype=np.uint8), bitorder="little")).tolist()
        if forced:
            assert allowed == forced[:1]
        token = int(chance.choice(allowed))
        tables.append(np.asarray([0]), np.asarray([length]), np.asarray([token]))
        length += 1
        forced = forced[1:] or row.forced(tables.tokens[0, PROMPT:length])
        found += bool(forced)
        assert vocabulary.ends[0] not in forced
    assert found > 10


def test_tokens_are_forced_only_if_wanted(vocabulary: TokenVocabulary, tokens: list[bytes]) -> None:
    for forced in (False, True):
        tables = table(Grammar(form=REGEX, text="abcabc", vocabulary=vocabulary, forced=forced))
        row = tables.grammars[0]
        assert row is not None
        assert row.forced(tables.tokens[0, PROMPT:PROMPT]) == []  # no mask was made yet
        assert mask_at(tables, PROMPT)[0] is MADE
        assert bool(row.forced(tables.tokens[0, PROMPT:PROMPT])) == forced
        tables.apply([WriteTokens(0, PROMPT, [vocabulary.ends[0]])])
        assert row.forced(tables.tokens[0, PROMPT : PROMPT + 1]) == []
        tables.apply([WriteTokens(0, PROMPT, [tokens.index(b"c")])])
        assert row.forced(tables.tokens[0, PROMPT : PROMPT + 1]) == []
