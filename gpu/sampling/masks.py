"""Constrained decoding: masks of allowed tokens, one bit for each, and the grammars of rows that they are made from.

A row's state is never stored nor sent: it follows from the grammar and the tokens behind the prompt, which the token table
has. A matcher knows which tokens it has consumed, and takes what is missing, or goes back where a draft did not stand. Back
ends apply the masks (``argmax`` and ``allowed``); without kernels of their own they do it by the functions here. Legend: N
drawn positions, V vocabulary, W words of 32 tokens, M masks, K allowed tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...policies.drafts.options import MOST_FORCED
from ...policies.plan.grammar import Grammar
from .grammars import GrammarStore

if TYPE_CHECKING:
    from llguidance import LLMatcher

FREE = -1  # in place of the number of a mask: all tokens are allowed
MADE = "made"  # the mask can be applied
ENDED = "ended"  # the answer has ended before, and what is drawn now is dropped
OUTSIDE = "outside"  # the tokens before are not in the language; only drafts that do not stand may be so
OFF = "off"  # the mask cannot be made, so nothing may be drawn


class RowGrammar:
    """The grammar of one row of the tables, with the state that its tokens lead to.

    A mask costs the same however long the answer is, unless earlier tokens have changed.
    """

    __slots__ = ("_consumed", "_ends", "_grammar", "_matcher", "_same", "_store", "_words")

    def __init__(self, grammar: Grammar, store: GrammarStore) -> None:
        self._grammar, self._store = grammar, store
        self._matcher: LLMatcher | None = None  # None: no token has been drawn yet
        self._consumed: list[int] = []  # the tokens of the answer that the matcher has
        self._same = 0  # leading ones of them that are still in the table
        self._ends = frozenset(grammar.vocabulary.ends)
        self._words = -(-grammar.vocabulary.size // 32)

    def changed(self, place: int) -> None:
        """Note that the table's tokens from this place of the answer on have been written."""
        self._same = min(self._same, max(place, 0))

    def mask(self, output: np.ndarray, bits_W: np.ndarray) -> str:
        """Write the mask behind these tokens of the answer; return ``MADE``, or why there is none."""
        start = min(self._same, output.size)
        new = output[start:].tolist()
        if not self._ends.isdisjoint(new):
            return ENDED
        if bits_W.size != self._words:
            return OFF  # another vocabulary
        if self._matcher is None:
            self._matcher = self._store.matcher(self._grammar.key)
        if self._matcher is None:
            return OFF
        inside = self._follow(self._matcher, start, new)
        if inside:
            self._matcher.unsafe_compute_mask_ptr(bits_W.ctypes.data, bits_W.nbytes)
        if self._matcher.is_error() and not self._matcher.is_accepting():
            self._forget()  # perhaps behind a draft that does not stand
            return OFF
        if inside and self._grammar.to_the_end:
            self._without_ends(bits_W)
        return MADE if inside else OUTSIDE

    def forced(self, output: np.ndarray) -> list[int]:
        """Return the tokens that must follow these tokens of the answer, as the grammar leaves no choice; often none.

        They are drafts: the masks at their positions decide.
        """
        if not self._grammar.forced or self._matcher is None:
            return []
        start = min(self._same, output.size)
        new = output[start:].tolist()
        if not self._ends.isdisjoint(new) or not self._follow(self._matcher, start, new):
            return []
        found = self._matcher.compute_ff_tokens()
        if self._matcher.is_error():
            self._forget()
            return []
        end = next((place for place, token in enumerate(found) if token in self._ends), len(found))
        return found[: min(end, MOST_FORCED)]

    def _forget(self) -> None:
        """Forget the state, so that the next mask is made from the beginning."""
        self._matcher = None
        self._consumed.clear()
        self._same = 0

    def _follow(self, matcher: LLMatcher, start: int, new: list[int]) -> bool:
        """Bring the matcher to the state behind ``new``, which follow the ``start`` tokens that have not changed.

        Return whether the grammar allows them.
        """
        consumed = self._consumed
        common, count = 0, min(len(new), len(consumed) - start)
        while common < count and new[common] == consumed[start + common]:
            common += 1
        kept = start + common
        if kept < len(consumed):
            matcher.rollback(len(consumed) - kept)
            del consumed[kept:]
        if rest := new[common:]:
            consumed += rest[: matcher.try_consume_tokens(rest)]
        self._same = len(consumed)
        return len(consumed) == start + len(new)

    def _without_ends(self, bits_W: np.ndarray) -> None:
        """Take the end tokens out of a mask that has others."""
        ends = [(end >> 5, 1 << (end & 31)) for end in self._ends]
        taken = [int(bits_W[word]) & bit for word, bit in ends]
        for word, bit in ends:
            bits_W[word] = int(bits_W[word]) & ~bit
        if not bits_W.any():
            for (word, _), bit in zip(ends, taken, strict=True):
                bits_W[word] = int(bits_W[word]) | bit


