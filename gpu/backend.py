"""Back end interface: the contract between the executor and a compute back end (torch reference, native CPU kernels, CUDA).

A back end packs the tensors of components and runs sequences of components over a batch. It alone knows the layout inside a
slot and the packing of weights; no other code indexes inside either. It never allocates on the path of a sweep: ``pack``
writes into memory that it is given, and scratch is sized once by ``reserve``. How a batch is computed is asked of a
``HostBackend`` alone; a card queues whole sweeps (``gpu/cuda/device.py``).

Shape legend: T tokens of a step, N batch rows of a step, D hidden width, V vocabulary, R table rows, L KV layers of the
worker's longest chain and one more, for hidden states, P pages of the longest sequence, M longest sequence in tokens.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch

from ..policies.model.chain import HiddenLayout, PageLayout
from .model.config import ComponentSpec
from .sampling.masks import TokenMasks

HOST_CHUNK, HOST_ALIGNMENT = 64 << 10, 64  # bytes, of a CPU: kernels load whole cache lines
SLICE = 256 << 10  # raw bytes packed in one step of a load on a CPU: about 0.3 ms, less than any sweep that matters


@dataclass(slots=True)
class Batch:
    """The input of one step. All index arrays are C-contiguous int32; a batch row's tokens are consecutive in ``hidden_TD``.

    Batch row n computes positions ``start_N[n] .. start_N[n] + count_N[n] - 1`` of table row ``row_N[n]``; its first token
    is row ``sum(count_N[:n])`` of ``hidden_TD``. The KV of these positions is written to the slots ``slots_RLP[row, layer,
    position // page_size]``. Attention reads positions 0 .. own position from the same slots.
    """

    row_N: np.ndarray
    start_N: np.ndarray
    count_N: np.ndarray
    hidden_TD: torch.Tensor  # model type; read and overwritten in place (an embedding only writes it)
    delta_N: np.ndarray | None = None  # number of each row's deltas in the run, 0 for none; None: no row has any


@dataclass(frozen=True, slots=True)
class PackedPart:
    """One raw tensor of a component in the back end's form. Equal parts are in a worker's memory only once."""

    role: str
    id: bytes  # 16 bytes; equal for equal packed bytes, whatever components and roles use them
    nbytes: int
    form: str  # the back end's name for the packing
    shape: tuple[int, ...]  # the raw tensor's
    together: int  # number of rows that are packed together, in as many bytes each time: slices begin at multiples
    added: float = 0.0  # added to every element

    def piece(self, first: int, last: int) -> tuple[int, PackedPart]:
        """Return where rows ``first`` to ``last - 1`` begin, in bytes, and these rows as a part of their own.

        ``first`` is a multiple of ``together``, and ``last`` is one or ends the tensor.
        """
        size = self.nbytes // -(-self.shape[0] // self.together)
        begin, end = first // self.together, -(-last // self.together)
        return begin * size, replace(self, nbytes=(end - begin) * size, shape=(last - first, *self.shape[1:]))


class Packed(Protocol):
    """A component in the back end's form. Lives in memory that the caller gave."""

    @property
    def spec(self) -> ComponentSpec: ...


class Backend(Protocol):
    """The back end interface (see the module). One instance per worker, used by its device thread alone."""

    name: str  # "torch" | "native"
    numerics: str  # types and kernel family, for instance "native-avx512_bf16-bfloat16": seeds every lineage
    dtype: torch.dtype  # type of hidden states, weights and KV
    slot_unit: int  # bytes; slots are padded to a multiple
    chunk: int  # bytes that are mapped at a time
    alignment: int  # bytes; packed tensors begin at multiples

    def slot_bytes(self, layout: PageLayout) -> int:
        """Return the bytes of one slot: a multiple of 1024, so that groups of whole chunks hold whole slots."""

    def parts(self, spec: ComponentSpec) -> list[PackedPart]:
        """Return the parts of a component, before any tensor is read. Two roles may have parts with the same id.

        The delta of an adapted component is a single part, which ``pack_delta`` fills.
        """

    def pack(self, part: PackedPart, raw: torch.Tensor, memory: torch.Tensor) -> None:
        """Convert a raw tensor (any float type, CPU), or rows of it that are a piece, into the part's memory.

        ``memory`` is uint8 [part.nbytes] on the host (``Arena.window``). It is aligned to 64 bytes unless the part is a
        piece that begins elsewhere.
        """

    def assemble(self, spec: ComponentSpec, memory: Mapping[str, torch.Tensor]) -> Packed:
        """Return a component made of packed parts, given each part's memory in the arena by role. Sets pointers only."""

    def pack_delta(
        self, spec: ComponentSpec, tensors: Mapping[str, torch.Tensor], memory: torch.Tensor
    ) -> Generator[int, None, Any]:
        """Convert the raw tensors of a delta into ``memory``.

        ``memory`` is the arena's own, uint8 of its part's size, 64-byte aligned: the delta points there. Yields the bytes of
        each step, at most about a slice. The return value is the delta as ``attach`` takes it.
        """

    def reserve(self, tables: Any, max_tokens: int, max_rows: int) -> None:
        """Set the tables (``gpu/tables.py``) and size all scratch, before any run is composed.

        Called again when the tables have grown; runs composed before must then be composed anew.
        """

    def add_arena(self, layout: PageLayout, memory: torch.Tensor) -> None:
        """Set the reserved range (uint8) that holds the slots of a layout. Slot s starts at byte ``s * slot_bytes``."""

    def export(self, layout: PageLayout, slots: Sequence[int], memory: torch.Tensor) -> None:
        """Copy slots of an arena into ``memory`` (uint8 [slots, slot_bytes]), between two calls of ``forward``.

        The bytes are the form in which pages travel between workers of equal numerics.
        """

    def import_(self, layout: PageLayout, slots: Sequence[int], memory: torch.Tensor) -> None:
        """Copy the bytes from ``export`` into slots that were neither written nor read since they were allocated."""

    def compose(self, parts: Sequence[Packed], kv_layer: int) -> Any:
        """Return a run over consecutive components. Sets pointers only.

        ``kv_layer`` is the KV layer of its first attention.
        """

    def attach(self, run: Any, number: int, deltas: Mapping[int, Any]) -> None:
        """Apply these packed deltas to rows of ``number`` (from 1 on) from now on, by place of the component in the run."""

    def detach(self, run: Any, number: int) -> None:
        """Drop deltas that were attached."""

    def settle(self) -> None:
        """Wait until nothing reads the memory of earlier calls: hidden states, tables, slots, packed components.

        A call ends when its results are there; a thread that lost its core may return to it later. Called before memory is
        given back, reused for something else or unmapped.
        """


class HostBackend(Backend, Protocol):
    """A back end that computes in the memory of the process: a call returns when it is done."""

    def put_hidden(self, layout: HiddenLayout, column: int, batch: Batch) -> None:
        """Write the hidden states of a batch into the slots that layer ``column`` of the tables names."""

    def take_hidden(self, layout: HiddenLayout, column: int, batch: Batch) -> None:
        """Read the hidden states of a batch from the slots that layer ``column`` of the tables names."""

    def forward(self, run: Any, batch: Batch) -> None:
        """Run all components of the run over the batch, in one native call. Never called for a head."""

    def stitch(self, run: Any, hidden_TD: torch.Tensor, out_TE: torch.Tensor) -> None:
        """Write the hidden states of another width that a run that is a single stitch makes of these."""

    def logits(self, run: Any, hidden_ND: torch.Tensor, delta_N: np.ndarray | None = None) -> torch.Tensor:
        """Return float32 logits [N, V] of a run that is a single head. They are valid until the next call.

        ``delta_N`` is as in ``Batch``.
        """

    def states(self, run: Any, hidden_ND: torch.Tensor) -> np.ndarray:
        """Return float64 states [N, D] of a run that is a single head without logits (``gpu/sampling/pooling.py``)."""

    def progress(self) -> int:
        """Return a number that changes whenever a part of a call is done. Any thread may ask, also during a call."""

    def argmax(self, logits_NV: torch.Tensor, masks: TokenMasks | None = None) -> np.ndarray:
        """Return int32 [N]: the best token ids, the lowest one among equal maxima, of the allowed ones if a row has a mask.

        -1 for a mask that allows none.
        """

    def allowed(self, logits_V: np.ndarray, mask_W: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids [K] of the tokens that a mask allows, ascending, and their logits [K].

        Both are valid until the next call.
        """
