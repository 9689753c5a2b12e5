"""CUDA back end: packing, runs and pages of a device with memory of its own, over operations that are given addresses.

Owns scratch, the card's tables and rotary tables. Work is queued on one stream; a second one brings results to the host.
Sweeps are the device's (``device.py``). The same code runs on a card, on the kernels' interpreter and, for tests of
everything else, on the mirror (operations by torch, memory by a file, streams deferred). Legend: as in ``gpu/backend.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ...policies.model.chain import PageLayout
from ..backend import HOST_CHUNK, Packed
from ..errors import BackendError
from ..model.activations import embedding_multiplier
from ..model.config import AttentionConfig, ComponentSpec, HeadConfig, RopeConfig, StitchConfig, attention_of, pools
from ..model.rotary import rotary_table
from ..row_backend import RowBackend, RowPacked, row_states
from ..tables import Tables
from .components import CudaRun, HeadPart, Surroundings, describe
from .deltas import CudaDelta, Records, delta_bytes, pack_delta
from .footprint import CHOSEN_TOGETHER, LEAST_HEADS, MOST_HEADS
from .forward import LOGITS, Forward
from .memory import ChunkMemory
from .ops import DeviceStep, Ops, Slots
from .scratch import Scratch
from .staging import Transfers
from .streams import DeviceStream, Streams
from .tables import CardTables

GATHERED, HEADED = "gathered", "headed"  # hidden states of some rows; of the rows of a head
BOUNCE, CHOSEN = "bounce", "chosen"  # slots on their way, and their numbers
SCORES, COUNTS = "scores", "counts"  # of rows that are drawn by all parameters
TOGETHER = 1 << 20  # bytes of slots that are copied at once
SLOT_UNIT = 4096  # bytes
ALIGNMENT = 256  # bytes; a warp loads two of its lines of 128


def hidden_name(width: int) -> str:
    """Return the name of the buffer of a sweep's hidden states of this width."""
    return f"hidden {width}"


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


NO_STITCH = "the stitch of widths {} and {} is not computed on a card; serve its chain on processors: --set backend=native"


