"""Sampling equals transformers' processors followed by the documented noise, row by row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from blockwright.gpu.sampling.noise import gumbel, noise_key
from blockwright.gpu.sampling.sampler import candidates, penalise, raw_logprobs, sample
from blockwright.gpu.tables import Tables
from blockwright.policies.plan.sampling import SamplingParams
from blockwright.policies.plan.sweep_plan import NOT_FINITE
from blockwright.tests.claims import claim

VOCABULARY = 1000


def make_logits(rows: int, seed: int = 0, spread: float = 3.0) -> torch.Tensor:
    return spread * torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed))


def argmax(logits_NV: torch.Tensor) -> np.ndarray:
    return logits_NV.argmax(1).numpy().astype(np.int32)


def make_tables(params: list[SamplingParams], prompt: int = 6, length: int = 12, vocabulary: int = 40) -> Tables:
    """Rows whose tokens repeat often."""
    tables = Tables(len(params), 64, 1, 16)
    tables.tokens[:, :length] = np.random.default_rng(1).integers(0, vocabulary, (len(params), length))
    tables.prompt_length[:] = prompt
    tables.sampling = list(params)
    return tables


def warp(logits_V: torch.Tensor, known: list[int], p: SamplingParams) -> torch.Tensor:
    """Scores [V] after transformers' processors in the order in which its generate() puts them."""
    from transformers.generation import logits_process as hf

    steps: list[Any] = [hf.RepetitionPenaltyLogitsProcessor(p.repetition_penalty)] if p.repetition_penalty != 1 else []
    steps += [hf.TemperatureLogitsWarper(p.temperature)]
    steps += [hf.TopKLogitsWarper(p.top_k)] if p.top_k else []
    steps += [hf.TopPLogitsWarper(p.top_p)] if p.top_p < 1 else []
    scores = logits_V[None]
    for step in steps:
        scores = step(torch.tensor([known]), scores)
    return scores[0]


CASES = [
    SamplingParams(seed=1),
    SamplingParams(seed=2, temperature=0.7),
    SamplingParams(seed=3, top_k=20),
    SamplingParams(seed=4, top_p=0.9),
    SamplingParams(seed=5, top_p=0.999, temperature=3.0),
    SamplingParams(seed=6, top_k=50, top_p=0.8, temperature=1.3),
    SamplingParams(seed=7, repetition_penalty=1.4, top_k=5),
    SamplingParams(seed=8, repetition_penalty=0.8, temperature=0.5, top_p=0.5),
    SamplingParams(seed=9, top_k=5000),
    SamplingParams(seed=10, top_p=0.0001),
]


@claim("Temperature, top-p, top-k and penalties give the probabilities of transformers", of="numerics")
@pytest.mark.parametrize("params", CASES, ids=lambda p: f"seed{p.seed}")
def test_equals_transformers(params: SamplingParams) -> None:
    tables = make_tables([replace(params, choice=n) for n in range(8)])
    logits_NV = make_logits(8)
    tokens, _ = sample(logits_NV, range(8), [12] * 8, tables, argmax)
    for n in range(8):
        scores = warp(logits_NV[n], tables.tokens[n, :12].tolist(), params).double().numpy()
        noisy = scores + gumbel(noise_key(params.seed, n, 12), np.arange(VOCABULARY))
        assert tokens[n] == int(noisy.argmax())


@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.95, 0.9999])
def test_nucleus_of_a_flat_distribution(top_p: float) -> None:
    """More candidates than are looked at first."""
    logits_V = make_logits(1, spread=0.01)[0]
    kept = set(candidates(logits_V.double().numpy(), 0, top_p).tolist())
    scores = warp(logits_V, [], SamplingParams(top_p=top_p))
    assert kept == set(torch.isfinite(scores).nonzero().flatten().tolist())
    assert len(kept) > 256 or top_p == 0.1


def test_ties() -> None:
    score = np.array([1.0, 3.0, 3.0, 2.0, 3.0])
    assert candidates(score, 2, 1.0).tolist() == [1, 2, 4]  # as transformers: what equals the last of k stays
    assert candidates(score, 0, 0.5).tolist() == [1, 2]  # 0.29 each: the second passes the half
    assert candidates(score, 0, 0.0).tolist() == [1]


def test_presence_and_frequency_count_output_only() -> None:
    score = np.zeros(10)
    known = np.array([1, 1, 2, 3, 3, 3, 4])  # the first three are the prompt
    penalise(score, SamplingParams(presence_penalty=0.5, frequency_penalty=0.25), known, 3)
    assert score.tolist() == [0, 0, 0, -1.25, -0.75, 0, 0, 0, 0, 0]
    penalise(score, SamplingParams(repetition_penalty=2.0), known, 3)
    assert score.tolist() == [0, 0, 0, -2.5, -1.5, 0, 0, 0, 0, 0]


def test_virtual_tokens_are_penalised_nowhere() -> None:
    score = np.ones(6)
    penalise(score, SamplingParams(repetition_penalty=2.0), np.array([-1, -1, 4, 0]), 3)
    assert score.tolist() == [0.5, 1, 1, 1, 0.5, 1]


