"""Drafts are verified to the very bits of drawing one by one, on every back end: tokens and log-probabilities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blockwright.gpu.backend import Backend
from blockwright.gpu.cuda.backend import CudaBackend
from blockwright.gpu.cuda.forward import LOGITS
from blockwright.policies.plan.sampling import SamplingParams
from blockwright.policies.plan.sweep_plan import NOT_FINITE, TokenLogprob, WriteTokens
from blockwright.tests.claims import claim
from blockwright.tests.gpu import reference
from blockwright.tests.gpu.rig import GREEDY, Rig

Make = Callable[..., Backend]
MakeCheckpoint = Callable[..., Path]

WARM = SamplingParams(
    temperature=1.1, top_k=40, top_p=0.9, seed=5, repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.3
)


def one_by_one(
    rig: Rig, row: int, prompt: Sequence[int], count: int, params: SamplingParams
) -> tuple[list[int], list[TokenLogprob | None]]:
    edits = rig.admit(row, prompt, params)
    tokens: list[int] = []
    logprobs: list[TokenLogprob | None] = []
    start = 0
    while len(tokens) < count:
        end = len(prompt) + len(tokens)
        result = rig.run([(row, start, end - start)], [0], edits)
        edits, start = [], end
        tokens += result.tokens
        logprobs += result.logprobs
    return tokens, logprobs


def verified(
    rig: Rig, row: int, prompt: Sequence[int], count: int, params: SamplingParams, guesses: Sequence[Sequence[int]]
) -> tuple[list[int], list[TokenLogprob | None], list[int]]:
    """Tokens, their log-probabilities, and how many each round yielded. ``guesses[n]``: drafts behind ``n`` tokens."""
    result = rig.run([(row, 0, len(prompt))], [0], rig.admit(row, prompt, params))
    tokens = [*result.tokens]
    logprobs = [*result.logprobs]
    rounds = []
    while len(tokens) < count:
        start, drafts = len(prompt) + len(tokens) - 1, list(guesses[len(tokens)])
        plan = rig.plan([(row, start, len(drafts) + 1)], [0], [WriteTokens(row, start + 1, drafts)] if drafts else [])
        plan.verify = [0]
        result = rig.executor.execute(plan)
        tokens += [*result.tokens, *result.verified[0]]
        logprobs += [*result.logprobs, *result.verified_logprobs[0]]
        rounds.append(1 + len(result.verified[0]))
    return tokens, logprobs, rounds


@claim("Tokens and log-probabilities with drafts equal the ones without, bit for bit", of="drafts")
@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_drafts_change_no_token(make_backend: Make, checkpoint: MakeCheckpoint, params: SamplingParams, dtype: str) -> None:
    """Right, wrong and half-right drafts, rounds of one to nine positions."""
    rig = Rig(make_backend(dtype), checkpoint("mistral-window"))
    prompt = reference.prompt_of(21)
    count = 40
    params = replace(params, logprobs=3)
    tokens, logprobs = one_by_one(rig, 0, prompt, count, params)
    guesses = []
    for n in range(count):
        drafts = tokens[n : n + n % 9]
        if n % 3 == 0 and drafts:
            drafts[n % len(drafts)] ^= 1
        guesses.append(drafts)
    got, entries, rounds = verified(rig, 1, prompt, count, params, guesses)
    assert got[:count] == tokens
    assert entries[:count] == logprobs
    assert max(rounds) > 4
    assert min(rounds) == 1


@pytest.mark.best
def test_rows_with_and_without_drafts_run_together(make_backend: Make, checkpoint: MakeCheckpoint) -> None:
    rig, prompt = Rig(make_backend(), checkpoint("llama")), reference.prompt_of(9)
    want, _ = one_by_one(rig, 0, prompt, 6, GREEDY)
    other, _ = one_by_one(rig, 1, prompt[2:], 3, WARM)
    edits = [*rig.admit(2, prompt), *rig.admit(3, prompt[2:], WARM)]
    first = rig.run([(2, 0, 9), (3, 0, 7)], [0, 1], edits)
    plan = rig.plan([(3, 7, 1), (2, 9, 4)], [0, 1], [WriteTokens(2, 10, [*want[1:3], want[3] ^ 1])])
    plan.verify = [1]
    result = rig.executor.execute(plan)
    assert first.tokens + result.tokens == [want[0], other[0], other[1], want[1]]
    assert result.verified == [want[2:4]]
    last = rig.run([(2, 12, 1), (3, 8, 1)], [0, 1])  # reads the drawn token, not the draft in its place
    assert last.tokens == [want[4], other[2]]


def break_logits(backend: Any, first: int, patch: pytest.MonkeyPatch) -> None:
    """Let logits from this row on hold no numbers."""
    owner = backend.forward if isinstance(backend, CudaBackend) else backend
    logits = owner.logits

    def broken(*args: Any) -> object:
        found = logits(*args)
        if isinstance(backend, CudaBackend):
            rest = backend.scratch.tensor(LOGITS, 1 << 40, 4 * first * args[0].config.vocabulary)
            backend.compute.launch(lambda: rest.fill_(0xFF))
        else:
            found[first:] = float("nan")
        return found

    patch.setattr(owner, "logits", broken)


def test_a_number_that_is_none_ends_a_round(
    make_backend: Make, checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, prompt = Rig(make_backend(), checkpoint("llama")), reference.prompt_of(9)
    want, _ = one_by_one(rig, 0, prompt, 6, GREEDY)
    rig.run([(1, 0, 9)], [0], rig.admit(1, prompt))
    break_logits(rig.executor.backend, 2, monkeypatch)
    plan = rig.plan([(1, 9, 5)], [0], [WriteTokens(1, 10, want[1:5])])
    plan.verify = [0]
    result = rig.executor.execute(plan)
    assert result.tokens + result.verified[0] == [*want[1:3], NOT_FINITE]
