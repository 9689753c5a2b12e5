"""Constrained decoding: masks of allowed tokens, one bit for each, of all drawn positions.

``row_grammars.py`` makes the mask of one row. Back ends apply the masks (``argmax`` and ``allowed``); without kernels of
their own they do it by the functions here. Legend: N drawn positions, V vocabulary, W words of 32 tokens, M masks, K allowed
tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .row_grammars import MADE, OFF, OUTSIDE, RowCalls, RowGrammar

FREE = -1  # in place of the number of a mask: all tokens are allowed


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
    grammars: Sequence[RowGrammar | RowCalls | None],
    tokens: Any,
    prompt_length: Any,
    vocabulary: int,
    memory: MaskMemory,
) -> TokenMasks | None:
    """Return the masks of the drawn positions; None: none is needed.

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
    return TokenMasks(bits_MW, which_N, off) if off or (which_N != FREE).any() else None


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
