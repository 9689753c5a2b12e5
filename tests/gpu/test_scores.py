"""Log-probabilities of a prompt equal transformers', however it is chunked, and on every back end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from blockwright.policies.plan.sampling import SamplingParams
from blockwright.policies.plan.sweep_plan import TokenLogprob
from blockwright.tests.gpu import reference
from blockwright.tests.gpu.rig import Rig

TOLERANCE = 5e-5


def assert_near(path: Path, prompt: list[int], scored: list[TokenLogprob], k: int) -> None:
    want = reference.logits(path, prompt).log_softmax(-1)[:-1]
    assert len(scored) == len(want)
    for position, (entry, row) in enumerate(zip(scored, want, strict=True)):
        token = prompt[position + 1]
        assert abs(entry.logprob - float(row[token])) < TOLERANCE
        near = int(((row - row[token]).abs() < 2 * TOLERANCE).sum())
        assert abs(entry.rank - 1 - int((row > row[token]).sum())) < near
        best = torch.topk(row, k)
        assert [value for _, value in entry.top] == pytest.approx(best.values.tolist(), abs=TOLERANCE)


@pytest.mark.parametrize(("chunk", "cuts"), [(512, ()), (7, ()), (50, (3,)), (1, ())])
def test_chunks(
    make_backend: Callable[..., Any], checkpoint: Callable[..., Path], chunk: int, cuts: tuple[int, ...]
) -> None:
    path, prompt = checkpoint("llama"), list(reference.prompt_of(75))
    rig = Rig(make_backend(), path, cuts=cuts)
    edits = rig.admit(2, prompt, SamplingParams(temperature=0.0, prompt_logprobs=3))
    scored: list[TokenLogprob] = []
    for start in range(0, len(prompt), chunk):
        count = min(chunk, len(prompt) - start)
        plan = rig.plan([(2, start, count)], [0] if start + count == len(prompt) else [], edits)
        plan.score, edits = [0], []
        result = rig.executor.execute(plan)
        scored += result.scores[0]
    assert_near(path, prompt, scored, 3)
    assert result.tokens == list(reference.greedy(path, tuple(prompt), 1))


def test_only_the_rows_that_ask(make_backend: Callable[..., Any], checkpoint: Callable[..., Path]) -> None:
    """Two prompts in one sweep: one is scored and not sampled, the other sampled and not scored."""
    path, prompt = checkpoint("llama"), list(reference.prompt_of(20))
    rig = Rig(make_backend(), path)
    params = SamplingParams(temperature=0.0, prompt_logprobs=0)
    edits = [*rig.admit(0, prompt, params, 40), *rig.admit(1, prompt[:9], length=40)]
    plan = rig.plan([(0, 0, 12), (1, 0, 9)], [1], edits)
    plan.score = [0]
    result = rig.executor.execute(plan)
    assert len(result.scores[0]) == 12
    assert [entry.top for entry in result.scores[0]] == [[]] * 12
    assert result.tokens == list(reference.greedy(path, tuple(prompt[:9]), 1))
