"""Device of a CPU: memory, tables, hidden states and pages in the memory of the process, around a native or torch back end.

Nothing is queued: a call returns when it is done, and a ticket is ready when it is given. Legend: T tokens, D hidden width.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..policies.model.chain import HiddenLayout, PageLayout
from ..policies.plan.sweep_plan import SweepResult
from .backend import SLICE, Batch, HostBackend
from .device import Arena, DeviceSizes, Pages, Ticket
from .exchange import PageExchange
from .hidden import HiddenStates
from .memory import HostArena
from .sweep_columns import Rows, SweepColumns
from .sweep_draws import SweepDraws, numbers
from .tables import Tables


@dataclass(slots=True)  # not frozen: made for each sweep
class EndedSweep:
    """The ticket of a sweep that has ended."""

    result: SweepResult
    departed: list[memoryview]
    ready: bool = True

    def wait(self) -> SweepResult:
        return self.result


@dataclass(slots=True)
class HostSweep:
    """A sweep under way."""

    draws: SweepDraws
    began: float
    kernel_seconds: float = 0.0  # inside runs
    departed: list[memoryview] = field(default_factory=list)


class HostDevice:
    """Device over a back end whose memory is the process's (see the module and ``gpu/device.py``)."""

    def __init__(self, backend: HostBackend, sizes: DeviceSizes) -> None:
        self.backend: HostBackend = backend
        self.tables = Tables(sizes.rows, sizes.max_length, sizes.kv_layers, sizes.page_size)
        self._exchange = PageExchange(backend)
        self.pages: Pages = self._exchange
        self.slice_bytes = SLICE
        self._hidden = HiddenStates(sizes.max_tokens, backend.dtype)
        self.sizes = sizes
        self._sweep: HostSweep | None = None
        backend.reserve(self.tables, sizes.max_tokens, sizes.rows)

    def arena(self, name: str, nbytes: int) -> Arena:
        return HostArena(name, nbytes, self.sizes.chunk, self.sizes.protect)

    def add_layout(self, layout: PageLayout, arena: Arena) -> None:
        self.backend.add_arena(layout, arena.memory)
        self._exchange.add_layout(layout)

    def add_width(self, width: int) -> None:
        self._hidden.add_width(width)

    def grow(self, max_length: int, kv_layers: int) -> Generator[None, None, bool]:
        former = self.tables.tokens, self.tables.slots
        grown = yield from self.tables.grow(max_length, kv_layers)
        if grown:
            self.backend.reserve(self.tables, self._hidden.max_tokens, self.tables.rows)
            del former  # not before: a late thread may have read them until then
        return grown

    def begin(self, columns: SweepColumns) -> None:
        draws = SweepDraws(columns, self.tables, self.backend, self._hidden.pick)
        self._sweep = HostSweep(draws, time.perf_counter())
        columns.check(self.tables, self._hidden.max_tokens)
        self.tables.apply(columns.plan.edits)

    def arrive(self, width: int, at: Rows, hidden: Any) -> None:
        self._hidden.write(width, at.offset_N, at.count_N, hidden)

    def take_hidden(self, layout: HiddenLayout, column: int, at: Rows) -> None:
        with self._hidden.rows(layout.width, at.offset_N, at.count_N) as hidden_TD:
            self.backend.take_hidden(layout, column, Batch(at.row_N, at.start_N, at.count_N, hidden_TD))

    def put_hidden(self, layout: HiddenLayout, column: int, at: Rows) -> None:
        with self._hidden.rows(layout.width, at.offset_N, at.count_N) as hidden_TD:
            self.backend.put_hidden(layout, column, Batch(at.row_N, at.start_N, at.count_N, hidden_TD))

    def step(self, run: Any, width: int, at: Rows, delta: Sequence[int]) -> None:
        sweep = self._under_way()
        with self._hidden.rows(width, at.offset_N, at.count_N) as hidden_TD:
            batch = Batch(at.row_N, at.start_N, at.count_N, hidden_TD, numbers(delta))
            began = time.perf_counter()
            self.backend.forward(run, batch)
            sweep.kernel_seconds += time.perf_counter() - began

    def stitch(self, run: Any, width: int, out: int, at: Rows) -> None:
        sweep, place = self._under_way(), (at.offset_N, at.count_N)
        with self._hidden.rows(width, *place) as hidden_TD, self._hidden.rows(out, *place) as out_TE:
            began = time.perf_counter()
            self.backend.stitch(run, hidden_TD, out_TE)
            sweep.kernel_seconds += time.perf_counter() - began

    def sample(self, run: Any, width: int, at: Rows, delta: Sequence[int]) -> None:
        self._under_way().draws.sample(run, width, at, delta)

    def draft(self, run: Any, width: int, at: Rows, delta: Sequence[int], place: int) -> None:
        self._under_way().draws.draft(run, width, at, delta, place)

    def score(self, run: Any, width: int, at: Rows, delta: Sequence[int]) -> None:
        self._under_way().draws.score(run, width, at, delta)

    def pool(self, run: Any, width: int, at: Rows) -> None:
        self._under_way().draws.pool(run, width, at)

    def depart(self, width: int, at: Rows) -> None:
        self._under_way().departed.append(self._hidden.read(width, at.offset_N, at.count_N))

    def read(self, width: int, at: Rows) -> memoryview:
        return self._hidden.read(width, at.offset_N, at.count_N)

    def likeness(self, run: Any, width: int, at: Rows, other: memoryview) -> list[float]:
        sweep = self._under_way()
        began = time.perf_counter()
        other_ND = torch.frombuffer(bytearray(other), dtype=self.backend.dtype).view(-1, width)
        both = [self.backend.logits(run, one).float().clone() for one in (self._hidden.pick(width, at.offset_N), other_ND)]
        true_NV, guess_NV = (torch.softmax(logits_NV, dim=-1) for logits_NV in both)
        found: list[float] = torch.cosine_similarity(true_NV, guess_NV, dim=-1).tolist()
        sweep.kernel_seconds += time.perf_counter() - began
        return found

    def end(self) -> Ticket:
        sweep, self._sweep = self._under_way(), None
        seconds = time.perf_counter() - sweep.began
        return EndedSweep(sweep.draws.result(seconds, sweep.kernel_seconds), sweep.departed)

    def enter(self) -> None:
        """Do nothing: any thread may use a CPU."""

    def check(self) -> None:
        """Do nothing: a CPU that fails takes the process with it."""

    def settle(self) -> None:
        self.backend.settle()

    def progress(self) -> int:
        return self.backend.progress()

    def _under_way(self) -> HostSweep:
        assert self._sweep is not None, "begin() comes before this call"
        return self._sweep
