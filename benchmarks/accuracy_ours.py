"""Log-probabilities of a checkpoint by one of our back ends, without a worker: the rows' KV is in pages at random places."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from blockwright.gpu.backend import Batch, HostBackend, Packed
from blockwright.gpu.cpu.native.backend import NativeBackend
from blockwright.gpu.errors import BackendError
from blockwright.gpu.model.config import ComponentSpec
from blockwright.gpu.tables import Tables
from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.gpu.weights.loader import read_rows

INSTRUCTION_SETS = ("amx", "avx512_bf16", "avx512", "avx2", "generic")
CHUNK = 512


def instruction_sets(dtype: str) -> list[str]:
    """Those with kernels for the type that this processor has, best first; none without compiled kernels."""
    found = []
    for name in INSTRUCTION_SETS:
        try:
            NativeBackend(dtype, 1, name).close()
        except BackendError:
            continue
        found.append(name)
    return found


class Loaded:
    """A checkpoint on a back end, its chain cut into runs before the components ``cuts``. Arenas begin full of NaN."""

    def __init__(
        self,
        folder: Path,
        backend: HostBackend,
        *,
        max_length: int,
        rows: int = 1,
        page_size: int = 16,
        max_tokens: int = CHUNK,
        cuts: Sequence[int] = (),
    ) -> None:
        checkpoint = Checkpoint.open(folder)
        self._backend, self._width = backend, checkpoint.config.hidden
        self._tables = Tables(rows, max_length, checkpoint.config.layers, page_size)
        slots = self._tables.slots
        slots.reshape(-1)[:] = np.random.default_rng(7).permutation(slots.size)
        backend.reserve(self._tables, max_tokens, rows)
        specs = checkpoint.specs(page_size, str(backend.dtype).removeprefix("torch."))
        layout = next(spec.component.kv for spec in specs if spec.component.kv is not None)
        backend.add_arena(layout, _aligned(slots.size * backend.slot_bytes(layout)).fill_(0xFF))
        packed = [_packed(backend, spec) for spec in specs]
        layers = np.cumsum([0, *(spec.component.kv is not None for spec in specs)])
        bounds = pairwise([0, *cuts, len(packed) - 1])
        self._runs = [backend.compose(packed[first:last], int(layers[first])) for first, last in bounds]
        self._head = backend.compose(packed[-1:], 0)

    def admit(self, row: int, tokens: Sequence[int], given: int) -> None:
        """A sequence of table row ``row``; ``tokens[:given]`` are its prompt."""
        self._tables.tokens[row, : len(tokens)] = tokens
        self._tables.prompt_length[row] = given

    def logits(self, batch: Sequence[tuple[int, int, int]]) -> torch.Tensor:
        """float32 [tokens, vocabulary] of (row, start, count), a copy."""
        row_N, start_N, count_N = (np.array(column, dtype=np.int32) for column in zip(*batch, strict=True))
        hidden_TD = torch.empty(int(count_N.sum()), self._width, dtype=self._backend.dtype)
        for run in self._runs:
            self._backend.forward(run, Batch(row_N, start_N, count_N, hidden_TD))
        return self._backend.logits(self._head, hidden_TD).clone()

    def logprobs(self, tokens: Sequence[int], given: int) -> torch.Tensor:
        """float64 [tokens, vocabulary]: ``tokens[:given]`` in chunks, the others one by one."""
        self.admit(0, tokens, given)
        bounds = pairwise([*range(0, given, CHUNK), *range(given, len(tokens)), len(tokens)])
        return torch.log_softmax(torch.cat([self.logits([(0, at, end - at)]) for at, end in bounds]).double(), -1)


def _packed(backend: HostBackend, spec: ComponentSpec) -> Packed:
    memory = {}
    for part in backend.parts(spec):
        memory[part.role] = _aligned(part.nbytes)
        backend.pack(part, read_rows(spec.tensors[part.role], 0, part.shape[0]), memory[part.role])
    return backend.assemble(spec, memory)


def _aligned(nbytes: int) -> torch.Tensor:
    raw = torch.zeros(nbytes + 64, dtype=torch.uint8)
    skip = -raw.data_ptr() % 64
    return raw[skip : skip + nbytes]
