"""Runs checkpoints on an executor without a worker: lays out memory and slots, writes plans by hand, collects results."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from blockwright.gpu.backend import Backend
from blockwright.gpu.device import DeviceSizes
from blockwright.gpu.executor import Executor
from blockwright.gpu.model.config import ComponentSpec
from blockwright.gpu.select import open_device
from blockwright.policies.model.chain import Kind
from blockwright.policies.plan.sampling import SamplingParams
from blockwright.policies.plan.sweep_plan import (
    Edit,
    MapGroup,
    SetPages,
    SetSampling,
    Step,
    SweepPlan,
    SweepResult,
    WriteTokens,
)
from blockwright.zoo.source import open_source

CHUNK = 65536
GREEDY = SamplingParams(temperature=0.0)


@dataclass(slots=True)
class Placing:
    """Where packed tensors go: one behind the other, each once."""

    offsets: dict[bytes, int] = field(default_factory=dict)
    end: int = 0


def placing(backend: Backend, specs: Sequence[ComponentSpec], start: int = 0) -> Placing:
    places = Placing(end=start)
    for spec in specs:
        for part in backend.parts(spec):
            if part.id not in places.offsets:
                places.offsets[part.id] = places.end
                places.end += -(-part.nbytes // 64) * 64
    return places


def load(executor: Executor, spec: ComponentSpec, places: Placing) -> None:
    """Take all steps at once."""
    for _ in executor.load(spec, [places.offsets[part.id] for part in executor.backend.parts(spec)]):
        pass


class Rig:
    """One executor with the chain of one checkpoint loaded, as run 0 (whole chain) unless ``cuts`` says otherwise.

    ``cuts`` are component indices where the chain is split into runs 0, 1, ...; stitches are runs of their own. Slots are
    handed out in random order.
    """

    def __init__(
        self,
        backend: Backend,
        path: Path | str,
        page_size: int = 8,
        cuts: Sequence[int] = (),
        rows: int = 8,
        max_length: int = 160,
    ) -> None:
        self.page_size = page_size
        self.checkpoint = open_source(path)
        kv_dtype = str(backend.dtype).removeprefix("torch.")
        self.specs = self.checkpoint.specs(page_size, kv_dtype)
        layers = self.checkpoint.config.layers
        sizes = DeviceSizes(rows, max_length, layers + 2, 512, page_size, budget=64 << 20, chunk=CHUNK, protect=True)
        self.executor = Executor(open_device(backend, sizes))
        self.numbers = iter(range(1, 1_000_000))
        self._next_chunk = 0
        self._load(backend)
        pages = -(-max_length // page_size)
        self._slots = self._add_arena(backend, rows * layers * pages)
        stitches = [at for at, spec in enumerate(self.specs) if spec.component.kind is Kind.STITCH]
        self.runs = self._compose(sorted({*cuts, *stitches, *(at + 1 for at in stitches)}))

    def commit(self, arena: str, nbytes: int) -> None:
        count = -(-nbytes // CHUNK)
        ids = list(range(self._next_chunk, self._next_chunk + count))
        self._next_chunk += count
        self.executor.map(MapGroup(arena, 0, ids, back=False))

    def _load(self, backend: Backend) -> None:
        self.placing = placing(backend, self.specs)
        self.commit("parameters", self.placing.end)
        for spec in self.specs:
            load(self.executor, spec, self.placing)

    def _add_arena(self, backend: Backend, count: int) -> list[int]:
        layout = next(spec.component.kv for spec in self.specs if spec.component.kv is not None)
        self.commit(self.executor.add_layout(layout), count * backend.slot_bytes(layout))
        slots = list(range(count))
        random.Random(7).shuffle(slots)
        return slots

    def _compose(self, cuts: Sequence[int]) -> list[int]:
        bounds = [0, *cuts, len(self.specs)]
        for run in range(len(bounds) - 1):
            first, last = bounds[run], bounds[run + 1]
            kv_layer = sum(spec.component.kv is not None for spec in self.specs[:first])
            self.executor.compose(run, [spec.component.shared for spec in self.specs[first:last]], kv_layer)
        return list(range(len(bounds) - 1))

    def admit(self, row: int, tokens: Sequence[int], params: SamplingParams = GREEDY, length: int = 160) -> list[Edit]:
        """Edits that give table row ``row`` its prompt, its sampling and slots for ``length`` tokens."""
        layers = self.checkpoint.config.layers
        edits: list[Edit] = [WriteTokens(row, 0, list(tokens)), SetSampling(row, len(tokens), params)]
        for page in range(-(-length // self.page_size)):
            edits.append(SetPages(row, 0, page, [self._slots.pop() for _ in range(layers)]))
        return edits

    def plan(
        self, batch: Sequence[tuple[int, int, int]], sample: Sequence[int] = (), edits: Sequence[Edit] = ()
    ) -> SweepPlan:
        """A plan whose batch rows are (row, start, count), all passing through all runs."""
        row, start, count = (list(column) for column in zip(*batch, strict=True))
        steps = [Step(run, list(range(len(row)))) for run in self.runs]
        return SweepPlan(
            number=next(self.numbers),
            edits=list(edits),
            row=row,
            start=start,
            count=count,
            steps=steps,
            sample=list(sample),
        )

    def run(
        self, batch: Sequence[tuple[int, int, int]], sample: Sequence[int] = (), edits: Sequence[Edit] = ()
    ) -> SweepResult:
        return self.executor.execute(self.plan(batch, sample, edits))

    def generate(
        self, row: int, tokens: Sequence[int], count: int, params: SamplingParams = GREEDY, chunk: int = 512
    ) -> list[int]:
        """``count`` new tokens of one sequence that runs alone, its prompt in chunks."""
        edits: Sequence[Edit] = self.admit(row, tokens, params, len(tokens) + count)
        out: list[int] = []
        start = 0
        while len(out) < count:
            known = len(tokens) + len(out)
            step = min(chunk, known - start)
            result = self.run([(row, start, step)], [0] if start + step == known else [], edits)
            edits, start = (), start + step
            out += result.tokens
        return out

    def scores(self, row: int, tokens: Sequence[int], chunk: int = 512) -> list[float]:
        """Log-probability of each token of a prompt but the first; the prompt is computed in chunks."""
        edits: Sequence[Edit] = self.admit(row, tokens, SamplingParams(temperature=0.0, prompt_logprobs=0), len(tokens))
        out: list[float] = []
        for start in range(0, len(tokens), chunk):
            plan = self.plan([(row, start, min(chunk, len(tokens) - start))], [], edits)
            plan.score, edits = [0], ()
            out += [entry.logprob for entry in self.executor.execute(plan).scores[0]]
        return out

    def logprobs(self, row: int, tokens: Sequence[int], given: int, chunk: int = 512) -> list[list[float]]:
        """Log-softmax over the vocabulary after ``tokens[:given]`` and after each further token, which is forced.

        The first ``given`` tokens are a prompt in chunks, the others decode one by one.
        """
        vocabulary = self.checkpoint.config.vocabulary
        params = SamplingParams(temperature=0.0, logprobs=vocabulary)
        edits: list[Edit] = self.admit(row, tokens[:given], params, len(tokens))
        out, start = [], 0
        while start < len(tokens):
            known = max(given, start + 1)
            step = min(chunk, known - start)
            result = self.run([(row, start, step)], [0] if start + step == known else [], edits)
            start += step
            edits = [WriteTokens(row, start, list(tokens[start : start + 1]))] if start >= given else []
            for found in result.logprobs:
                assert found is not None
                out.append([value for _, value in sorted(found.top)])
        return out
