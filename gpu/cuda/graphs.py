"""CUDA graphs of decode: one replay of what was recorded, in the place of each step's and each head's launches.

A step of single tokens is padded to a bucket of rows. Its columns lie in static memory, where a copy brings them from the
plan, so that a graph of one bucket serves all its steps, whichever rows and deltas they have. It is recorded behind the
bucket's third use, when everything that it launches has been compiled, and dropped with its run, with the run's deltas, or
when scratch has moved. Prefill and what is drawn by more than a temperature run without. Legend: B rows of a bucket.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from ..sweep_columns import Ints, Rows
from . import footprint
from .backend import GATHERED, HEADED, CudaBackend
from .components import CudaRun, HeadPart
from .forward import LOGITS
from .ops import DELTA_TILE, DeviceStep, Tiles
from .plan_columns import PlanColumns, delta_tiles, head_step
from .streams import DeviceGraph, Ranges

BUCKETS = (1, 2, 4, 8, *range(16, 64, 8), 64, 96, 128, 192, 256)
SHORTEST = 256  # positions of the shortest bucket of lengths; they double
USES = 3  # of a bucket, before it is recorded
MOST = 64  # graphs; the ones that were used longest ago are dropped
MOST_BYTES = footprint.GRAPHS  # of all of them
STATIC_BYTES = 64 << 10
STATIC, STATIC_DRAWN = "static", "static drawn"  # columns; tokens and how many stand
NONE = -1


@dataclass(slots=True, weakref_slot=True)
class GraphBucket:
    """A bucket of a run: how often it was used and, once it is recorded, its graph."""

    uses: int = 0
    last: int = 0  # number of the use of any bucket
    generation: int = 0  # of scratch
    graph: DeviceGraph | None = None


@dataclass(frozen=True, slots=True)
class StaticColumns:
    """Columns of a padded step or head: ``block`` has them at offsets, uint8."""

    rows: int  # B
    block: np.ndarray
    offsets: dict[str, int]
    longest: int = 0
    groups: tuple[int, ...] = ()
    deltas: bool = False

    @property
    def key(self) -> tuple[int, int, bool]:
        return self.rows, self.longest, self.deltas


@dataclass(slots=True)
class Graphs:
    """The graphs of one device (see the module). ``arenas`` are memory that stays, beside the back end's own."""

    backend: CudaBackend
    arenas: Ranges
    enabled: bool = True  # false: every step is launched
    recorded: int = 0  # number of graphs that were recorded so far
    replayed: int = 0
    _used: int = 0
    _known: list[weakref.ref[GraphBucket]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.backend.scratch.need(STATIC, STATIC_BYTES)
        self.backend.scratch.need(STATIC_DRAWN, 8 * BUCKETS[-1])

    @property
    def nbytes(self) -> int:
        """The card's memory that graphs take."""
        return sum([one.graph.nbytes for one in self._alive() if one.graph is not None])

    def columns_of(self, run: CudaRun, at: Rows, delta: Sequence[int], longest: int) -> StaticColumns | None:
        """Return the columns of a step of single tokens; None if it is no such step, or of too many rows."""
        count = len(at.batch)
        rows = self._bucket(count, self.backend.tokens)
        if not rows or (at.count_N != 1).any():
            return None
        packing = _Packing(rows, count)
        packing.add("row", at.row_N, NONE)
        packing.add("position", at.start_N)
        packing.add("index", at.offset_N, NONE)
        for group in run.groups:
            tile_N = np.stack([at.row_N, at.start_N, np.ones(count), np.arange(count)], axis=1)
            packing.add(f"tiles {group}", tile_N, NONE)
        packing.add_deltas(delta)
        end, length = int(at.start_N.max()) + 1, SHORTEST
        while length < end:
            length *= 2
        return packing.columns(min(length, longest), run.groups, any(delta))

    def columns_of_head(
        self, index_N: Ints, kept_N4: Ints, simple: tuple[Ints, Ints], delta: Sequence[int]
    ) -> StaticColumns | None:
        """Return the columns of a head that draws one token for each row; None if there are too many."""
        rows = self._bucket(len(index_N), self.backend.heads)
        if not rows:
            return None
        packing = _Packing(rows, len(index_N))
        packing.add("index", index_N, NONE)
        packing.add("kept", kept_N4, NONE)
        packing.add("key", simple[0], kind=np.int64)
        packing.add("temperature", simple[1], kind=np.float64)
        packing.add_deltas(delta)
        return packing.columns(0, (), any(delta))

    def step(self, run: CudaRun, columns: StaticColumns, block: torch.Tensor, hidden: int) -> None:
        """Queue a step over hidden states; its columns are in ``block``, uint8."""
        base, parts = self._set(columns, block), run.parts
        width, tables = run.width, self.backend.tables
        at = columns.offsets
        step = DeviceStep(
            tokens=columns.rows,
            row_T=base + at["row"],
            position_T=base + at["position"],
            table=tables.tokens,
            table_stride=tables.token_stride,
            slots=tables.slots,
            row_stride=tables.row_stride,
            layer_stride=tables.layer_stride,
            longest=columns.longest,
            tiles={group: Tiles(base + at[f"tiles {group}"], columns.rows) for group in columns.groups},
            **_deltas(columns, base),
        )
        ops, forward = self.backend.ops, self.backend.forward
        some = self.backend.scratch[GATHERED]

        def work() -> None:
            ops.gather(hidden, base + at["index"], some, step.tokens, width)
            forward.run(parts, step, some)
            ops.scatter(some, base + at["index"], hidden, step.tokens, width)

        self._play(run, columns, work)

    def head(self, run: CudaRun, columns: StaticColumns, block: torch.Tensor, hidden: int, out: torch.Tensor) -> None:
        """Queue a head that draws by temperature over hidden states; tokens go to ``out``, uint8, and to the tables."""
        base, at = self._set(columns, block), columns.offsets
        (part,) = run.parts
        assert isinstance(part, HeadPart)
        step = head_step(columns.rows, **_deltas(columns, base))
        scratch, tables = self.backend.scratch, self.backend.tables
        ops, forward = self.backend.ops, self.backend.forward
        width, vocabulary = run.width, run.vocabulary
        some = scratch[HEADED]
        token = scratch[STATIC_DRAWN]

        def work() -> None:
            ops.gather(hidden, base + at["index"], some, step.tokens, width)
            forward.logits(part, step, some)
            ops.draw(scratch[LOGITS], step.tokens, vocabulary, base + at["key"], base + at["temperature"], token)
            ops.keep(tables.tokens, tables.token_stride, step.tokens, base + at["kept"], token, token + 4 * BUCKETS[-1])

        self._play(run, columns, work)
        drawn = scratch.tensor(STATIC_DRAWN, out.numel())
        self.backend.compute.launch(lambda: out.copy_(drawn))

    def _bucket(self, rows: int, most: int) -> int:
        """Return the rows of the bucket; 0 for a step that is none."""
        if not self.enabled or not 0 < rows <= BUCKETS[-1]:
            return 0
        bucket: int = next(bucket for bucket in BUCKETS if bucket >= rows)
        return min(bucket, max(most, rows))

    def _set(self, columns: StaticColumns, block: torch.Tensor) -> int:
        """Queue the copy of a step's columns to static memory, and return its address."""
        self.backend.scratch.need(STATIC, columns.block.size)
        target = self.backend.scratch.tensor(STATIC, columns.block.size)
        self.backend.compute.launch(lambda: target.copy_(block))
        return target.data_ptr()

    def _play(self, run: CudaRun, columns: StaticColumns, work: Callable[[], None]) -> None:
        backend = self.backend
        bucket = run.buckets.get(columns.key)
        if bucket is None:
            bucket = run.buckets[columns.key] = GraphBucket()
            self._known.append(weakref.ref(bucket))
        self._used += 1
        bucket.uses, bucket.last = bucket.uses + 1, self._used
        if bucket.generation != backend.scratch.generation:
            self._close(bucket)
            bucket.generation = backend.scratch.generation
        if bucket.graph is not None:
            self.replayed += 1
            bucket.graph.replay(backend.compute)
            return
        work()
        if bucket.uses >= USES:
            bucket.graph = backend.streams.record(backend.compute, work, self._static_of(run))
            self.recorded += 1
            self._drop_oldest()

    def _static_of(self, run: CudaRun) -> Ranges:
        """Return the ranges that a graph of this run may name. They do not keep the run."""
        kept = [*run.kept, *(run.records.memory if run.records is not None else ())]
        own = [(memory.data_ptr(), memory.nbytes) for memory in kept]
        return lambda: [*self.backend.static(), *self.arenas(), *own]

    def _drop_oldest(self) -> None:
        """Drop graphs beyond what they may be together."""
        alive = sorted((one for one in self._alive() if one.graph is not None), key=lambda one: one.last)
        while len(alive) > 1 and (len(alive) > MOST or self.nbytes > MOST_BYTES):
            self.backend.settle()
            self._close(alive.pop(0))

    @staticmethod
    def _close(bucket: GraphBucket) -> None:
        if bucket.graph is not None:
            bucket.graph.close()
            bucket.graph = None

    def _alive(self) -> list[GraphBucket]:
        found = [(ref, one) for ref in self._known if (one := ref()) is not None]
        self._known = [ref for ref, _ in found]
        return [one for _, one in found]


class _Packing:
    """Columns of ``count`` rows, padded to ``rows``."""

    def __init__(self, rows: int, count: int) -> None:
        self._rows, self._count = rows, count
        self._packed = PlanColumns()
        self._offsets: dict[str, int] = {}

    def add(self, name: str, column: Ints, padding: int = 0, kind: type = np.int32) -> None:
        padded = np.full((self._rows, *column.shape[1:]), padding, dtype=kind)
        padded[: len(column)] = column
        self._offsets[name] = self._packed.add(padded)

    def add_deltas(self, delta: Sequence[int]) -> None:
        if any(delta):
            number_N = np.asarray(delta, dtype=np.int32)
            self.add("number", number_N)
            self.add("changed", delta_tiles(number_N, np.ones(self._count, dtype=np.int32), DELTA_TILE))

    def columns(self, longest: int, groups: tuple[int, ...], deltas: bool) -> StaticColumns:
        block_B = np.zeros(self._packed.nbytes, dtype=np.uint8)
        self._packed.write(block_B)
        return StaticColumns(self._rows, block_B, self._offsets, longest, groups, deltas)


def _deltas(columns: StaticColumns, base: int) -> dict[str, int]:
    """Return the fields of a step that are about deltas."""
    if not columns.deltas:
        return {}
    number, changed = (base + columns.offsets[name] for name in ("number", "changed"))
    return {"number_T": number, "changed": changed, "changes": columns.rows}