class TokenMasks:
    """The masks of the positions of one draw.

    ``bits_MW`` (uint32) has them, and ``which_N`` (int32) their numbers, ``FREE`` for a position without one. ``off``: the
    positions whose mask cannot be made.
    """

    __slots__ = ("bits_MW", "off", "which_N")

    def __init__(self, bits_MW: np.ndarray, which_N: np.ndarray, off: list[int]) -> None:
        self.bits_MW, self.which_N = bits_MW, which_N
        self.off = off

    def of(self, n: int) -> np.ndarray | None:
        """Return the mask of a position; None: it is free."""
        number = self.which_N[n]
        return self.bits_MW[number] if number != FREE else None


class MaskMemory:
    """The memory of the masks of one draw, which the next draw uses again."""

    def __init__(self) -> None:
        self._bits_MW = np.zeros((0, 0), dtype=np.uint32)

    @property
    def nbytes(self) -> int:
        return self._bits_MW.nbytes

    def take(self, count: int, words: int) -> np.ndarray:
        """Return room for ``count`` masks [M, W]."""
        if words != self._bits_MW.shape[1] or count > len(self._bits_MW):
            self._bits_MW = np.zeros((max(count, len(self._bits_MW)), words), dtype=np.uint32)
        return self._bits_MW


def masks(
    rows: Sequence[int],
    positions: Sequence[int],
    grammars: Sequence[RowGrammar | None],
    tokens: Any,
    prompt_length: Any,
    vocabulary: int,
    memory: MaskMemory,
) -> TokenMasks | None:
    """Return the masks of the drawn positions; None: no row has a grammar.

    The positions of a row come in ascending order. One behind a draft that the grammar rejects does not count. The library
    is called for each row: its own pool of threads was slower on two cores, beside the kernels' (``benchmarks/structured``).
    """
    found = [n for n, row in enumerate(rows) if grammars[row] is not None]
    if not found:
        return None
    bits_MW = memory.take(len(found), -(-vocabulary // 32))
    which_N = np.full(len(rows), FREE, dtype=np.int32)
    off: list[int] = []
    seen: set[int] = set()
    for number, n in enumerate(found):
        row = rows[n]
        grammar = grammars[row]
        assert grammar is not None
        made = grammar.mask(tokens[row, int(prompt_length[row]) : positions[n]], bits_MW[number])
        if made is MADE:
            which_N[n] = number
        elif made is OFF or (made is OUTSIDE and row not in seen):
            off.append(n)
        seen.add(row)
    return TokenMasks(bits_MW, which_N, off)


def best_tokens(logits_NV: np.ndarray, masks: TokenMasks | None = None) -> np.ndarray:
    """Return int32 [N]: the best allowed token ids, the lowest one among equal maxima; -1: a mask allows none."""
    best_N: np.ndarray = np.argmax(logits_NV, axis=1).astype(np.int32)
    for n in range(len(best_N)) if masks is not None else ():
        assert masks is not None
        if (bits_W := masks.of(n)) is not None:
            token_K, logits_K = allowed_tokens(logits_NV[n], bits_W)
            best_N[n] = token_K[np.argmax(logits_K)] if token_K.size else -1
    return best_N


def allowed_tokens(logits_V: np.ndarray, bits_W: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids [K] of the tokens that a mask allows, ascending, and their logits [K]."""
    token_K = np.flatnonzero(np.unpackbits(bits_W.view(np.uint8), bitorder="little", count=logits_V.size))
    return token_K, logits_V[token_K]
