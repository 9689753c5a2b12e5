"""CUDA back end: the host half of a device with memory of its own, over operations that are given addresses.

Owns scratch, staging, copies of the tables and rotary tables. Work is queued on one stream; a second one brings results to
the host. The same code runs on a card, on the kernels' interpreter and, for tests of everything else, on the mirror
(operations by torch, memory by a file, streams deferred). Legend: as in ``gpu/backend.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ...policies.model.chain import HiddenLayout, PageLayout
from ..backend import HOST_CHUNK, Batch, Packed
from ..errors import BackendError
from ..model.activations import embedding_multiplier
from ..model.config import AttentionConfig, ComponentSpec, HeadConfig, RopeConfig, attention_of, pools
from ..model.rotary import rotary_table
from ..row_backend import RowBackend, RowPacked, row_states
from ..tables import Tables
from .components import CudaRun, HeadPart, Surroundings, describe
from .deltas import CudaDelta, Records, delta_bytes, pack_delta
from .forward import Forward
from .memory import ChunkMemory
from .ops import DeviceStep, Ops, Slots
from .scratch import Scratch
from .staging import StagingRing
from .steps import StepColumns
from .streams import DeviceStream, Streams
from .tables import TableCopies

HIDDEN, BOUNCE = "hidden", "bounce"
CHOSEN = "chosen"  # slots
TOGETHER = 1 << 20  # bytes of slots that are copied at once
RING = 4  # staging buffers
STAGED = 64 << 10  # bytes of a staging buffer at first
SLOT_UNIT = 4096  # bytes
ALIGNMENT = 256  # bytes; a warp loads two of its lines of 128


def do_nothing() -> None:
    """Do nothing: any thread may use the host's memory."""


@dataclass(frozen=True, slots=True)
class Platform:
    """A card, or twins of its interfaces on the host: all that a CUDA back end stands on.

    ``ops`` queue on ``compute``. ``open_memory`` makes the pool of chunks (bytes of a chunk, number of chunks). ``enter``
    prepares a thread that uses the device from then on. ``chunk``: bytes of one, a multiple of what the memory can map.
    """

    name: str
    device: torch.device
    streams: Streams
    compute: DeviceStream
    ops: Ops
    open_memory: Callable[[int, int], ChunkMemory]
    enter: Callable[[], None] = do_nothing
    chunk: int = HOST_CHUNK