class CudaBackend(RowBackend):
    """CUDA back end (see the module and ``gpu/backend.py``)."""

    def __init__(self, platform: Platform, dtype: str) -> None:
        super().__init__(platform.name, dtype)
        self.numerics = f"{platform.name}-{platform.ops.name}-{dtype}"
        self.slot_unit, self.alignment = SLOT_UNIT, ALIGNMENT
        self.chunk = platform.chunk
        self.open_memory, self.enter = platform.open_memory, platform.enter
        self.platform = platform
        self.ops = platform.ops
        self.streams, self.compute = platform.streams, platform.compute
        self.device = platform.device
        self.pinned = platform.device.type == "cuda"
        self.scratch = Scratch(platform.device, self.streams)
        self.transfers = Transfers(self.streams, self.compute, self.scratch, self.pinned)
        self.parts_done = 0  # number of components that were begun
        self.forward = Forward(self.ops, self.scratch, embedding_multiplier, lambda: self.compute.launch(self._begin_part))
        self._arenas: dict[PageLayout, Slots] = {}
        self._ranges: dict[PageLayout, torch.Tensor] = {}  # keeps their memory alive
        self._rope: dict[tuple[RopeConfig, int], tuple[torch.Tensor, torch.Tensor]] = {}  # keyed by head_dim, too
        self._host_tables: Tables | None = None
        self._tables: CardTables | None = None
        self.tokens = 0  # most of a step
        self.heads = 0  # most rows of a head at a time

    def assemble(self, spec: ComponentSpec, memory: Mapping[str, torch.Tensor]) -> Packed:
        if isinstance(spec.config, StitchConfig):
            raise BackendError(NO_STITCH.format(spec.config.hidden, spec.config.out))
        return super().assemble(spec, memory)

    def _delta_form(self, spec: ComponentSpec) -> tuple[str, int]:
        return "padded rows", delta_bytes(spec, self.dtype)

    def pack_delta(
        self, spec: ComponentSpec, tensors: Mapping[str, torch.Tensor], memory: torch.Tensor
    ) -> Generator[int, None, CudaDelta]:
        return pack_delta(spec, tensors, memory, self.dtype)

    @property
    def tables(self) -> CardTables:
        """The tables on the card. Raises BackendError before ``reserve``."""
        if self._tables is None:
            raise BackendError("a step before reserve(): the caller's order is wrong")
        return self._tables

    def reserve(self, tables: Tables, max_tokens: int, max_rows: int) -> None:
        self.settle()
        former = self._tables
        grown = former if tables is self._host_tables else None  # others begin anew
        self._host_tables, self._tables = tables, CardTables(tables, self.device, grown)
        if former is not None:
            self.streams.retire(former.memory)
        self.settle()  # the tables were written by another stream than the one of sweeps
        self.tokens = max(max_tokens, max_rows)
        self.heads = min(MOST_HEADS, max(max_rows, LEAST_HEADS))
        self.scratch.need(BOUNCE, TOGETHER)
        self.scratch.need(CHOSEN, TOGETHER // self.slot_unit * 4)

    def add_arena(self, layout: PageLayout, memory: torch.Tensor) -> None:
        self._check_layout(layout)
        self._arenas[layout] = Slots(memory.data_ptr(), self.slot_bytes(layout), layout.page_size)
        self._ranges[layout] = memory
        self.scratch.need(BOUNCE, self.slot_bytes(layout))

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
        assert self._host_tables is not None
        rows = self.heads if run.vocabulary else self.tokens
        for name in (GATHERED, HEADED):
            self.scratch.need(name, (self.tokens if name == GATHERED else self.heads) * run.width * self.dtype.itemsize)
        self.forward.reserve(run, rows, self._host_tables.max_length)
        for name in (SCORES, COUNTS) if run.vocabulary else ():
            self.scratch.need(name, 8 * CHOSEN_TOGETHER * run.vocabulary)

    def _slots(self, packed: RowPacked) -> Slots:
        layout = packed.spec.component.kv
        if layout is None or layout not in self._arenas:
            raise BackendError(f"no arena for KV layout {layout}; call add_arena() first")
        return self._arenas[layout]

    def _rotary(self, config: AttentionConfig) -> tuple[torch.Tensor, torch.Tensor]:
        """Return rotary tables for the longest sequence. Runs keep the tables that they were composed with."""
        assert self._host_tables is not None
        key, length = (config.rope, config.head_dim), self._host_tables.max_length
        if key not in self._rope or len(self._rope[key][0]) < length:
            cos_MH, sin_MH = rotary_table(config.rope, config.head_dim, torch.arange(length), torch.float32)
            self._rope[key] = cos_MH.contiguous().to(self.device), sin_MH.contiguous().to(self.device)
        return self._rope[key]

    def attach(self, run: CudaRun, number: int, deltas: Mapping[int, CudaDelta]) -> None:
        run.deltas[number] = dict(deltas)
        self._renew(run)
        self._size(run)

    def detach(self, run: CudaRun, number: int) -> None:
        del run.deltas[number]
        self._renew(run)

    def _renew(self, run: CudaRun) -> None:
        """Write the records of a run's deltas anew."""
        self.settle()  # the ones that are replaced may still be read
        for memory in run.records.memory if run.records is not None else ():
            self.streams.retire(memory)
        run.renew(Records(run.deltas, self.device))

    def slots(self, layout: PageLayout) -> Slots:
        """Return the arena of a layout."""
        return self._arenas[layout]

    def states(self, run: CudaRun, hidden_ND: torch.Tensor) -> np.ndarray:
        """Return float64 states [N, D] of an embedder's head, of hidden states on the host."""
        return row_states(run.packed[0], hidden_ND)

    def settle(self) -> None:
        self.streams.settle()

    def check(self) -> None:
        """Raise the error of queued work that has failed, if some has (``Device.check``)."""
        self.streams.check()

    def static(self) -> list[tuple[int, int]]:
        """Return the memory that a recorded graph may name: address and bytes. It stays until the graph is dropped."""
        found = self.scratch.ranges()
        kept = [self.tables.memory, *self._ranges.values(), *(one for pair in self._rope.values() for one in pair)]
        return found + [(memory.data_ptr(), memory.nbytes) for memory in kept]

    # pages

    def export(self, layout: PageLayout, slots: Sequence[int], memory: torch.Tensor) -> None:
        pages, together = self._arenas[layout], self._together(layout)
        for first in range(0, len(slots), together):
            some = slots[first : first + together]
            with self.streams.current(self.compute):
                chosen = self._chosen(some)
                self.ops.copy_slots(pages.address, chosen, self.scratch[BOUNCE], 0, len(some), pages.slot_bytes)
            (came,) = self.transfers.fetch([self.scratch.tensor(BOUNCE, len(some) * pages.slot_bytes)])
            memory[first : first + len(some)].view(-1).copy_(came)

    def import_(self, layout: PageLayout, slots: Sequence[int], memory: torch.Tensor) -> None:
        pages, together = self._arenas[layout], self._together(layout)
        for first in range(0, len(slots), together):
            some = slots[first : first + together]
            with self.streams.current(self.compute):
                chosen = self._chosen(some)
                self.transfers.send(BOUNCE, memory[first : first + len(some)].numpy())
                self.ops.copy_slots(self.scratch[BOUNCE], 0, pages.address, chosen, len(some), pages.slot_bytes)

    def move(self, layout: PageLayout, slots: Sequence[int], targets: Sequence[int]) -> None:
        """Queue copies of slots of an arena to other slots, of which none is among ``slots``."""
        pages, most = self._arenas[layout], TOGETHER // self.slot_unit // 2
        for first in range(0, len(slots), most):
            some = slots[first : first + most]
            with self.streams.current(self.compute):
                source = self._chosen([*some, *targets[first : first + most]])
                target = source + 4 * len(some)
                self.ops.copy_slots(pages.address, source, pages.address, target, len(some), pages.slot_bytes)

    def _together(self, layout: PageLayout) -> int:
        return max(1, TOGETHER // self.slot_bytes(layout))

    def _chosen(self, slots: Sequence[int]) -> int:
        self.transfers.send(CHOSEN, np.asarray(slots, dtype=np.int32))
        return self.scratch[CHOSEN]

    # heads

    def head(self, run: CudaRun, index: int, step: DeviceStep) -> int:
        """Queue a head over the hidden states that ``index``, int32 on the card, names; return the address of the logits."""
        (part,) = run.parts
        assert isinstance(part, HeadPart)
        self.ops.gather(self.scratch[hidden_name(run.width)], index, self.scratch[HEADED], step.tokens, run.width)
        self.forward.logits(part, step, self.scratch[HEADED])
        return self.scratch[LOGITS]

    def held(self) -> dict[str, int]:
        """Return the bytes of the card that this back end has beside its pool of chunks, by use."""
        tables = self._tables.memory.nbytes if self._tables is not None else 0
        return {
            "scratch": self.scratch.nbytes,
            "tables": tables,
            "rotary": sum(one.nbytes for pair in self._rope.values() for one in pair),
        }

    def _begin_part(self) -> None:
        self.parts_done += 1