def test_greedy_with_penalties_and_plain_greedy() -> None:
    logits_NV = make_logits(2)
    best = logits_NV.topk(2, dim=1).indices
    tables = make_tables([SamplingParams(temperature=0.0), SamplingParams(temperature=0.0, repetition_penalty=100.0)])
    tables.tokens[1, 0] = int(best[1, 0])
    tokens, logprobs = sample(logits_NV, [0, 1], [12, 12], tables, argmax)
    assert tokens == [int(best[0, 0]), int(best[1, 1])]
    assert logprobs == [None, None]


def test_the_argmax_of_the_back_end_is_used_only_where_it_decides() -> None:
    def never(logits_NV: torch.Tensor) -> np.ndarray:
        raise AssertionError("no row is greedy")

    sample(make_logits(1), [0], [12], make_tables([SamplingParams()]), never)


@claim("A seeded request gives the same text whatever else is in the batch", of="numerics", headline=True)
def test_a_row_does_not_depend_on_others() -> None:
    params = [*CASES, SamplingParams(temperature=0.0), SamplingParams(frequency_penalty=1.0, seed=3)]
    logits_NV, tables = make_logits(len(params), seed=4), make_tables(params)
    rows = list(range(len(params)))
    together, _ = sample(logits_NV, rows, [9] * len(rows), tables, argmax)
    backwards, _ = sample(logits_NV.flip(0).contiguous(), rows[::-1], [9] * len(rows), tables, argmax)
    alone = [sample(logits_NV[n : n + 1], [n], [9], tables, argmax)[0][0] for n in rows]
    assert together == alone == backwards[::-1]


def test_positions_choices_and_seeds_differ() -> None:
    logits_NV = make_logits(1, spread=0.1).expand(60, -1).contiguous()
    params = [SamplingParams(seed=n // 2, choice=n % 2) for n in range(60)]
    tokens, _ = sample(logits_NV, range(60), [7] * 60, make_tables(params), argmax)
    moved, _ = sample(logits_NV, range(60), [8] * 60, make_tables(params), argmax)
    assert len(set(tokens)) > 50
    assert sum(a == b for a, b in zip(tokens, moved, strict=True)) < 3


def test_frequencies_are_the_probabilities() -> None:
    logits_V = torch.tensor([0.0, 1.0, 2.0, -1.0])
    tables = make_tables([SamplingParams(seed=11, temperature=2.0)], vocabulary=4)
    count = 6000
    drawn, _ = sample(logits_V.expand(count, 4), [0] * count, range(count), tables, argmax)
    found = np.bincount(drawn, minlength=4) / count
    np.testing.assert_allclose(found, torch.softmax(logits_V.double() / 2, 0).numpy(), atol=0.02)


@pytest.mark.parametrize("temperature", [1e-300, 1e-6])
def test_temperatures_near_zero_choose_the_best(temperature: float) -> None:
    logits_NV = make_logits(1)
    for params in (SamplingParams(temperature=temperature), SamplingParams(temperature=temperature, top_p=0.9, top_k=9)):
        tokens, _ = sample(logits_NV, [0], [12], make_tables([params]), argmax)
        assert tokens == [int(logits_NV.argmax())]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_of_what_is_no_number_no_token_is_drawn(value: float) -> None:
    """Its neighbors are as ever; where some tokens alone are impossible, another one is drawn."""
    logits_NV = make_logits(3)
    logits_NV[1, :] = value
    logits_NV[2, 3::4] = float("-inf")
    for params in CASES:
        tables = make_tables([replace(params, logprobs=3)] * 3)
        tokens, found = sample(logits_NV, [0, 1, 2], [12, 12, 12], tables, argmax)
        assert (tokens[1], found[1]) == (NOT_FINITE, None)
        assert 0 <= tokens[0] < VOCABULARY
        assert 0 <= tokens[2] < VOCABULARY
        assert tokens[2] % 4 != 3
        alone = make_logits(3)[:1]
        assert sample(alone, [0], [12], tables, argmax) == (tokens[:1], found[:1])


def test_logprobs_are_of_the_raw_logits() -> None:
    params = SamplingParams(seed=1, temperature=0.3, top_k=3, repetition_penalty=2.0, logprobs=4)
    logits_NV = make_logits(1)
    tokens, (found,) = sample(logits_NV, [0], [12], make_tables([params]), argmax)
    want = logits_NV[0].double().log_softmax(0)
    assert found is not None
    assert found.logprob == pytest.approx(float(want[tokens[0]]), abs=1e-9)
    best = want.topk(4)
    assert [token for token, _ in found.top] == best.indices.tolist()
    np.testing.assert_allclose([value for _, value in found.top], best.values, atol=1e-9)
    assert raw_logprobs(logits_NV[0].numpy(), 5, 0).top == []
    assert len(raw_logprobs(np.zeros(3, np.float32), 0, 20).top) == 3