class CudaBackend(RowBackend):
    """CUDA back end (see the module and ``gpu/backend.py``)."""

    def __init__(self, platform: Platform, dtype: str) -> None:
        super().__init__(platform.name, dtype)
        self.numerics = f"{platform.name}-{platform.ops.name}-{dtype}"
        self.slot_unit, self.alignment = SLOT_UNIT, ALIGNMENT
        self.chunk = platform.chunk
        self.open_memory, self.enter = platform.open_memory, platform.enter
        self.platform = platform
        self._device, self._ops = platform.device, platform.ops
        self._streams, self._compute = platform.streams, platform.compute
        self._copies = platform.streams.stream()
        self._scratch = Scratch(platform.device, self._streams.settle)
        pinned = platform.device.type == "cuda"
        self._results = StagingRing(self._streams, RING, STAGED, pinned)
        uploads = StagingRing(self._streams, RING, STAGED, pinned)
        self._columns = StepColumns(self._scratch, uploads, self._compute, self._ops.tile_rows)
        self._forward = Forward(
            self._ops, self._scratch, embedding_multiplier, lambda: self._compute.launch(self._begin_part)
        )
        self._arenas: dict[PageLayout, Slots] = {}
        self._ranges: dict[PageLayout, torch.Tensor] = {}  # keeps their memory alive
        self._rope: dict[tuple[RopeConfig, int], tuple[torch.Tensor, torch.Tensor]] = {}  # keyed by head_dim, too
        self._tables: Tables | None = None
        self._copied: TableCopies | None = None
        self._tokens = 0  # most of a step
        self._parts_done = 0  # number of components that were begun

    def _delta_form(self, spec: ComponentSpec) -> tuple[str, int]:
        return "padded rows", delta_bytes(spec, self.dtype)

    def pack_delta(
        self, spec: ComponentSpec, tensors: Mapping[str, torch.Tensor], memory: torch.Tensor
    ) -> Generator[int, None, CudaDelta]:
        return pack_delta(spec, tensors, memory, self.dtype)

    def reserve(self, tables: Tables, max_tokens: int, max_rows: int) -> None:
        self.settle()
        self._tables, self._copied = tables, TableCopies(tables, self._device)
        self.settle()  # the copies were written by another stream than the one of sweeps
        self._tokens = max(max_tokens, max_rows)
        self._columns.reserve(self._tokens, 0)
        self._scratch.need(BOUNCE, TOGETHER)
        self._scratch.need(CHOSEN, TOGETHER // self.slot_unit * 4)

    def add_arena(self, layout: PageLayout, memory: torch.Tensor) -> None:
        self._check_layout(layout)
        self._arenas[layout] = Slots(memory.data_ptr(), self.slot_bytes(layout), layout.page_size)
        self._ranges[layout] = memory
        self._scratch.need(BOUNCE, self.slot_bytes(layout))

    # runs

    def compose(self, parts: Sequence[Packed], kv_layer: int) -> CudaRun:
        if self._tables is None:
            raise BackendError("compose() before reserve(): the caller's order is wrong")
        packed = tuple(part for part in parts if isinstance(part, RowPacked))
        if len(packed) != len(parts) or not packed:
            raise BackendError(f"a run needs components packed by a back end of {self._dtype_name} rows")
        widths = {part.spec.config.hidden for part in packed}
        if len(widths) > 1:
            raise BackendError(f"the components of a run have widths {sorted(widths)}; a run needs one width")
        rotary: list[torch.Tensor] = []

        def angles(config: AttentionConfig) -> tuple[int, int]:
            cos_MH, sin_MH = self._rotary(config)
            rotary.extend((cos_MH, sin_MH))
            return cos_MH.data_ptr(), sin_MH.data_ptr()

        computed = [part for part in packed if not pools(part.spec.config)]  # an embedder's head is computed on the host
        described = describe(computed, kv_layer, Surroundings(self._slots, angles))
        attentions = [found for part in packed if (found := attention_of(part.spec.config)) is not None]
        config = packed[0].spec.config
        run = CudaRun(
            packed,
            described,
            widths.pop(),
            config.vocabulary if isinstance(config, HeadConfig) else 0,
            tuple(sorted({attention.heads // attention.kv_heads for attention in attentions})),
            rotary,
        )
        self._size(run)
        return run

    def _size(self, run: CudaRun) -> None:
        assert self._tables is not None
        self._scratch.need(HIDDEN, self._tokens * run.width * self.dtype.itemsize)
        self._columns.reserve(self._tokens, len(run.groups))
        self._forward.reserve(run, self._tokens, self._tables.max_length)

    def _slots(self, packed: RowPacked) -> Slots:
        layout = packed.spec.component.kv
        if layout is None or layout not in self._arenas:
            raise BackendError(f"no arena for KV layout {layout}; call add_arena() first")
        return self._arenas[layout]

    def _rotary(self, config: AttentionConfig) -> tuple[torch.Tensor, torch.Tensor]:
        """Return rotary tables for the longest sequence. Runs keep the tables that they were composed with."""
        assert self._tables is not None
        key, length = (config.rope, config.head_dim), self._tables.max_length
        if key not in self._rope or len(self._rope[key][0]) < length:
            cos_MH, sin_MH = rotary_table(config.rope, config.head_dim, torch.arange(length), torch.float32)
            self._rope[key] = cos_MH.contiguous().to(self._device), sin_MH.contiguous().to(self._device)
        return self._rope[key]

    def attach(self, run: CudaRun, number: int, deltas: Mapping[int, CudaDelta]) -> None:
        self.settle()  # the records that are replaced may still be read
        run.deltas[number] = dict(deltas)
        run.renew(Records(run.deltas, self._device))
        self._size(run)

    def detach(self, run: CudaRun, number: int) -> None:
        self.settle()
        del run.deltas[number]
        run.renew(Records(run.deltas, self._device))

    # sweeps

    def forward(self, run: CudaRun, batch: Batch) -> None:
        hidden_TD = batch.hidden_TD
        self._check(run, hidden_TD, is_head=False)
        with self._streams.current(self._compute):
            step = self._step(batch, run.groups)
            self._upload_hidden(hidden_TD)
            self._forward.run(run.parts, step, self._scratch[HIDDEN])
        self._download(self._scratch.tensor(HIDDEN, hidden_TD.nbytes), hidden_TD)

    def logits(self, run: CudaRun, hidden_ND: torch.Tensor, delta_N: np.ndarray | None = None) -> torch.Tensor:
        self._check(run, hidden_ND, is_head=True)
        (part,) = run.parts
        assert isinstance(part, HeadPart)
        rows = hidden_ND.shape[0]
        none_N, ones_N = np.zeros(rows, dtype=np.int32), np.ones(rows, dtype=np.int32)
        with self._streams.current(self._compute):
            step = self._columns.make(Batch(none_N, none_N, ones_N, hidden_ND, delta_N), (), self._copies_of_tables())
            self._upload_hidden(hidden_ND)
            name = self._forward.logits(part, step, self._scratch[HIDDEN])
        logits_NV = torch.empty(rows, run.vocabulary)
        self._download(self._scratch.tensor(name, logits_NV.nbytes), logits_NV)
        return logits_NV

    def states(self, run: CudaRun, hidden_ND: torch.Tensor) -> np.ndarray:
        return row_states(run.packed[0], hidden_ND)

    def put_hidden(self, layout: HiddenLayout, column: int, batch: Batch) -> None:
        self._need_hidden(batch.hidden_TD)
        with self._streams.current(self._compute):
            step = self._step(batch, ())
            self._upload_hidden(batch.hidden_TD)
            self._ops.put_hidden(step, self._scratch[HIDDEN], layout.width, self._arenas[layout], column)

    def take_hidden(self, layout: HiddenLayout, column: int, batch: Batch) -> None:
        hidden_TD = batch.hidden_TD
        self._need_hidden(hidden_TD)
        with self._streams.current(self._compute):
            step = self._step(batch, ())
            self._ops.take_hidden(step, self._scratch[HIDDEN], layout.width, self._arenas[layout], column)
        self._download(self._scratch.tensor(HIDDEN, hidden_TD.nbytes), hidden_TD)

    def settle(self) -> None:
        self._streams.settle()

    def check(self) -> None:
        """Raise the error of queued work that has failed, if some has (``Device.check``)."""
        self._streams.check()

    def progress(self) -> int:
        return self._parts_done

    # pages

    def export(self, layout: PageLayout, slots: Sequence[int], memory: torch.Tensor) -> None:
        pages, together = self._arenas[layout], self._together(layout)
        for first in range(0, len(slots), together):
            some = slots[first : first + together]
            with self._streams.current(self._compute):
                chosen = self._chosen(some)
                self._ops.copy_slots(pages.address, chosen, self._scratch[BOUNCE], 0, len(some), pages.slot_bytes)
            self._download(self._scratch.tensor(BOUNCE, len(some) * pages.slot_bytes), memory[first : first + len(some)])

    def import_(self, layout: PageLayout, slots: Sequence[int], memory: torch.Tensor) -> None:
        pages, together = self._arenas[layout], self._together(layout)
        for first in range(0, len(slots), together):
            some = slots[first : first + together]
            with self._streams.current(self._compute):
                chosen = self._chosen(some)
                self._columns.send(BOUNCE, memory[first : first + len(some)])
                self._ops.copy_slots(self._scratch[BOUNCE], 0, pages.address, chosen, len(some), pages.slot_bytes)

    def _together(self, layout: PageLayout) -> int:
        return max(1, TOGETHER // self.slot_bytes(layout))

    def _chosen(self, slots: Sequence[int]) -> int:
        (address,) = self._columns.upload(CHOSEN, [np.asarray(slots, dtype=np.int32)])
        return address

    # what a call queues

    def _step(self, batch: Batch, groups: Sequence[int]) -> DeviceStep:
        """Queue the upload of a step's columns, and of what has changed in the tables of its rows."""
        tables = self._copies_of_tables()
        longest = int((batch.start_N + batch.count_N).max(initial=0))
        for index_E, value_E in tables.edits(batch.row_N, longest):
            index, value = self._columns.edit(index_E, value_E)
            self._ops.edit(tables.tokens, index, value, len(index_E))
        return self._columns.make(batch, groups, tables)

    def _copies_of_tables(self) -> TableCopies:
        if self._copied is None:
            raise BackendError("a step before reserve(): the caller's order is wrong")
        return self._copied

    def _upload_hidden(self, hidden_TD: torch.Tensor) -> None:
        self._columns.send(HIDDEN, hidden_TD)

    def _need_hidden(self, hidden_TD: torch.Tensor) -> None:
        self._scratch.need(HIDDEN, self._tokens * hidden_TD.shape[1] * self.dtype.itemsize)

    def _download(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Wait for what was queued, and copy its result to the host by way of a staging buffer."""
        ready, ended = self._streams.event(), self._streams.event()
        ready.record(self._compute)
        self._copies.wait(ready)
        with self._results.buffer(self._copies, source.numel()) as buffer:
            self._copies.launch(lambda: buffer.copy_(source, non_blocking=True))
        ended.record(self._copies)
        ended.wait()
        target.view(torch.uint8).view(-1).copy_(buffer)

    def _begin_part(self) -> None:
        self._parts_done += 1

    def _check(self, run: CudaRun, hidden: torch.Tensor, is_head: bool) -> None:
        if bool(run.vocabulary) != is_head:
            raise BackendError("a head is computed by logits(), everything else by forward(): the caller is wrong")
        if hidden.dtype != self.dtype or hidden.shape[1] != run.width or not hidden.is_contiguous():
            raise BackendError(
                f"hidden states must be contiguous {self._dtype_name} of width {run.width}, not {hidden.dtype} of shape "
                f"{list(hidden.shape)}: the caller is wrong"
            )
