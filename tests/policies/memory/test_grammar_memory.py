"""The memory of compiled grammars: counted in chunks, pinned by users, and given up in the order of their last use."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockwright.policies.memory import grammar_memory
from blockwright.policies.memory.chunks import ChunkPool
from blockwright.policies.memory.grammar_memory import GrammarMemory
from blockwright.policies.plan.grammar import BYTES_OF_TEXT, BYTES_OF_TOKEN, GRAMMAR_BYTES, REGEX, Grammar, TokenVocabulary
from blockwright.tests.parts import examples

CHUNK = 4096
LETTERS = "abcdef"


def grammar(text: str, size: int = 100) -> Grammar:
    return Grammar(form=REGEX, text=text, vocabulary=TokenVocabulary(file="", digest=b"", size=size, ends=[0]))


def make(chunks: int = 1000, *, counted: bool = True) -> tuple[ChunkPool, GrammarMemory]:
    pool = ChunkPool(chunks, CHUNK)
    return pool, GrammarMemory(pool, counted=counted)


def test_a_table_is_counted_once_and_goes_with_its_last_grammar() -> None:
    pool, memory = make()
    one, other = grammar("a"), grammar("bb")
    assert (
        memory.lacks(one) == memory.chunks_alone(one) == -(-(GRAMMAR_BYTES + BYTES_OF_TEXT + 100 * BYTES_OF_TOKEN) // CHUNK)
    )
    assert memory.pin(one)
    assert not memory.pin(one)
    assert memory.pin(other)
    assert memory.nbytes == 2 * GRAMMAR_BYTES + 3 * BYTES_OF_TEXT + 100 * BYTES_OF_TOKEN
    assert pool.free == 1000 - -(-memory.nbytes // CHUNK)
    memory.unpin(one.key, keep=False)
    assert memory.take_evicted() == []  # another sequence has it
    memory.unpin(one.key, keep=False)
    memory.unpin(other.key, keep=True)
    assert (memory.take_evicted(), memory.reclaimable(), memory.reclaimable(other)) == ([one.key], 1000 - pool.free, 0)
    assert not memory.evict(other)
    assert memory.evict()
    assert (memory.take_evicted(), pool.free, memory.nbytes) == ([other.key], 1000, 0)


@pytest.mark.parametrize(("limit", "kept"), [("IDLE", "cde"), ("IDLE_BYTES", "cde"), ("IDLE_PART", "cde")])
def test_what_has_no_user_is_little_and_was_used_last(monkeypatch: pytest.MonkeyPatch, limit: str, kept: str) -> None:
    one = GRAMMAR_BYTES + BYTES_OF_TEXT
    monkeypatch.setattr(grammar_memory, limit, {"IDLE": 3, "IDLE_BYTES": 3 * one, "IDLE_PART": 20}[limit])
    _, memory = make()
    for text in "abcde":
        memory.pin(grammar(text))
    for text in "bacde":
        memory.unpin(grammar(text).key, keep=True)
    assert memory.take_evicted() == [grammar(text).key for text in "ba"]
    assert [text for text in "abcde" if not memory.lacks(grammar(text))] == list(kept)


def test_a_card_has_its_grammars_elsewhere() -> None:
    pool, memory = make(1, counted=False)
    memory.pin(grammar("a"))
    assert (pool.free, memory.lacks(grammar("b")), memory.reclaimable()) == (1, 0, 0)
    assert memory.nbytes > 0


@examples(100)
@given(moves=st.lists(st.tuples(st.sampled_from("+-e"), st.sampled_from(LETTERS), st.booleans()), max_size=40))
def test_nothing_is_lost_or_counted_twice(moves: list[tuple[str, str, bool]]) -> None:
    pool, memory = make(200)
    users: dict[str, int] = {}
    there: set[bytes] = set()
    for move, letter, flag in moves:
        one = grammar(letter, 100 + flag) if move == "e" else grammar(letter)
        if move == "+" and memory.lacks(one) <= pool.free:
            assert memory.pin(one) is (one.key not in there)
            there.add(one.key)
            users[letter] = users.get(letter, 0) + 1
        elif move == "-" and users.get(letter):
            memory.unpin(one.key, keep=flag)
            users[letter] -= 1
        elif move == "e":
            before, back = pool.free, memory.reclaimable()
            while memory.evict():
                pass
            assert pool.free == before + back
        gone = memory.take_evicted()
        assert {*gone} <= there
        there -= {*gone}
        expected = {grammar(name).key: count for name, count in users.items() if count}
        memory.check(expected)
        pool.check(memory.chunks)
        copy = GrammarMemory.restore(memory.snapshot(), ChunkPool.restore(pool.snapshot()))
        copy.check(expected)
        assert copy.snapshot() == memory.snapshot() == memory.fork(pool.fork()).snapshot()
