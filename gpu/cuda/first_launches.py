"""First launches of what serving will launch, so that Triton compiles it then, and no request waits for a compiler.

Some sweeps over components, with the deltas of their application, on a device of their own: few rows and many, at the first
positions and at the last, tokens drawn by every kind of options, hidden states and pages that come, move and leave. They are
queued by the code that serves, so what they launch is what serving launches. What they compute is not read. Legend: T
tokens, D hidden width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch

from ...policies.model.chain import HiddenLayout, PageLayout
from ...policies.plan.sampling import SamplingParams, TokenRules
from ...policies.plan.sweep_plan import Edit, SetSampling, SweepPlan, WriteTokens
from ..device import DeviceSizes
from ..model.config import HeadConfig, pools
from ..row_backend import RowPacked
from ..sweep_columns import Rows, SweepColumns
from .backend import CudaBackend
from .components import CudaRun
from .deltas import CudaDelta
from .device import CudaDevice

MANY = 65  # rows: more than the tile of few rows has
FEW = 2
SLOTS = 3  # of an arena
NUMBER = 1  # of the deltas
DRAWS = (
    [SamplingParams(temperature=0.0)],
    [SamplingParams(temperature=1.0, top_p=0.9, logprobs=1)],
    [SamplingParams(temperature=1.0, presence_penalty=0.5, rules=TokenRules(bias=[(0, 1.0)]))],
)
Place = tuple[int, int, int]  # table row, first position, tokens


class FirstLaunches:
    """The launches for one component, or two that follow each other (see the module). ``deltas`` are by their place."""

    def __init__(
        self, backend: CudaBackend, packed: Sequence[RowPacked], deltas: Mapping[int, CudaDelta], tokens: int
    ) -> None:
        self._backend = backend
        self._packed, self._deltas = packed, deltas
        self._tokens = tokens  # of a sequence
        self._rows = min(MANY, max(tokens - 1, FEW))
        component = packed[-1].spec.component
        self._width = component.width_in or component.width_out
        self._page = next((kv.page_size for one in packed if (kv := one.spec.component.kv) is not None), 16)
        self._kept = HiddenLayout(self._width, str(backend.dtype).removeprefix("torch."), self._page)

    def steps(self) -> Iterator[str]:
        """Launch, sweep by sweep. Each step yields "": it compares nothing."""
        sizes = DeviceSizes(
            self._rows + 1, self._tokens, len(self._packed), self._tokens + self._rows, self._page,
            self._backend.chunk, self._backend.chunk,
        )  # fmt: skip
        device = CudaDevice(self._backend, sizes)
        device.add_width(self._width)
        layouts: set[PageLayout] = {kv for one in self._packed if (kv := one.spec.component.kv) is not None}
        for layout in layouts | {self._kept}:
            self._add_arena(layout)
        run = self._backend.compose(self._packed, 0)
        if self._deltas:
            self._backend.attach(run, NUMBER, self._deltas)
        yield ""
        config = self._packed[0].spec.config
        last = self._tokens - 1
        few, late = [(row, 0, 1) for row in range(FEW)], [(row, last, 1) for row in range(FEW)]
        beside = [(row, 0, 1) for row in range(1, self._rows)]
        for places in (few, late, [(0, 0, self._tokens), *beside]):
            for delta in ([], [NUMBER] * len(places)) if self._deltas else ([],):
                if pools(config):
                    continue  # computed on the host
                if isinstance(config, HeadConfig):
                    for options in DRAWS:
                        self._draw(device, run, places[-self._rows :], delta[-self._rows :], options)
                        yield ""
                else:
                    self._compute(device, run, places, delta)
                    yield ""
        self._backend.settle()

    def _add_arena(self, layout: PageLayout) -> None:
        """Add an arena of few slots, and move and copy one."""
        backend = self._backend
        nbytes = backend.slot_bytes(layout)
        backend.add_arena(layout, torch.zeros(SLOTS * nbytes, dtype=torch.uint8, device=backend.device))
        host = torch.zeros(1, nbytes, dtype=torch.uint8)
        backend.move(layout, [0], [1])
        backend.export(layout, [1], host)
        backend.import_(layout, [2], host)

    def _begun(self, device: CudaDevice, places: Sequence[Place], sample: bool, options: Sequence[SamplingParams]) -> Rows:
        """Begin a sweep whose rows' hidden states have arrived. Return its rows."""
        row, start, count = (list(column) for column in zip(*places, strict=True))
        edits: list[Edit] = [WriteTokens(0, 0, [0])]
        edits += [SetSampling(one, 1, options[one % len(options)]) for one in row]
        plan = SweepPlan(0, edits, row=row, start=start, count=count, sample=list(range(len(row))) if sample else [])
        columns = SweepColumns(plan)
        device.begin(columns)
        at = columns.rows(range(len(row)))
        hidden = np.zeros(at.tokens * self._width * self._backend.dtype.itemsize, dtype=np.uint8)
        device.arrive(self._width, at, hidden)
        return at

    def _compute(self, device: CudaDevice, run: CudaRun, places: Sequence[Place], delta: list[int]) -> None:
        """Run a body over rows whose hidden states come and leave, and are kept at an exit."""
        at = self._begun(device, places, sample=False, options=DRAWS[0])
        device.take_hidden(self._kept, 0, at)
        device.step(run, self._width, at, delta)
        device.put_hidden(self._kept, 0, at)
        device.depart(self._width, at)
        device.end().wait()

    def _draw(
        self, device: CudaDevice, run: CudaRun, places: Sequence[Place], delta: list[int], options: Sequence[SamplingParams]
    ) -> None:
        """Draw tokens with a head."""
        at = self._begun(device, [(row, start, 1) for row, start, _ in places], sample=True, options=options)
        device.sample(run, self._width, at, delta)
        device.end().wait()
