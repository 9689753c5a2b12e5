"""A worker's executor without a worker, for ``gpu.py``: memory, slots and plans by hand, weights random or of a checkpoint.

Random weights are made on the card and packed there. Each component begins at a chunk of its own, so that any of them can be
dropped. Rows are table rows; their slots are handed out in random order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from gpu_card import Card, random_tensor
from gpu_sizes import ModelSize

from blockwright.gpu.cuda.backend import CudaBackend
from blockwright.gpu.cuda.device import CudaDevice
from blockwright.gpu.device import DeviceSizes, Ticket
from blockwright.gpu.executor import PARAMETERS, Executor
from blockwright.gpu.model.config import (
    AttentionConfig,
    ComponentConfig,
    ComponentSpec,
    EmbeddingConfig,
    HeadConfig,
    MlpConfig,
    NormConfig,
    RopeConfig,
)
from blockwright.policies.model.chain import Component, Kind, KvLayout
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

GREEDY = SamplingParams(temperature=0.0)
SPREAD = 0.02  # of random weights
Batch = Sequence[tuple[int, int, int]]  # row, start, count


def specs_of(size: ModelSize, dtype: str, page: int) -> list[ComponentSpec]:
    """Return the chain of a Llama whose tensors are in no file."""
    norm = NormConfig(eps=1e-5)
    attention = AttentionConfig(
        hidden=size.hidden, heads=size.heads, kv_heads=size.kv_heads, head_dim=size.head_dim, norm=norm,
        rope=RopeConfig(theta=500000.0), scale=size.head_dim**-0.5,
    )  # fmt: skip
    mlp = MlpConfig(hidden=size.hidden, intermediate=size.intermediate, norm=norm)
    layout = KvLayout(size.kv_heads, size.head_dim, dtype, page)
    chain: list[tuple[Kind, ComponentConfig]] = [
        (Kind.EMBEDDING, EmbeddingConfig(vocabulary=size.vocabulary, hidden=size.hidden))
    ]
    chain += [(Kind.ATTENTION, attention), (Kind.MLP, mlp)] * size.layers
    chain += [(Kind.HEAD, HeadConfig(vocabulary=size.vocabulary, hidden=size.hidden, norm=norm))]
    return [
        ComponentSpec(
            Component(
                f"component {place}".encode().ljust(16),
                kind,
                0,
                size.hidden if place else 0,
                size.hidden,
                layout if kind is Kind.ATTENTION else None,
            ),
            config,
        )
        for place, (kind, config) in enumerate(chain)
    ]


class FilledExecutor(Executor):
    """An executor whose components may come from the card itself instead of files."""

    def view(self, offset: int, nbytes: int) -> torch.Tensor:
        """Return committed memory of the parameters."""
        return self._arenas[PARAMETERS].view(offset, nbytes)

    def fill(self, card: Card, spec: ComponentSpec, offsets: Sequence[int], seed: int) -> None:
        """Make a component resident, with random weights of this seed."""
        memory = {}
        for number, (part, offset) in enumerate(zip(self.backend.parts(spec), offsets, strict=True)):
            memory[part.role] = self.view(offset, part.nbytes)
            flat = len(part.shape) == 1
            raw = random_tensor(card, *part.shape, seed=seed * 100 + number, spread=SPREAD, dtype=self.backend.dtype)
            self.backend.pack(part, raw + 1 if flat else raw, memory[part.role])
        self.parameters.components[spec.name] = self.backend.assemble(spec, memory)


@dataclass(frozen=True, slots=True)
class RigSizes:
    """``spare``: bytes beside the model's, of deltas. ``positions``: of KV, 0 for all rows at their longest."""

    rows: int
    length: int
    tokens: int  # of a sweep
    page: int
    spare: int = 0
    positions: int = 0


