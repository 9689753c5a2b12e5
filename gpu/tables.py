"""Persistent tables of a worker: tokens, page slots (block tables) and sampling parameters of every row.

Only the device thread writes them. A plan names rows, never values, so that the next plan can be made while this one runs.
Legend: R rows, M longest sequence in tokens, L KV layers, P pages of the longest sequence.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..policies.plan.grammar import Grammar
from ..policies.plan.sampling import SamplingParams
from ..policies.plan.sweep_plan import Edit, SetPages, SetSampling, WriteTokens
from .errors import ExecutorError
from .sampling.grammars import GrammarStore
from .sampling.masks import MaskMemory
from .sampling.pooling import RowPool
from .sampling.row_grammars import RowCalls, RowGrammar, row_grammar
from .sampling.rules import RowRules

SLICE = 4 << 20  # bytes that are copied between two sweeps
Ints = NDArray[Any]
Arrays = tuple[Ints, Ints]  # tokens, slots


class Tables:
    """``tokens`` int32 [R, M], ``slots`` int32 [R, L + 1, P], ``sampling``, ``rules``, ``grammars``, ``pools`` and
    ``prompt_length`` [R].

    The layer of slots behind a row's KV is for hidden states that the row keeps at an exit, and the next one for the ones it
    reads. A row that keeps some has fewer layers than the longest chain, so one layer more is enough.

    Zeroed arrays come from the operating system page by page, so a row that is never used costs nothing.
    """

    def __init__(self, rows: int, max_length: int, kv_layers: int, page_size: int) -> None:
        self.rows = rows
        self.page_size = page_size
        self._adopt(self._make(max_length, kv_layers))
        self.prompt_length = np.zeros(rows, dtype=np.int32)
        self.sampling: list[SamplingParams] = [SamplingParams(temperature=0.0)] * rows
        self.rules: list[RowRules | None] = [None] * rows  # the rules of ``sampling``, as arrays
        self.grammars: list[RowGrammar | RowCalls | None] = [None] * rows  # the grammars of ``sampling``, with their states
        self.constrained = 0  # rows that have one
        self.pools: list[RowPool | None] = [None] * rows  # of rows that give a vector, what they have of it
        self.pooled = 0  # rows that give one
        self.compiled = GrammarStore()
        self.masks = MaskMemory()

    def _make(self, max_length: int, kv_layers: int) -> Arrays:
        slots = np.zeros((self.rows, kv_layers + 1, -(-max_length // self.page_size)), dtype=np.int32)
        return np.zeros((self.rows, max_length), dtype=np.int32), slots

    def _adopt(self, arrays: Arrays) -> None:
        self.tokens, self.slots = arrays
        self.max_length = self.tokens.shape[1]
        self.kv_layers = self.slots.shape[1] - 1
        # arrays that edits are written to; while growing, the second one is being filled to replace the first
        self._written = [arrays]

    def grow(self, max_length: int, kv_layers: int) -> Generator[None, None, bool]:
        """Grow to at least this length and depth, keeping all content.

        Returns False if they are that large already, or if another growth replaced this one. A step copies ``SLICE`` bytes
        of rows in use, or one longer row of a layer. Between two steps the old tables stay in use, and edits are made in
        both.
        """
        tokens_RM, slots_RLP = self.tokens, self.slots
        length = tokens_RM.shape[1]
        layers = self.kv_layers
        pages = slots_RLP.shape[2]
        if max_length <= length and kv_layers <= layers:
            return False
        larger = larger_RM, larger_RLP = self._make(max(max_length, length), max(kv_layers, layers))
        self._written, copied = [(tokens_RM, slots_RLP), larger], 0
        try:
            for row in np.flatnonzero(self.prompt_length):  # other rows have never had a sequence
                lines = [(larger_RM[row, :length], tokens_RM[row])]
                lines += zip(larger_RLP[row, : layers + 1, :pages], slots_RLP[row], strict=True)
                for line, known in lines:
                    if copied and copied + known.nbytes > SLICE:
                        yield
                        if self._written[-1] is not larger:
                            return False
                        copied = 0
                    line[:] = known
                    copied += known.nbytes
            self._adopt(larger)
        finally:
            if self._written[-1] is larger:
                self._written = [(self.tokens, self.slots)]
        return True

    def apply(self, edits: Sequence[Edit]) -> None:
        """Perform table edits in order. Raises ``ExecutorError`` for one that lies outside the tables."""
        for edit in edits:
            if not 0 <= edit.row < self.rows:
                raise ExecutorError(f"row {edit.row} is outside the table of {self.rows} rows: a plan is wrong")
            match edit:
                case WriteTokens(row, position, tokens):
                    self._check(position, len(tokens), self.max_length, "tokens", row)
                    for tokens_RM, _ in self._written:
                        tokens_RM[row, position : position + len(tokens)] = tokens
                    self._changed(row, position)
                case SetPages(row, layer, page, slots):
                    self._check(layer, len(slots), self.slots.shape[1], "KV layers", row)
                    self._check(page, 1, self.slots.shape[2], "pages", row)
                    for _, slots_RLP in self._written:
                        slots_RLP[row, layer : layer + len(slots), page] = slots
                case SetSampling(row, prompt_length, params):
                    self.prompt_length[row] = prompt_length
                    self.sampling[row] = params
                    self.rules[row] = RowRules(params.rules) if params.rules is not None else None
                    self._constrain(row, params.grammar)
                    self.pooled += (params.pooling is not None) - (self.pools[row] is not None)
                    self.pools[row] = RowPool(params.pooling) if params.pooling is not None else None

    def append(self, row_N: Ints, position_N: Ints, token_N: Ints) -> None:
        """Write a sampled token for each of these rows."""
        for tokens_RM, _ in self._written:
            tokens_RM[row_N, position_N] = token_N
        if self.constrained:
            for row, position in zip(row_N.tolist(), position_N.tolist(), strict=True):
                self._changed(row, position)

    def _constrain(self, row: int, grammar: Grammar | None) -> None:
        """Set or drop the grammar of a row."""
        self.constrained += (grammar is not None) - (self.grammars[row] is not None)
        self.grammars[row] = row_grammar(grammar, self.compiled) if grammar is not None else None

    def _changed(self, row: int, position: int) -> None:
        """Note that the tokens of a row were written from a position on."""
        if (grammar := self.grammars[row]) is not None:
            grammar.changed(position - int(self.prompt_length[row]))

    @staticmethod
    def _check(first: int, count: int, limit: int, what: str, row: int) -> None:
        if first < 0 or first + count > limit:
            raise ExecutorError(f"row {row} has {limit} {what}; an edit of {count} from {first} on is outside")
