"""Draws of rows that a card cannot draw: the host waits for their logits and for the tokens before them.

The host's sampler draws them (``gpu/sweep_draws.py``), and the drawn tokens go back to the card's table. Legend: N batch
rows, T tokens, D hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ...policies.plan.sweep_plan import WriteTokens
from ..sampling.masks import TokenMasks
from ..sweep_columns import Ints, Rows, SweepColumns
from ..sweep_draws import SweepDraws
from ..tables import Tables
from .backend import HEADED, CudaBackend, hidden_name
from .components import CudaRun
from .forward import LOGITS
from .plan_columns import PlanColumns

EDIT = "edit"  # a buffer


class HostHeads:
    """Logits on the host, as ``SweepDraws`` takes them: hidden states are picked by their places alone."""

    def __init__(self, backend: CudaBackend) -> None:
        self._backend = backend

    def pick(self, width: int, token_N: Ints) -> torch.Tensor:
        """Return the places of tokens in the hidden states."""
        return torch.from_numpy(token_N.astype(np.int32))

    def logits(self, run: Any, hidden_ND: torch.Tensor, delta_N: np.ndarray | None = None) -> torch.Tensor:
        """Wait for the logits of the places that ``pick`` returned."""
        rows, backend = len(hidden_ND), self._backend
        found = torch.empty(rows, run.vocabulary)
        for first in range(0, rows, backend.heads):
            some = hidden_ND[first : first + backend.heads].numpy()
            columns = PlanColumns()
            planned = columns.head(some, [] if delta_N is None else delta_N[first : first + len(some)].tolist())
            columns.send(backend.transfers, EDIT)
            backend.head(run, *planned.on(columns))
            (came,) = backend.transfers.fetch([backend.scratch.tensor(LOGITS, 4 * len(some) * run.vocabulary)])
            found[first : first + len(some)] = came.view(torch.float32).view(len(some), -1)
        return found

    def states(self, run: Any, hidden_ND: torch.Tensor) -> np.ndarray:
        """Wait for the hidden states of the places that ``pick`` returned, and return the states of an embedder's head."""
        backend, found = self._backend, []
        for some in torch.split(hidden_ND, backend.heads):
            columns = PlanColumns()
            index = columns.add(some.numpy())
            columns.send(backend.transfers, EDIT)
            source, picked = backend.scratch[hidden_name(run.width)], backend.scratch[HEADED]
            backend.ops.gather(source, columns.at(index), picked, len(some), run.width)
            nbytes = len(some) * run.width * backend.dtype.itemsize
            (came,) = backend.transfers.fetch([backend.scratch.tensor(HEADED, nbytes)])
            found.append(backend.states(run, came.view(backend.dtype).view(len(some), -1)))
        return np.concatenate(found)

    def argmax(self, logits_NV: torch.Tensor, masks: TokenMasks | None = None) -> np.ndarray:
        return self._backend.argmax(logits_NV, masks)

    def allowed(self, logits_V: np.ndarray, mask_W: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._backend.allowed(logits_V, mask_W)


class WaitingDraws:
    """The draws of one sweep on the host."""

    def __init__(self, backend: CudaBackend, tables: Tables, heads: HostHeads, columns: SweepColumns) -> None:
        self._backend, self._tables = backend, tables
        self._columns = columns
        self.draws = SweepDraws(columns, tables, heads, heads.pick)

    def sample(self, run: CudaRun, at: Rows, delta: Sequence[int]) -> None:
        """Draw as ``Device.sample`` says."""
        self._prepare(at)
        self.draws.sample(run, run.width, at, delta)
        self._write_back(at)

    def draft(self, run: CudaRun, at: Rows, delta: Sequence[int], place: int) -> None:
        """Draw as ``Device.draft`` says."""
        self._prepare(at)
        self.draws.draft(run, run.width, at, delta, place)
        self._write_back(at)
        targets = {row.batch: row.target for row in self._columns.plan.draft_rows}
        theirs = [(i, targets[n]) for i, n in enumerate(at.batch) if n in targets]
        if theirs:
            some = [i for i, _ in theirs]
            row_N = np.asarray([self._columns.row_N[target] for _, target in theirs])
            self._write(row_N, at.start_N[some] + at.count_N[some], np.ones(len(some), dtype=np.int32))

    def pool(self, run: CudaRun, at: Rows) -> None:
        """Pool as ``Device.pool`` says."""
        self.draws.pool(run, run.width, at)

    def score(self, run: CudaRun, at: Rows, delta: Sequence[int]) -> None:
        """Compute as ``Device.score`` says."""
        self.draws.score(run, run.width, at, delta)

    def _prepare(self, at: Rows) -> None:
        """Bring the tokens up to each row's last position, with its drafts, into the host's tables."""
        end_N = (at.start_N + at.count_N).tolist()
        known = [self._backend.tables.known(row, end) for row, end in zip(at.row_N.tolist(), end_N, strict=True)]
        for row, came in zip(at.row_N.tolist(), self._backend.transfers.fetch(known), strict=True):
            tokens: Any = came.view(torch.int32).numpy()
            self._tables.apply([WriteTokens(row, 0, tokens)])

    def _write_back(self, at: Rows) -> None:
        """Write to the card what was drawn behind the first position of each row."""
        self._write(at.row_N, at.start_N + 1, at.count_N)

    def _write(self, row_N: Ints, first_N: Ints, count_N: Ints) -> None:
        edits = []
        for row, first, count in zip(row_N.tolist(), first_N.tolist(), count_N.tolist(), strict=True):
            edits.append(WriteTokens(row, first, self._tables.tokens[row, first : first + count].tolist()))
        index_E, value_E = self._backend.tables.edits(edits)
        if index_E.size:
            columns = PlanColumns()
            index, value = columns.add(index_E), columns.add(value_E)
            columns.send(self._backend.transfers, EDIT)
            self._backend.ops.edit(self._backend.tables.tokens, columns.at(index), columns.at(value), index_E.size)
