"""Parameters that are dropped and come back while sweeps are queued: a seeded walk of an executor over the mirror.

Two models share its pool. The second one's parameters are dropped, their chunks serve as KV of new sequences, and come
back in another order. The mirror faults where something is not mapped, and refuses to unmap what queued work uses.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from blockwright.gpu.cuda.device import CudaDevice
from blockwright.gpu.cuda.platforms import open_mirror
from blockwright.gpu.device import Ticket
from blockwright.gpu.errors import ExecutorError
from blockwright.gpu.executor import PARAMETERS
from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.policies.plan.sweep_plan import Edit, MapGroup, SetPages, SetSampling, Step, SweepPlan, WriteTokens
from blockwright.tests.claims import claim
from blockwright.tests.gpu import reference
from blockwright.tests.gpu.rig import CHUNK, GREEDY, Rig, load, placing
from blockwright.tests.parts import spans

MakeCheckpoint = Callable[..., Path]
ROWS = 5
PAGE, PAGES = 8, 3
LENGTHS = (3, 9, 14)  # tokens of prompts
TOKENS = 5  # that follow
STAYS, GOES = 0, 1  # the models, and their runs


@dataclass(slots=True)
class Running:
    """A sequence in a table row. ``slots``: of the base arena, or of the chunks that were parameters."""

    model: int
    prompt: tuple[int, ...]
    slots: list[int]
    lent: bool
    computed: int = 0
    found: list[int] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return self.computed == len(self.prompt) + TOKENS - 1


class Walk:
    """The walk of one seed. Up to three plans are open."""

    def __init__(self, paths: Sequence[Path], seed: int) -> None:
        self.draw, self.paths = random.Random(seed), paths
        self.rig = Rig(open_mirror("float32", seed=seed), paths[STAYS], page_size=PAGE, rows=ROWS)
        self.executor = self.rig.executor
        backend = self.executor.backend
        self.specs = Checkpoint.open(paths[GOES]).specs(PAGE, "float32")
        self.first = -(-self.rig.placing.end // CHUNK)
        self.places = placing(backend, self.specs, start=self.first * CHUNK)
        layout = next(spec.component.kv for spec in self.specs if spec.component.kv is not None)
        self.kv, each = layout.key, backend.slot_bytes(layout)
        self.layers = sum(spec.component.kv is not None for spec in self.specs)
        committed = self.executor.committed()
        self.behind = committed[self.kv] // CHUNK
        count = -(-(self.places.end - self.first * CHUNK) // CHUNK)
        begin = sum(nbytes for nbytes in committed.values()) // CHUNK
        self.chunks = list(range(begin, begin + count))
        lent = range(-(-self.behind * CHUNK // each), (self.behind + count) * CHUNK // each)
        self.free = {False: list(self.rig._slots), True: list(lent)}
        self.rows: dict[int, Running] = {}
        self.ended: list[Running] = []
        self.open: list[tuple[Ticket, list[Running]]] = []
        self.memory: list[MapGroup] = []  # of the next plan
        self.edits: list[Edit] = []
        self.resident, self.drops = False, 0
        self.executor.map(MapGroup(PARAMETERS, self.first, self.chunks, back=False))
        self._load()

    def step(self) -> None:
        """Do one thing, by chance of what is possible."""
        busy = {one.model for one in self.rows.values()}
        lent = any(one.lent for one in self.rows.values())
        able = [self._sweep, self._sweep]
        able += [self._admit] * (len(self.rows) < ROWS)
        able += [self._drop] * (self.resident and GOES not in busy)
        able += [self._restore] * (not self.resident and not lent)
        self.draw.choice(able)()

    def end(self) -> None:
        """Compute what is left, and wait for it."""
        while self.rows:
            self._sweep()
        while self.open:
            self._collect()

    def _admit(self) -> None:
        row = next(row for row in range(ROWS) if row not in self.rows)
        model = self.draw.choice([STAYS, GOES]) if self.resident else STAYS
        lent = not self.resident and self.draw.random() < 0.7
        count = PAGES * self.layers
        if len(self.free[lent]) < count:
            return
        slots = [self.free[lent].pop(self.draw.randrange(len(self.free[lent]))) for _ in range(count)]
        prompt = reference.prompt_of(self.draw.choice(LENGTHS))
        self.rows[row] = Running(model, prompt, slots, lent)
        self.edits += [WriteTokens(row, 0, list(prompt)), SetSampling(row, len(prompt), GREEDY)]
        for page in range(PAGES):
            self.edits.append(SetPages(row, 0, page, slots[page * self.layers : (page + 1) * self.layers]))

    def _sweep(self) -> None:
        batch = self.draw.sample(sorted(self.rows), self.draw.randint(0, len(self.rows)))
        if not batch:
            return
        start, count = list[int](), list[int]()
        sample, drawn = list[int](), list[Running]()
        for n, row in enumerate(batch):
            one = self.rows[row]
            left = len(one.prompt) - one.computed
            start.append(one.computed)
            count.append(self.draw.randint(1, left) if left > 0 else 1)
            one.computed += count[-1]
            if one.computed >= len(one.prompt):
                sample.append(n)
                drawn.append(one)
        models = [self.rows[row].model for row in batch]
        steps = [Step(run, [n for n, model in enumerate(models) if model == run]) for run in sorted(set(models))]
        plan = SweepPlan(next(self.rig.numbers), self.edits, self.memory, batch, start, count, steps, sample=sample)
        self.open.append((self.executor.submit(plan), drawn))
        self.edits, self.memory = [], []
        if len(self.open) == 3:
            self._collect()
        for row in batch:
            if (one := self.rows[row]).ended:
                self.free[one.lent] += one.slots
                self.ended.append(self.rows.pop(row))

    def _collect(self) -> None:
        ticket, drawn = self.open.pop(0)
        for one, token in zip(drawn, ticket.wait().tokens, strict=True):
            one.found.append(token)

    def _load(self) -> None:
        for spec in self.specs:
            load(self.executor, spec, self.places)
        self.executor.compose(GOES, [spec.component.shared for spec in self.specs], 0)
        self.resident = True

    def _drop(self) -> None:
        """Drop the second model behind plans that may be queued; its chunks become KV."""
        self.executor.drop(GOES)
        for spec in self.specs:
            self.executor.unload(spec.component.shared, [part.id for part in self.executor.backend.parts(spec)])
        self._remap(PARAMETERS, self.first, self.kv, self.behind)
        self.resident, self.drops = False, self.drops + 1

    def _restore(self) -> None:
        self._remap(self.kv, self.behind, PARAMETERS, self.first)
        self._load()

    def _remap(self, source: str, at: int, target: str, to: int) -> None:
        """Move the chunks, in another order: at once, or with the next plan if nothing needs them before."""
        back = MapGroup(source, at, list(self.chunks), back=True)
        self.draw.shuffle(self.chunks)
        groups = [back, MapGroup(target, to, list(self.chunks), back=False)]
        if target == PARAMETERS or self.memory or self.draw.random() < 0.5:
            for group in (*self.memory, *groups):
                self.executor.map(group)
            self.memory = []
        else:
            self.memory = groups


def walked(paths: Sequence[Path], seed: int, steps: int = 60) -> Walk:
    walk = Walk(paths, seed)
    for _ in range(steps):
        walk.step()
    walk.end()
    return walk


@pytest.fixture
def paths(checkpoint: MakeCheckpoint) -> list[Path]:
    return [checkpoint("llama"), checkpoint("qwen2")]


@claim("Parameters on a card are dropped for KV and restored beside queued sweeps, and no token differs", of="numerics")
@pytest.mark.parametrize("seeds", spans(10, 100, daily=4), ids=str)
def test_no_token_differs(paths: list[Path], seeds: range) -> None:
    drops = 0
    for seed in seeds:
        walk = walked(paths, seed)
        drops += walk.drops
        for one in walk.ended:
            want = reference.greedy(paths[one.model], one.prompt, TOKENS)
            assert tuple(one.found[: len(want)]) == want, f"seed {seed}"
    assert drops > len(seeds)


def test_a_device_that_does_not_wait_is_found_out(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CudaDevice, "settle", lambda self: None)
    with pytest.raises(ExecutorError, match="queued"):
        deque((walked(paths, seed) for seed in range(20)), maxlen=0)
