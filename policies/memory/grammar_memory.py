"""The memory of compiled grammars and their tables of tokens: a part of the worker's pool, in sizes by estimate.

A grammar that a running sequence has is pinned. The others are kept for the next request while that is little, and give way
to pages, parameters and other grammars, the least recently used first. A table of tokens stays as long as a grammar of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..plain import Plain
from ..plan.grammar import Grammar
from .chunks import ChunkPool

IDLE = 64  # grammars that are kept although no sequence has them
IDLE_BYTES = 64 << 20  # of these, and at most the following part of the worker's budget
IDLE_PART = 8


@dataclass(frozen=True, slots=True)
class CompiledSize:
    """A grammar in memory: its bytes, its table of tokens, and that one's bytes."""

    nbytes: int
    table: bytes
    table_bytes: int


class GrammarMemory:
    """The owner of the chunks. ``counted``: False if grammars lie elsewhere, as beside the memory of a card."""

    def __init__(self, pool: ChunkPool, *, counted: bool) -> None:
        self._pool, self._counted = pool, counted
        self._grammars: dict[bytes, CompiledSize] = {}  # by key
        self._users: dict[bytes, int] = {}  # running sequences with each grammar that has some
        self._idle: list[bytes] = []  # the ones without a user, the last used last
        self.chunks: list[int] = []
        self._evicted: list[bytes] = []  # without an effect so far; empty between two calls of the machine

    @property
    def nbytes(self) -> int:
        """The bytes of all grammars and tables."""
        return self._bytes_without(frozenset())

    def _bytes_without(self, left_out: frozenset[bytes]) -> int:
        kept = [one for key, one in self._grammars.items() if key not in left_out]
        return sum(one.nbytes for one in kept) + sum({one.table: one.table_bytes for one in kept}.values())

    def _chunks_of(self, nbytes: int) -> int:
        return -(-nbytes // self._pool.chunk_bytes) if self._counted else 0

    def chunks_alone(self, grammar: Grammar | None) -> int:
        """Return the chunks that a grammar takes with no other one here."""
        return 0 if grammar is None else self._chunks_of(grammar.nbytes + grammar.vocabulary.nbytes)

    def lacks(self, grammar: Grammar | None) -> int:
        """Return the chunks that a grammar takes in addition to the present ones."""
        if grammar is None or grammar.key in self._grammars:
            return 0
        tables = {one.table for one in self._grammars.values()}
        table = 0 if grammar.vocabulary.key in tables else grammar.vocabulary.nbytes
        return self._chunks_of(self.nbytes + grammar.nbytes + table) - len(self.chunks)

    def reclaimable(self, kept: Grammar | None = None) -> int:
        """Return the chunks that come back if all grammars without a user go but ``kept``."""
        gone = frozenset(self._idle) - ({kept.key} if kept is not None else set())
        return len(self.chunks) - self._chunks_of(self._bytes_without(gone)) if gone else 0

    def pin(self, grammar: Grammar) -> bool:
        """Note that a further running sequence has a grammar; return whether it is new here.

        The pool must have the chunks that it ``lacks``.
        """
        new = grammar.key not in self._grammars
        if new:
            table = grammar.vocabulary
            self._grammars[grammar.key] = CompiledSize(grammar.nbytes, table.key, table.nbytes)
        elif grammar.key not in self._users:
            self._idle.remove(grammar.key)
        self._users[grammar.key] = self._users.get(grammar.key, 0) + 1
        self._fill()
        return new

    def unpin(self, key: bytes, *, keep: bool) -> None:
        """Note that a sequence has left. ``keep``: a grammar without others is kept for the next request."""
        self._users[key] -= 1
        if self._users[key]:
            return
        del self._users[key]
        self._idle.append(key)
        if not keep:
            self._evict(key)
        limit = min(IDLE_BYTES, self._pool.total * self._pool.chunk_bytes // IDLE_PART)
        while len(self._idle) > IDLE or sum(self._grammars[idle].nbytes for idle in self._idle) > limit:
            self.evict()

    def evict(self, kept: Grammar | None = None) -> bool:
        """Evict the grammar without a user that was used least recently, but not ``kept``; return False if there is none."""
        key = next((key for key in self._idle if kept is None or key != kept.key), None)
        if key is not None:
            self._evict(key)
        return key is not None

    def _evict(self, key: bytes) -> None:
        del self._grammars[key]
        self._idle.remove(key)
        self._evicted.append(key)
        self._fill()

    def _fill(self) -> None:
        """Take or return chunks, so that there are as many as the bytes need."""
        need = self._chunks_of(self.nbytes)
        if need < len(self.chunks):
            self._pool.return_reserved(self.chunks[need:])
            del self.chunks[need:]
        elif need > len(self.chunks):
            more = self._pool.reserve(need - len(self.chunks))
            assert more is not None, "the pool lacks room for a grammar that fitted a moment ago"
            self.chunks.extend(more)

    def take_evicted(self) -> list[bytes]:
        """Return the keys that were evicted since the last call."""
        evicted, self._evicted = self._evicted, []
        return evicted

    def fork(self, pool: ChunkPool) -> GrammarMemory:
        copy = GrammarMemory(pool, counted=self._counted)
        copy._grammars, copy._users = self._grammars.copy(), self._users.copy()
        copy._idle, copy.chunks = self._idle.copy(), self.chunks.copy()
        return copy

    def snapshot(self) -> dict[str, Plain]:
        grammars: list[Plain] = [[key, one.nbytes, one.table, one.table_bytes] for key, one in self._grammars.items()]
        return {
            "counted": self._counted,
            "grammars": grammars,
            "users": [[key, count] for key, count in self._users.items()],
            "idle": self._idle.copy(),
            "chunks": self.chunks.copy(),
        }

    @classmethod
    def restore(cls, data: dict[str, Plain], pool: ChunkPool) -> GrammarMemory:
        memory = cls(pool, counted=data["counted"])
        memory._grammars = {key: CompiledSize(*sizes) for key, *sizes in data["grammars"]}
        memory._users = dict(data["users"])
        memory._idle, memory.chunks = list(data["idle"]), list(data["chunks"])
        return memory

    def check(self, users: dict[bytes, int]) -> None:
        """Raise AssertionError unless the chunks are as many as the grammars need. ``users``: of the sequences that run."""
        assert self._users == users, "a grammar is pinned wrongly"
        assert sorted([*self._idle, *self._users]) == sorted(self._grammars), "a grammar is lost"
        assert not self._evicted, "a grammar was evicted, and no effect says so"
        assert len(self.chunks) == self._chunks_of(self.nbytes), "the chunks of grammars are counted wrongly"
