"""The contract of a compute back end: torch reference, native CPU kernels, CUDA.

A back end packs components, runs stretches of them over a batch, and owns the layout inside a slot and the packing of
weights; nobody else indexes inside either. It never allocates on the path of a sweep: ``pack`` writes into memory that
it is given, scratch is sized once by ``reserve``.

Shape legend: T tokens of a step, N batch rows of a step, D hidden width, V vocabulary, R table rows, L KV layers of the
worker's longest chain, P pages of the longest sequence, M longest sequence in tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from blockwright.gpu.model.config import ComponentSpec
from blockwright.policies.model.chain import KvLayout


@dataclass(slots=True)
class Batch:
    """One step. All index arrays are C-contiguous int32; tokens of a batch row are consecutive in ``hidden_TD``.

    Batch row n computes positions ``start_N[n] .. start_N[n] + count_N[n] - 1`` of table row ``row_N[n]``; its first token
    is row ``sum(count_N[:n])`` of ``hidden_TD``. KV of these positions is written to, and attention reads positions
    0 .. own position from, the slots ``slots_RLP[row, layer, position // page_size]``.
    """

    row_N: np.ndarray
    start_N: np.ndarray
    count_N: np.ndarray
    hidden_TD: torch.Tensor  # model type; read and overwritten in place (an embedding only writes it)
    delta_N: np.ndarray | None = None  # number of each row's deltas in the run, 0 for none; None: no row has any


class Packed(Protocol):
    """A component in the form the back end computes with. Lives in memory that the caller gave."""

    @property
    def spec(self) -> ComponentSpec: ...


class Backend(Protocol):
    """See the module. One instance per worker, used by its device thread alone."""

    name: str  # "torch" | "native"
    numerics: str  # types and kernel family, for instance "native-avx512_bf16-bfloat16": seeds every lineage
    dtype: torch.dtype  # of hidden states, weights and KV
    slot_unit: int  # bytes; slots are padded to a multiple

    def slot_bytes(self, layout: KvLayout) -> int:
        """Bytes of one slot; a multiple of 1024 (so that groups of whole chunks hold whole slots)."""

    def packed_bytes(self, spec: ComponentSpec) -> int:
        """Bytes that ``pack`` needs, before any tensor is read."""

    def pack(self, spec: ComponentSpec, tensors: dict[str, torch.Tensor], memory: torch.Tensor) -> Packed:
        """Convert raw tensors (by role, any float type, CPU) into ``memory`` (uint8 [packed_bytes], 64-byte aligned)."""

    def delta_bytes(self, spec: ComponentSpec) -> int:
        """Bytes that ``pack_delta`` needs for the delta of a variant."""

    def pack_delta(self, spec: ComponentSpec, tensors: dict[str, torch.Tensor], memory: torch.Tensor) -> Any:
        """Convert the raw tensors of a variant's delta into ``memory`` (uint8 [delta_bytes], 64-byte aligned)."""

    def reserve(self, tables: Any, max_tokens: int, max_rows: int) -> None:
        """Learn the tables (``gpu/tables.py``) and size all scratch. Called once, before any run is composed."""

    def add_arena(self, layout: KvLayout, memory: torch.Tensor) -> None:
        """Learn the reserved range (uint8) that holds the slots of a layout; slot s starts at byte ``s * slot_bytes``."""

    def compose(self, parts: Sequence[Packed], kv_layer: int) -> Any:
        """A run over consecutive components; ``kv_layer`` is the KV layer of its first attention. Pointers only."""

    def attach(self, run: Any, number: int, deltas: Mapping[int, Any]) -> None:
        """From now on rows of ``number`` (from 1 on) meet these packed deltas, by place of their component in the run."""

    def detach(self, run: Any, number: int) -> None:
        """Forget deltas that were attached."""

    def forward(self, run: Any, batch: Batch) -> None:
        """One native call: all components of the run over the batch. Never called for a head."""

    def logits(self, run: Any, hidden_ND: torch.Tensor, delta_N: np.ndarray | None = None) -> torch.Tensor:
        """float32 [N, V] of a run that is a single head; valid until the next call. ``delta_N`` as in ``Batch``."""

    def settle(self) -> None:
        """Return when nothing reads the memory of earlier calls any more: hidden states, tables, slots, packed components.

        A call ends when its results are there; a thread that lost its core may come back to it later. Called before
        memory is given back, reused for something else or unmapped.
        """

    def argmax(self, logits_NV: torch.Tensor) -> np.ndarray:
        """int32 [N]; the lowest token id among equal maxima."""
