"""Device of the CUDA back ends: a sweep is queued as a whole and never waits for the host.

Tables, hidden states and draws are on the card. What a plan says is one upload from pinned memory; drawn tokens go to the
card's table, where the next plan reads them, and come back to the host behind the plan (``results.py``). Rows that the card
cannot draw wait for their logits (``host_draws.py``). Legend: N batch rows, T tokens, D hidden width.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np

from ...policies.model.chain import HiddenLayout, PageLayout
from ..device import Arena, DeviceSizes, Pages, Ticket
from ..errors import ExecutorError
from ..exchange import PageExchange
from ..sweep_columns import Ints, Rows, SweepColumns
from ..tables import Tables
from .arena import MappedArena
from .backend import GATHERED, NO_STITCH, CudaBackend, hidden_name
from .components import CudaRun
from .departures import Departures
from .graphs import Graphs
from .ops import DeviceStep
from .results import ResultRing
from .streams import DeviceEvent
from .sweep import CardSweep

NO_GUESS = "a card computes no guesses of hidden states; serve that model on CPUs, or set speculate for it to off"
SLICE = 8 << 20  # bytes of parameters that are packed or copied in one step, between two sweeps


class CardPages(PageExchange):
    """Pages of a card, which move within its memory and wait for nothing."""

    def __init__(self, backend: CudaBackend) -> None:
        super().__init__(backend)
        self._card = backend

    def move(self, arena: str, slots: Sequence[int], targets: Sequence[int]) -> None:
        self._card.move(self.layout(arena), slots, targets)


class CudaDevice:
    """Device over a CUDA back end (see the module and ``gpu/device.py``)."""

    def __init__(self, backend: CudaBackend, sizes: DeviceSizes) -> None:
        self.backend, self.sizes = backend, sizes
        self.tables = Tables(sizes.rows, sizes.max_length, sizes.kv_layers, sizes.page_size)
        self._exchange = CardPages(backend)
        self.pages: Pages = self._exchange
        self.slice_bytes = SLICE
        self._memory = backend.open_memory(sizes.chunk, sizes.budget // sizes.chunk)
        self._arenas: list[MappedArena] = []
        self._results = ResultRing(backend)
        self._departures = Departures(backend)
        self.graphs = Graphs(backend, lambda: [(arena.memory.data_ptr(), arena.nbytes) for arena in self._arenas])
        self._sweep: CardSweep | None = None
        self._steps: deque[DeviceEvent] = deque()  # behind steps that were queued
        self._steps_done = 0
        backend.reserve(self.tables, sizes.max_tokens, sizes.rows)

    def held(self) -> dict[str, int]:
        """Return the bytes of the card that this device has beside its pool of chunks, by use."""
        return self.backend.held() | {"graphs": self.graphs.nbytes, "departures": self._departures.nbytes}

    def enter(self) -> None:
        self.backend.enter()

    def check(self) -> None:
        self.backend.check()

    def settle(self) -> None:
        self.backend.settle()

    def progress(self) -> int:
        """Return the number of steps and components that have been computed, or on a card queued."""
        while self._steps and self._steps[0].done():
            try:
                self._steps.popleft()
            except IndexError:
                break  # another thread asked, too
            self._steps_done += 1
        return self._steps_done + self.backend.parts_done

    def arena(self, name: str, nbytes: int) -> Arena:
        self._arenas.append(MappedArena(self._memory, name, nbytes))
        return self._arenas[-1]

    def add_layout(self, layout: PageLayout, arena: Arena) -> None:
        self.backend.add_arena(layout, arena.memory)
        self._exchange.add_layout(layout)

    def add_width(self, width: int) -> None:
        if width:
            self.backend.scratch.need(hidden_name(width), self._bytes(self.sizes.max_tokens, width))
            self.backend.scratch.need(GATHERED, self._bytes(self.sizes.max_tokens, width))

    def grow(self, max_length: int, kv_layers: int) -> Generator[None, None, bool]:
        grown = yield from self.tables.grow(max_length, kv_layers)
        if grown:
            self.backend.reserve(self.tables, self.sizes.max_tokens, self.sizes.rows)
        return grown

    # sweeps

    def begin(self, columns: SweepColumns) -> None:
        columns.check(self.tables, self.sizes.max_tokens)
        self.tables.apply(columns.plan.edits)
        self._sweep = CardSweep(self.backend, self.tables, columns, self.graphs)

    def arrive(self, width: int, at: Rows, hidden: Any) -> None:
        self.add_width(width)
        sweep, place = self._under_way(), self._place(width)
        came, index = sweep.columns.add(hidden), sweep.columns.add(_token_index(at))
        address, tokens = sweep.columns.at, at.tokens
        ops, scratch = self.backend.ops, self.backend.scratch
        sweep.work.append(lambda: ops.scatter(address(came), address(index), scratch[place], tokens, width))

    def take_hidden(self, layout: HiddenLayout, column: int, at: Rows) -> None:
        slots, planned = self.backend.slots(layout), self._plan_step(at)

        def take(address: int) -> None:
            self.backend.ops.take_hidden(planned(), address, layout.width, slots, column)

        self._over(layout.width, at, take)

    def put_hidden(self, layout: HiddenLayout, column: int, at: Rows) -> None:
        slots, planned = self.backend.slots(layout), self._plan_step(at)

        def put(address: int) -> None:
            self.backend.ops.put_hidden(planned(), address, layout.width, slots, column)

        self._over(layout.width, at, put, writes=False)

    def step(self, run: CudaRun, width: int, at: Rows, delta: Sequence[int]) -> None:
        sweep = self._under_way()
        place = self._place(width)
        decoding = self.graphs.columns_of(run, at, delta, self.sizes.max_length)
        if decoding is not None:
            block, size = sweep.columns.add(decoding.block), decoding.block.size
            hidden = self.backend.scratch
            sweep.work.append(lambda: self.graphs.step(run, decoding, sweep.columns.tensor(block, size), hidden[place]))
        else:
            planned = self._plan_step(at, run.groups, delta)
            self._over(width, at, lambda address: self.backend.forward.run(run.parts, planned(), address))
        sweep.work.append(self._mark)

    def stitch(self, run: CudaRun, width: int, out: int, at: Rows) -> None:
        raise ExecutorError(NO_STITCH.format(width, out))

    def sample(self, run: CudaRun, width: int, at: Rows, delta: Sequence[int]) -> None:
        self._place(width)
        self._under_way().sample(run, at, delta)

    def draft(self, run: CudaRun, width: int, at: Rows, delta: Sequence[int], place: int) -> None:
        self._place(width)
        self._under_way().draft(run, at, delta, place)

    def score(self, run: CudaRun, width: int, at: Rows, delta: Sequence[int]) -> None:
        self._place(width)
        self._under_way().score(run, at, delta)

    def pool(self, run: CudaRun, width: int, at: Rows) -> None:
        self._place(width)
        self._under_way().pool(run, at)

    def depart(self, width: int, at: Rows) -> None:
        sweep = self._under_way()
        nbytes = self._bytes(at.tokens, width)
        departure = self._departures.take(nbytes, self._bytes(self.sizes.max_tokens, width))
        offset = sweep.results.room(nbytes) if departure is None else -1
        sweep.results.leaving.append((offset, nbytes) if departure is None else departure)
        place, index = self._place(width), sweep.columns.add(_token_index(at))

        def leave() -> None:
            target = sweep.results.at(offset) if departure is None else departure.address
            self.backend.ops.gather(self.backend.scratch[place], sweep.columns.at(index), target, at.tokens, width)

        sweep.work.append(leave)

    def read(self, width: int, at: Rows) -> memoryview:
        raise ExecutorError(NO_GUESS)

    def likeness(self, run: CudaRun, width: int, at: Rows, other: memoryview) -> list[float]:
        raise ExecutorError(NO_GUESS)

    def end(self) -> Ticket:
        sweep, self._sweep = self._under_way(), None
        return sweep.queue(self._results)

    # hidden states

    def _over(self, width: int, at: Rows, work: Callable[[int], None], writes: bool = True) -> None:
        """Queue ``work`` over the hidden states [T, D] of these rows, at an address where they are consecutive."""
        sweep, place = self._under_way(), self._place(width)
        tokens = at.tokens
        first = int(at.offset_N[0]) if at.offset_N.size else 0
        scratch, ops = self.backend.scratch, self.backend.ops
        if np.array_equal(at.offset_N[1:], at.offset_N[:-1] + at.count_N[:-1]) and not self._bytes(first, width) % 16:
            sweep.work.append(lambda: work(scratch[place] + self._bytes(first, width)))
            return
        index = sweep.columns.add(_token_index(at))

        def moved() -> None:
            some = sweep.columns.at(index)
            ops.gather(scratch[place], some, scratch[GATHERED], tokens, width)
            work(scratch[GATHERED])
            if writes:
                ops.scatter(scratch[GATHERED], some, scratch[place], tokens, width)

        sweep.work.append(moved)

    def _place(self, width: int) -> str:
        """Return the buffer of hidden states of this width."""
        if (name := hidden_name(width)) not in self.backend.scratch:
            raise ExecutorError(f"no hidden states of width {width} here; a component of this width is loaded first")
        return name

    def _plan_step(self, at: Rows, groups: Sequence[int] = (), delta: Sequence[int] = ()) -> Callable[[], DeviceStep]:
        """Add the columns of a step; what is returned gives the step, once they have addresses."""
        columns = self._under_way().columns
        planned = columns.step(at, self.backend.ops.tile_rows, groups, delta)
        return lambda: planned.on(columns, self.backend.tables)

    def _bytes(self, tokens: int, width: int) -> int:
        return tokens * width * self.backend.dtype.itemsize

    def _mark(self) -> None:
        event = self.backend.streams.event()
        event.record(self.backend.compute)
        self._steps.append(event)

    def _under_way(self) -> CardSweep:
        assert self._sweep is not None, "begin() comes before this call"
        return self._sweep


def _token_index(at: Rows) -> Ints:
    """Return int32 [T]: the places of the rows' tokens in the hidden states of the sweep."""
    before_N = np.cumsum(at.count_N) - at.count_N
    index_T: Ints = np.arange(at.tokens) + np.repeat(at.offset_N - before_N, at.count_N)
    return index_T.astype(np.int32)