class Rig:
    """A model on an executor, as runs 0, 1, .. that are cut before the components ``cuts``."""

    def __init__(
        self,
        card: Card,
        backend: CudaBackend,
        specs: Sequence[ComponentSpec],
        sizes: RigSizes,
        load: Callable[[FilledExecutor, ComponentSpec, list[int]], object] | None = None,
        cuts: Sequence[int] = (),
    ) -> None:
        self.card = card
        self.backend = backend
        self.specs = list(specs)
        self.sizes = sizes
        self.layers = sum(spec.component.kv is not None for spec in specs)
        self.layout = next(spec.component.kv for spec in specs if spec.component.kv is not None)
        chunk, slot = card.chunk, backend.slot_bytes(self.layout)
        self.offsets, self._end = self._placed(chunk)
        positions = sizes.positions or sizes.rows * (sizes.length + sizes.page)
        slots = self.layers * -(-positions // sizes.page)
        self.kv_chunks = -(-slots * slot // chunk)
        spare = -(-sizes.spare // chunk)
        budget = self._end + (self.kv_chunks + spare) * chunk
        made = DeviceSizes(sizes.rows, sizes.length, self.layers + 1, sizes.tokens, sizes.page, budget, chunk)
        self.executor = FilledExecutor(CudaDevice(backend, made))
        self._load = load or (lambda executor, spec, offsets: executor.fill(card, spec, offsets, self.specs.index(spec)))
        self._free = list(range(budget // chunk))[::-1]
        self._number = 0
        self._ids = self.commit(PARAMETERS, 0, self._end // chunk)
        for spec in specs:
            self.load(spec)
        self.commit(self.executor.add_layout(self.layout), 0, self.kv_chunks)
        self._slots = list(range(slots))
        random.Random(7).shuffle(self._slots)
        self._bounds = [0, *cuts, len(specs)]
        self.runs = list(range(len(self._bounds) - 1))
        for run in self.runs:
            self.compose(run)

    def _placed(self, chunk: int) -> tuple[dict[bytes, list[int]], int]:
        """Return the offsets of each component's parts, and the end of them all."""
        found: dict[bytes, list[int]] = {}
        known: dict[bytes, int] = {}
        end = 0
        for spec in self.specs:
            end = -(-end // chunk) * chunk
            for part in self.backend.parts(spec):
                if part.id not in known:
                    known[part.id] = end
                    end += -(-part.nbytes // 64) * 64
            found[spec.name] = [known[part.id] for part in self.backend.parts(spec)]
        return found, -(-end // chunk) * chunk

    def commit(self, arena: str, first: int, count: int) -> list[int]:
        """Map as many chunks of the pool, and return their ids."""
        ids = [self._free.pop() for _ in range(count)]
        self.executor.map(MapGroup(arena, first, ids, back=False))
        return ids

    def ids_at(self, first: int) -> list[int]:
        """Return the chunks of the model's parameters from chunk ``first`` of their arena on."""
        return self._ids[first:]

    def move(self, source: str, first: int, target: str, to: int, ids: list[int]) -> None:
        """Take chunks from one arena and give them to another."""
        self.executor.map(MapGroup(source, first, ids, back=True))
        self.executor.map(MapGroup(target, to, ids, back=False))

    def allocate(self, nbytes: int) -> int:
        """Return the offset of new memory behind the parameters."""
        offset, chunk = self._end, self.card.chunk
        count = -(-nbytes // chunk)
        self.commit(PARAMETERS, offset // chunk, count)
        self._end += count * chunk
        return offset

    def load(self, spec: ComponentSpec) -> None:
        """Make a component resident."""
        self.executor.device.add_width(spec.component.width_out)
        self._load(self.executor, spec, self.offsets[spec.name])

    def members(self, run: int) -> list[ComponentSpec]:
        return self.specs[self._bounds[run] : self._bounds[run + 1]]

    def compose(self, run: int) -> None:
        before = self.specs[: self._bounds[run]]
        self.executor.compose(
            run, [spec.name for spec in self.members(run)], sum(spec.component.kv is not None for spec in before)
        )

    def admit(self, row: int, tokens: Sequence[int], length: int, params: SamplingParams = GREEDY) -> list[Edit]:
        """Return the edits of a sequence of at most ``length`` tokens in table row ``row``."""
        edits: list[Edit] = [WriteTokens(row, 0, list(tokens)), SetSampling(row, len(tokens), params)]
        for page in range(-(-length // self.sizes.page)):
            edits.append(SetPages(row, 0, page, [self._slots.pop() for _ in range(self.layers)]))
        return edits

    def release(self, edits: Sequence[Edit]) -> None:
        """Take back the slots of sequences."""
        for edit in edits:
            if isinstance(edit, SetPages):
                self._slots += edit.slots

    def plan(self, batch: Batch, sample: Sequence[int], edits: Sequence[Edit] = (), delta: Sequence[int] = ()) -> SweepPlan:
        row, start, count = (list(column) for column in zip(*batch, strict=True))
        self._number += 1
        steps = [Step(run, list(range(len(row))), delta=list(delta)) for run in self.runs]
        return SweepPlan(
            number=self._number, edits=list(edits), row=row, start=start, count=count, steps=steps, sample=list(sample)
        )

    def run(
        self, batch: Batch, sample: Sequence[int] = (), edits: Sequence[Edit] = (), delta: Sequence[int] = ()
    ) -> SweepResult:
        return self.executor.execute(self.plan(batch, sample, edits, delta))

    def submit(self, batch: Batch, sample: Sequence[int], delta: Sequence[int] = ()) -> Ticket:
        """Queue a plan, while those before it may still run."""
        return self.executor.submit(self.plan(batch, sample, (), delta))

    @property
    def device(self) -> CudaDevice:
        found = self.executor.device
        assert isinstance(found, CudaDevice)
        return found

    def fill_cache(self, rows: int, context: int, length: int, seed: int = 3, params: SamplingParams = GREEDY) -> list[Edit]:
        """Compute ``context`` random tokens of each of the rows, and return their edits."""
        draw, vocabulary = random.Random(seed), _vocabulary(self.specs)
        edits: list[Edit] = []
        for row in range(rows):
            mine = self.admit(row, [draw.randrange(vocabulary) for _ in range(context)], length, params)
            for start in range(0, context, self.sizes.tokens):
                self.run([(row, start, min(self.sizes.tokens, context - start))], (), mine if not start else ())
            edits += mine
        return edits

    def generate(self, row: int, tokens: Sequence[int], count: int, chunk: int, delta: Sequence[int] = ()) -> list[int]:
        """Return greedy tokens of one sequence that runs alone, its prompt in chunks."""
        edits = mine = self.admit(row, tokens, len(tokens) + count)
        out: list[int] = []
        start = 0
        while len(out) < count:
            known = len(tokens) + len(out)
            step = min(chunk, known - start)
            out += self.run([(row, start, step)], [0] if start + step == known else [], edits, delta).tokens
            edits, start = [], start + step
        self.release(mine)
        return out

    def logprobs(
        self, row: int, tokens: Sequence[int], given: int, chunk: int, beside: Batch = (), best: int = 0
    ) -> list[list[tuple[int, float]]]:
        """Return log-probabilities after ``tokens[:given]`` and after each further token, which is forced.

        The ``best`` ones of the vocabulary, 0: all. ``beside`` are rows of other sequences that are computed in each sweep.
        """
        params = SamplingParams(temperature=0.0, logprobs=best or _vocabulary(self.specs))
        edits = mine = self.admit(row, tokens[:given], len(tokens), params)
        out: list[list[tuple[int, float]]] = []
        start = 0
        while start < len(tokens):
            known = max(given, start + 1)
            step = min(chunk, known - start)
            batch = [*beside, (row, start, step)]
            found = self.run(batch, [len(batch) - 1] if start + step == known else [], edits)
            start += step
            edits = [WriteTokens(row, start, list(tokens[start : start + 1]))] if given <= start < len(tokens) else []
            out += [sorted(one.top) for one in found.logprobs if one is not None]
        self.release(mine)
        return out


def _vocabulary(specs: Sequence[ComponentSpec]) -> int:
    config: Any = specs[-1].config
    return int(config.vocabulary)


def random_rig(
    card: Card,
    size: ModelSize,
    sizes: RigSizes,
    dtype: str = "bfloat16",
    cuts: Sequence[int] = (),
    bits: str = "invariant",
) -> Rig:
    """Return a rig of a model whose weights are made on the card."""
    return Rig(card, card.backend(dtype, bits), specs_of(size, dtype, sizes.page), sizes, cuts=cuts)
