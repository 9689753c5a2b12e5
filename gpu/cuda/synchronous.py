"""Synchronous computation on a card, of batches whose hidden states are on the host: each call waits for its result.

Proofs of bits use it, between sweeps. Legend: T tokens, N rows, D hidden width, V vocabulary.
"""

from __future__ import annotations

import numpy as np
import torch

from ..backend import Batch
from ..sweep_columns import Rows
from .backend import GATHERED, HEADED, CudaBackend
from .components import CudaRun, HeadPart
from .forward import LOGITS
from .plan_columns import PlanColumns, head_step

STEP = "synchronous step"  # a buffer


class SynchronousCard:
    """Runs and heads of one back end, computed while the caller waits."""

    def __init__(self, backend: CudaBackend) -> None:
        self._backend = backend

    def forward(self, run: CudaRun, batch: Batch) -> None:
        """Run all components of a body over a batch, whose hidden states are overwritten (``HostBackend.forward``)."""
        backend, columns = self._backend, PlanColumns()
        transfers = backend.transfers
        hidden_TD = batch.hidden_TD
        offset_N = np.cumsum(batch.count_N, dtype=np.int64) - batch.count_N
        at = Rows(range(len(batch.row_N)), batch.row_N, batch.start_N, batch.count_N, offset_N)
        planned = columns.step(at, backend.ops.tile_rows, run.groups, [])
        with backend.streams.current(backend.compute):
            columns.send(transfers, STEP)
            transfers.send(GATHERED, hidden_TD.view(torch.uint8).numpy())
            backend.forward.run(run.parts, planned.on(columns, backend.tables), backend.scratch[GATHERED])
        (fetched,) = transfers.fetch([backend.scratch.tensor(GATHERED, hidden_TD.nbytes)])
        hidden_TD.view(torch.uint8).view(-1).copy_(fetched)

    def logits(self, run: CudaRun, hidden_ND: torch.Tensor) -> torch.Tensor:
        """Return float32 logits [N, V] of a head."""
        backend, found = self._backend, []
        (part,) = run.parts
        assert isinstance(part, HeadPart), "logits are a head's"
        for some in torch.split(hidden_ND, backend.heads):
            with backend.streams.current(backend.compute):
                backend.transfers.send(HEADED, some.contiguous().view(torch.uint8).numpy())
                backend.forward.logits(part, head_step(len(some)), backend.scratch[HEADED])
            (fetched,) = backend.transfers.fetch([backend.scratch.tensor(LOGITS, 4 * len(some) * run.vocabulary)])
            found.append(fetched.view(torch.float32).view(len(some), -1).clone())
        return torch.cat(found)
