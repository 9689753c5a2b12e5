"""Hidden states at an exit, kept as pages: a row that enters there gets the very bits of computing everything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from blockwright.gpu.backend import Backend
from blockwright.gpu.errors import ExecutorError
from blockwright.policies.model.chain import HiddenLayout
from blockwright.policies.plan.sampling import SamplingParams
from blockwright.policies.plan.sweep_plan import (
    NO_SLOT,
    Edit,
    HiddenRows,
    SetPages,
    SetSampling,
    Step,
    TokenLogprob,
    WriteTokens,
)
from blockwright.tests.claims import claim
from blockwright.tests.gpu import reference
from blockwright.tests.gpu.rig import Rig

Make = Callable[..., Backend]
MakeCheckpoint = Callable[..., Path]
SHOWN = SamplingParams(temperature=0.0, logprobs=5)
LENGTH, LOWER = 45, 1  # tokens of the prompt; layers below the exit


class FamilyRig(Rig):
    """A model in two runs with an exit between them. All rows share the pages below the exit and those of hidden states."""

    def __init__(self, backend: Backend, path: Path) -> None:
        super().__init__(backend, path, cuts=[1 + 2 * LOWER])
        dtype = str(backend.dtype).removeprefix("torch.")
        self.hidden = HiddenLayout(self.specs[1].component.width_in, dtype, self.page_size)
        self.commit(self.executor.add_layout(self.hidden), 20 * backend.slot_bytes(self.hidden))
        self.lower = [[self._slots.pop() for _ in range(LOWER)] for _ in range(-(-LENGTH // self.page_size))]

    def begin(self, row: int, prompt: Sequence[int]) -> list[Edit]:
        layers = self.checkpoint.config.layers
        edits: list[Edit] = [WriteTokens(row, 0, list(prompt)), SetSampling(row, len(prompt), SHOWN)]
        for page, lower in enumerate(self.lower):
            upper = [self._slots.pop() for _ in range(layers - LOWER)]
            edits += [SetPages(row, 0, page, [*lower, *upper]), SetPages(row, layers, page, [3 + 2 * page])]
        return edits

    def sweep(
        self, batch: Sequence[tuple[int, int, int]], sample: list[int], edits: Sequence[Edit], entered: Sequence[int] = ()
    ) -> list[TokenLogprob | None]:
        """Run a batch whose hidden states are kept, or of which ``entered`` rows enter at the exit."""
        plan = self.plan(batch, sample, edits)
        rows = [HiddenRows(self.hidden.key, self.checkpoint.config.layers, list(entered))]
        if not entered:
            below = self.plan(batch, [], edits)
            below.steps = below.steps[:1]
            below.kept = [HiddenRows(self.hidden.key, self.checkpoint.config.layers, list(range(len(batch))))]
            self.executor.execute(below)
            return self.executor.execute(plan).logprobs
        plan.resumed = rows
        plan.steps = [Step(0, [n for n in range(len(batch)) if n not in entered]), *plan.steps[1:]]
        plan.steps = [step for step in plan.steps if step.batch]
        return self.executor.execute(plan).logprobs


@claim(
    "A row that enters at hidden states kept at an exit has bit for bit the logits of computing everything", of="families"
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_entering_at_an_exit_changes_no_bit(make_backend: Make, checkpoint: MakeCheckpoint, dtype: str) -> None:
    """At once, in chunks that do not meet pages, and beside a row that passes everything."""
    rig, prompt = FamilyRig(make_backend(dtype), checkpoint("mistral-window")), reference.prompt_of(LENGTH)
    other = reference.prompt_of(9, seed=3)
    expected = rig.sweep([(0, 0, LENGTH)], [0], rig.begin(0, prompt))
    at_once = rig.sweep([(1, 0, LENGTH)], [0], rig.begin(1, prompt), [0])
    edits: Sequence[Edit] = rig.begin(2, prompt)
    for start, end in ((0, 3), (3, 24), (24, 44), (44, 45)):
        chunked, edits = rig.sweep([(2, start, end - start)], [0] if end == LENGTH else [], edits, [0]), ()
    alone = rig.run([(4, 0, 9)], [0], rig.admit(4, other, SHOWN)).logprobs
    edits = [*rig.begin(3, prompt), *rig.admit(5, other, SHOWN)]
    beside = rig.sweep([(5, 0, 9), (3, 0, LENGTH)], [0, 1], edits, [1])
    assert expected == at_once == chunked == beside[1:]
    assert alone == beside[:1]


def test_a_page_without_a_slot_is_not_written(make_backend: Make, checkpoint: MakeCheckpoint) -> None:
    rig, prompt = FamilyRig(make_backend(), checkpoint("mistral-window")), reference.prompt_of(LENGTH)
    layers = rig.checkpoint.config.layers
    expected = rig.sweep([(0, 0, LENGTH)], [0], rig.begin(0, prompt))
    other = [*rig.begin(1, reference.prompt_of(LENGTH, seed=3)), *[SetPages(1, layers, p, [NO_SLOT]) for p in range(6)]]
    other += [SetPages(1, 0, page, [rig._slots.pop() for _ in range(layers)]) for page in range(6)]
    rig.sweep([(1, 0, LENGTH)], [0], other)
    assert rig.sweep([(2, 0, LENGTH)], [0], rig.begin(2, prompt), [0]) == expected


def test_an_arena_of_kv_holds_no_hidden_states(make_backend: Make, checkpoint: MakeCheckpoint) -> None:
    rig = FamilyRig(make_backend(), checkpoint("mistral-window"))
    plan = rig.plan([(0, 0, 3)], [], rig.begin(0, [1, 2, 3]))
    kv = next(spec.component.kv for spec in rig.specs if spec.component.kv is not None)
    plan.kept = [HiddenRows(kv.key, 2, [0])]
    with pytest.raises(ExecutorError, match="it holds KV"):
        rig.executor.execute(plan)
