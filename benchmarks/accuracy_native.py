"""Log-probabilities that our kernels compute for a checkpoint in bfloat16, without a worker: one sequence, its KV paged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from blockwright.gpu.backend import Batch
from blockwright.gpu.checkpoint import Checkpoint
from blockwright.gpu.errors import BackendError
from blockwright.gpu.loader import read_tensors
from blockwright.gpu.native import NativeBackend
from blockwright.gpu.tables import Tables

INSTRUCTION_SETS = ("avx512bf16", "avx512", "avx2", "generic")
DTYPE = "bfloat16"
PAGE = 16
CHUNK = 512


def available() -> list[str]:
    """The instruction sets with kernels for bfloat16 that this processor has, best first."""
    found = []
    for name in INSTRUCTION_SETS:
        try:
            NativeBackend(DTYPE, 1, name).close()
        except BackendError:
            continue
        found.append(name)
    return found


class Native:
    """A checkpoint on the native back end."""

    def __init__(self, folder: Path, instruction_set: str, max_length: int) -> None:
        checkpoint = Checkpoint.open(folder)
        self._backend = NativeBackend(DTYPE, 1, instruction_set)
        self._tables = Tables(1, max_length, checkpoint.config.layers, PAGE)
        slots = self._tables.slots
        slots.reshape(-1)[:] = np.random.default_rng(7).permutation(slots.size)
        self._backend.reserve(self._tables, CHUNK, 1)
        specs = checkpoint.specs(PAGE, DTYPE)
        layout = next(spec.component.kv for spec in specs if spec.component.kv is not None)
        self._backend.add_arena(layout, _aligned(slots.size * self._backend.slot_bytes(layout)))
        packed = [self._backend.pack(spec, read_tensors(spec), _aligned(self._backend.packed_bytes(spec))) for spec in specs]
        self._body, self._head = self._backend.compose(packed[:-1], 0), self._backend.compose(packed[-1:], 0)
        self._width = checkpoint.config.hidden

    def logprobs(self, tokens: Sequence[int], given: int) -> torch.Tensor:
        """float64 [tokens, vocabulary]: ``tokens[:given]`` in chunks, the others one by one."""
        self._tables.tokens[0, : len(tokens)] = tokens
        self._tables.prompt_length[0] = given
        starts = [*range(0, given, CHUNK), *range(given, len(tokens))]
        logits = [self._logits(at, end - at) for at, end in zip(starts, [*starts[1:], len(tokens)], strict=True)]
        return torch.log_softmax(torch.cat(logits), -1)

    def _logits(self, start: int, count: int) -> torch.Tensor:
        row_N, start_N, count_N = (np.array([value], dtype=np.int32) for value in (0, start, count))
        hidden_TD = torch.empty(count, self._width, dtype=torch.bfloat16)
        self._backend.forward(self._body, Batch(row_N, start_N, count_N, hidden_TD))
        return self._backend.logits(self._head, hidden_TD).double()


def _aligned(nbytes: int) -> torch.Tensor:
    raw = torch.empty(nbytes + 64, dtype=torch.uint8)
    skip = -raw.data_ptr() % 64
    return raw[skip : skip + nbytes]
