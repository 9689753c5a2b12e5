"""Sweep benchmark: times sweeps of a model on an executor of its own, as a worker's device thread runs them.

Rows have pages at random places and hold computed KV. Sweeps of all shapes follow each other in random order, so none finds
the caches as it left them itself. Legend of tensors: none here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from ...gpu.backend import Backend
from ...gpu.device import DeviceSizes
from ...gpu.errors import BackendError
from ...gpu.executor import PARAMETERS, Executor
from ...gpu.model.config import ComponentSpec
from ...gpu.parameters import ALIGNMENT
from ...gpu.select import open_device
from ...gpu.weights.checkpoint import Checkpoint
from ...gpu.weights.exits import below
from ...policies.model.chain import Component, Kind
from ...policies.model.runs import Run, run_of
from ...policies.plan.sampling import SamplingParams
from ...policies.plan.sweep_plan import Edit, MapGroup, SetPages, SetSampling, Step, SweepPlan, WriteTokens
from .shapes import SWEEP_TOKENS, RowLengths, SweepShape

CHUNK = 64 << 10  # bytes that are mapped at a time
PAGE = 16  # tokens
PIECES = 4  # number of runs that the chain's body is cut into, where it is cut
GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True, slots=True)
class TimedLoad:
    """The time for loading a component: reading, hashing and packing it."""

    kind: str
    nbytes: int
    seconds: float


class SweepBench:
    """A loaded model with full rows; of an adapter, the parts that it changes.

    ``parameters`` and ``kv`` are its sizes for the cost model. Raises BackendError if the model and its rows need more than
    ``memory`` bytes.
    """

    def __init__(self, backend: Backend, checkpoint: Checkpoint, lengths: RowLengths, memory: int) -> None:
        self._backend = backend
        self._lengths = lengths
        self._random = Random(0)
        specs = [spec.loads()[0] for spec in checkpoint.specs(PAGE, str(backend.dtype).removeprefix("torch."))]
        layers = sum(spec.component.kv is not None for spec in specs)
        pages = [-(-lengths.of_row(row) // PAGE) for row in range(lengths.rows)]
        layouts = {spec.component.kv for spec in specs if spec.component.kv is not None}
        slots = layers * sum(pages)
        packed = sum(-(-part.nbytes // ALIGNMENT) * ALIGNMENT for spec in specs for part in backend.parts(spec))
        sizes = [packed, *[slots * backend.slot_bytes(layout) for layout in layouts]]
        self.nbytes = sum(sizes)
        if self.nbytes > memory:
            message = f"{checkpoint.path} with {lengths.rows} sequences needs {sum(sizes)} bytes, and {memory} are free here"
            raise BackendError(f"{message}; end other programs, or profile a smaller model")
        budget = sum(-(-size // CHUNK) * CHUNK for size in sizes)
        room = DeviceSizes(lengths.rows, lengths.long, layers, SWEEP_TOKENS, PAGE, budget, CHUNK)
        self._executor = Executor(open_device(backend, room))
        self._number = 0
        self._chunks = iter(range(1 << 40))
        self._map(PARAMETERS, sizes[0])
        for layout, size in zip(layouts, sizes[1:], strict=True):
            self._map(self._executor.add_layout(layout), size)
        self.loads = list(self._load(backend, specs))
        self._chain, self._layers = [spec.component for spec in specs], checkpoint.config.layers
        self._compose(self._chain)
        runs = self._whole
        self.parameters, self.kv = sum(run.nbytes for run in runs), sum(run.kv_bytes for run in runs)
        self._fill(pages, layers, checkpoint.config.vocabulary)

    def plan(self, shape: SweepShape) -> SweepPlan:
        """Return a plan in which all rows pass all runs, and the head only the rows that draw their next token.

        These are the decoding rows, and the prompts that end in this sweep.
        """
        row, start, count = (list(column) for column in zip(*shape.batch, strict=True))
        runs = self._whole if shape.runs == "whole" else self._pieces
        runs = runs[: PIECES // 2] if shape.runs == "half" else runs
        drawn = [i for i, n in enumerate(count) if n == 1 or shape.drawn] if runs[-1].head else []
        plan = SweepPlan(self._number, row=row, start=start, count=count, sample=drawn)
        for run in runs:
            if batch := drawn if run.head else list(range(len(row))):
                plan.steps.append(Step(self._runs[run], batch, [], run.nbytes, run.kv_bytes, run.head))
        self._number += 1
        return plan

    def prompt_seconds(self, depth: int) -> float:
        """Return the seconds that a prompt of the first row's length takes in the first layers, and then in the head.

        ``depth`` is the number of layers; 0 means all.
        """
        runs = [self._first_layers(depth), self._whole[-1]] if depth else self._whole
        length, seconds = self._lengths.of_row(0), 0.0
        for start in range(0, length, SWEEP_TOKENS):
            count = min(SWEEP_TOKENS, length - start)
            drawn = [0] * (start + count == length)
            plan = SweepPlan(self._number, row=[0], start=[start], count=[count], sample=drawn)
            for run in runs:
                if batch := drawn if run.head else [0]:
                    plan.steps.append(Step(self._runs[run], batch, [], run.nbytes, run.kv_bytes, run.head))
            self._number += 1
            seconds += self._executor.execute(plan).seconds
        return seconds

    def _first_layers(self, depth: int) -> Run:
        """Return the run of the embedding and the first layers, composed when it is first asked for."""
        run = run_of(0, below(self._chain, depth, self._layers), 0)
        if run not in self._runs:
            self._runs[run] = len(self._runs)
            self._executor.compose(self._runs[run], run.components, run.kv_layer)
        return run

    def time(self, shapes: Sequence[SweepShape], repeats: int, progress: Callable[[int, int], None]) -> list[list[float]]:
        """Return the sorted seconds of each shape's repeats. A first turn warms up and does not count."""
        found: list[list[float]] = [[] for _ in shapes]
        order = list(range(len(shapes)))
        try:
            for turn in range(repeats + 1):
                self._random.shuffle(order)
                for i in order:
                    seconds = self._executor.execute(self.plan(shapes[i])).seconds
                    if turn:
                        found[i].append(seconds)
                progress(turn + 1, repeats + 1)
        finally:
            self._backend.settle()  # a kernel thread that is late still reads memory that is freed with this object
        return [sorted(times) for times in found]

    def _map(self, arena: str, nbytes: int) -> None:
        self._executor.map(MapGroup(arena, 0, [next(self._chunks) for _ in range(-(-nbytes // CHUNK))], back=False))

    def _load(self, backend: Backend, specs: Sequence[ComponentSpec]) -> Iterator[TimedLoad]:
        """Load components one by one, packed one behind the other, with equal tensors only once."""
        offsets: dict[bytes, int] = {}
        end = 0
        for spec in {spec.name: spec for spec in specs}.values():
            parts, before = backend.parts(spec), end
            for part in parts:
                if part.id not in offsets:
                    offsets[part.id] = end
                    end += -(-part.nbytes // ALIGNMENT) * ALIGNMENT
            began = time.perf_counter()
            for _ in self._executor.load(spec, [offsets[part.id] for part in parts]):
                pass
            yield TimedLoad(spec.component.kind, end - before, time.perf_counter() - began)

    def _compose(self, chain: Sequence[Component]) -> None:
        """Compose the chain as a worker runs it, with the head apart, and again with the body cut into pieces."""
        last = len(chain) - (chain[-1].kind is Kind.HEAD)
        cuts = sorted({last * piece // PIECES for piece in range(PIECES)})
        self._whole = _runs(chain, [0], last)
        self._pieces = _runs(chain, cuts, last)
        self._runs = {run: number for number, run in enumerate(dict.fromkeys([*self._whole, *self._pieces]))}
        for run, number in self._runs.items():
            self._executor.compose(number, run.components, run.kv_layer)

    def _fill(self, pages: Sequence[int], layers: int, vocabulary: int) -> None:
        """Give every row pages and tokens, and compute their KV."""
        slots = list(range(layers * sum(pages)))
        self._random.shuffle(slots)
        for row, count in enumerate(pages):
            length = self._lengths.of_row(row)
            tokens = [self._random.randrange(vocabulary) for _ in range(length)]
            edits: list[Edit] = [WriteTokens(row, 0, tokens), SetSampling(row, length, GREEDY)]
            edits += [SetPages(row, 0, page, [slots.pop() for _ in range(layers)]) for page in range(count)]
            for start in range(0, length, SWEEP_TOKENS):
                plan = self.plan(SweepShape(((row, start, min(SWEEP_TOKENS, length - start)),), drawn=False))
                plan.edits, edits = edits, []
                self._executor.execute(plan)


def _runs(chain: Sequence[Component], cuts: Sequence[int], last: int) -> list[Run]:
    """Return the runs of the body, which ends before ``last`` and is cut at ``cuts``, and of the head."""
    borders = [*zip(cuts, [*cuts[1:], last], strict=True), *([(last, len(chain))] if last < len(chain) else [])]
    layer = [sum(component.kv is not None for component in chain[:place]) for place in range(len(chain))]
    return [run_of(first, chain[first:end], layer[first]) for first, end in borders]
