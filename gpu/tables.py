"""The persistent tables of a worker: tokens, page slots and sampling of every row. Only the device thread writes them.

A plan names rows, never values, so that the next plan can be made while this one runs. Legend: R rows, M longest sequence
in tokens, L KV layers, P pages of the longest sequence.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from blockwright.gpu.errors import ExecutorError
from blockwright.gpu.sampling.rules import RowRules
from blockwright.policies.plan.sampling import SamplingParams
from blockwright.policies.plan.sweep_plan import Edit, SetPages, SetSampling, WriteTokens


class Tables:
    """``tokens`` int32 [R, M], ``slots`` int32 [R, L, P], ``sampling``, ``rules`` and ``prompt_length`` [R].

    Zeroed arrays come from the operating system page by page, so a row that is never used costs nothing.
    """

    def __init__(self, rows: int, max_length: int, kv_layers: int, page_size: int) -> None:
        self.rows = rows
        self.page_size = page_size
        self._make(max_length, kv_layers)
        self.prompt_length = np.zeros(rows, dtype=np.int32)
        self.sampling: list[SamplingParams] = [SamplingParams(temperature=0.0)] * rows
        self.rules: list[RowRules | None] = [None] * rows  # those of ``sampling``, as arrays

    def _make(self, max_length: int, kv_layers: int) -> None:
        self.max_length = max_length
        self.tokens = np.zeros((self.rows, max_length), dtype=np.int32)
        self.slots = np.zeros((self.rows, kv_layers, -(-max_length // self.page_size)), dtype=np.int32)

    def grow(self, max_length: int, kv_layers: int) -> bool:
        """At least so long and deep, with all that they hold. False: they were. Costs a copy of the rows in use."""
        tokens_RM, slots_RLP = self.tokens, self.slots
        length, layers, pages = tokens_RM.shape[1], *slots_RLP.shape[1:]
        if max_length <= length and kv_layers <= layers:
            return False
        self._make(max(max_length, length), max(kv_layers, layers))
        for row in np.flatnonzero(self.prompt_length):  # others have never had a sequence
            self.tokens[row, :length] = tokens_RM[row]
            self.slots[row, :layers, :pages] = slots_RLP[row]
        return True

    def apply(self, edits: Sequence[Edit]) -> None:
        """Perform table edits in order. Raises ``ExecutorError`` for one that lies outside the tables."""
        for edit in edits:
            if not 0 <= edit.row < self.rows:
                raise ExecutorError(f"row {edit.row} is outside the table of {self.rows} rows: a plan is wrong")
            match edit:
                case WriteTokens(row, position, tokens):
                    self._check(position, len(tokens), self.max_length, "tokens", row)
                    self.tokens[row, position : position + len(tokens)] = tokens
                case SetPages(row, layer, page, slots):
                    self._check(layer, len(slots), self.slots.shape[1], "KV layers", row)
                    self._check(page, 1, self.slots.shape[2], "pages", row)
                    self.slots[row, layer : layer + len(slots), page] = slots
                case SetSampling(row, prompt_length, params):
                    self.prompt_length[row] = prompt_length
                    self.sampling[row] = params
                    self.rules[row] = RowRules(params.rules) if params.rules is not None else None

    @staticmethod
    def _check(first: int, count: int, limit: int, what: str, row: int) -> None:
        if first < 0 or first + count > limit:
            raise ExecutorError(f"row {row} has {limit} {what}; an edit of {count} from {first} on is outside")
