"""Masks, biases and min p, against transformers' processors and against a plain reference of the whole order of steps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
)

from blockwright.gpu.sampling.noise import gumbel, noise_key
from blockwright.gpu.sampling.rules import RowRules
from blockwright.gpu.sampling.sampler import sample
from blockwright.gpu.tables import Tables
from blockwright.policies.plan.sampling import SamplingParams, TokenRules
from blockwright.policies.plan.sweep_plan import NOT_FINITE, SetSampling, WriteTokens
from blockwright.tests.claims import claim
from blockwright.tests.parts import examples

V = 50
PROMPT = [3, 4, 5, 6]


def argmax(logits_NV: torch.Tensor) -> np.ndarray:
    return logits_NV.argmax(1).numpy().astype(np.int32)


def draw(logits_V: np.ndarray, params: SamplingParams, output: list[int]) -> int:
    """The sampler's choice for one row."""
    tables = Tables(1, 64, 1, 16)
    tables.apply([WriteTokens(0, 0, PROMPT + output), SetSampling(0, len(PROMPT), params)])
    tokens, _ = sample(torch.from_numpy(logits_V[None]), [0], [len(PROMPT) + len(output)], tables, argmax)
    return tokens[0]


def processed(steps: list[Any], logits_V: np.ndarray, known: list[int]) -> np.ndarray:
    scores = torch.from_numpy(logits_V[None].copy())
    for step in steps:
        scores = step(torch.tensor([known or [0]])[:, : len(known)], scores)
    return scores[0].numpy()


def applied(rules: TokenRules, logits_V: np.ndarray, output: list[int]) -> np.ndarray:
    scores = logits_V.astype(np.float64)
    RowRules(rules).apply(scores, np.asarray(output, dtype=np.int32), 0)
    return scores.astype(np.float32)


tokens = st.integers(0, V - 1)
outputs = st.lists(st.integers(0, 5), max_size=12)


@claim("Minimum probability, biases, bad words, minimum and allowed tokens give the logits of transformers", of="numerics")
@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4), min_size=1, max_size=6), outputs, st.integers(0, 99))
def test_bad_words_as_transformers(banned: list[list[int]], output: list[int], seed: int) -> None:
    logits = np.random.default_rng(seed).normal(size=V).astype(np.float32)
    expected = processed([NoBadWordsLogitsProcessor(banned)], logits, output)
    np.testing.assert_array_equal(applied(TokenRules(banned=banned), logits, output), expected)


@claim("Minimum probability, biases, bad words, minimum and allowed tokens give the logits of transformers", of="numerics")
@given(st.dictionaries(tokens, st.floats(-100, 100), min_size=1, max_size=9), st.integers(0, 99))
def test_biases_as_transformers(bias: dict[int, float], seed: int) -> None:
    logits = np.random.default_rng(seed).normal(size=V).astype(np.float32)
    expected = processed([SequenceBiasLogitsProcessor({(t,): float(b) for t, b in bias.items()})], logits, [0])
    np.testing.assert_allclose(applied(TokenRules(bias=list(bias.items())), logits, [0]), expected, rtol=1e-6, atol=1e-6)


@claim("Minimum probability, biases, bad words, minimum and allowed tokens give the logits of transformers", of="numerics")
@given(st.integers(0, 6), st.sets(tokens, min_size=1, max_size=3), outputs)
def test_min_tokens_as_transformers(least: int, ends: set[int], output: list[int]) -> None:
    logits = np.zeros(V, np.float32)
    step = MinNewTokensLengthLogitsProcessor(len(PROMPT), least, torch.tensor(sorted(ends)))
    expected = processed([step], logits, PROMPT + output)
    np.testing.assert_array_equal(applied(TokenRules(min_tokens=least, ends=sorted(ends)), logits, output), expected)


@claim("Minimum probability, biases, bad words, minimum and allowed tokens give the logits of transformers", of="numerics")
@given(st.sets(tokens, min_size=1, max_size=9))
def test_allowed_tokens_as_transformers(allowed: set[int]) -> None:
    logits = np.arange(V, dtype=np.float32)
    step = SuppressTokensLogitsProcessor([t for t in range(V) if t not in allowed])
    np.testing.assert_array_equal(applied(TokenRules(allowed=sorted(allowed)), logits, []), processed([step], logits, [0]))


@claim("Minimum probability, biases, bad words, minimum and allowed tokens give the logits of transformers", of="numerics")
@pytest.mark.parametrize("min_p", [0.01, 0.2, 0.9, 1.0])
@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_min_p_as_transformers(min_p: float, temperature: float) -> None:
    for seed in range(20):
        logits = np.random.default_rng(seed).normal(size=V).astype(np.float32)
        params = SamplingParams(min_p=min_p, temperature=temperature, seed=seed)
        scores = processed([TemperatureLogitsWarper(temperature), MinPLogitsWarper(min_p)], logits, [0])
        noisy = scores.astype(np.float64) + gumbel(noise_key(seed, 0, len(PROMPT)), np.arange(V))
        assert draw(logits, params, []) == int(noisy.argmax())


def reference(logits_V: np.ndarray, p: SamplingParams, output: list[int]) -> int:
    """All steps in vLLM's order, one token at a time and without a trick."""
    rules = p.rules or TokenRules()
    scores = {t: float(np.float64(x)) for t, x in enumerate(logits_V)}
    barred = {t for t in scores if rules.allowed and t not in rules.allowed}
    for ids in rules.banned:
        if output[len(output) - len(ids) + 1 :] == ids[:-1] and len(ids) <= len(output) + 1:
            barred.add(ids[-1])
    if len(output) < rules.min_tokens:
        barred |= set(rules.ends)
    for token, bias in dict(rules.bias).items():
        scores[token] += bias
    if len(barred) == V:
        barred -= set(rules.allowed or scores)
    scores = {t: x for t, x in scores.items() if t not in barred}
    for token in set(PROMPT + output) & set(scores):
        x = scores[token]
        scores[token] = x * p.repetition_penalty if x < 0 else x / p.repetition_penalty
    for token in set(output) & set(scores):
        scores[token] -= p.presence_penalty + p.frequency_penalty * output.count(token)
    if p.temperature == 0:
        return max(scores, key=lambda t: (scores[t], -t))
    best = max(scores.values())
    scores = {t: (x - best) / p.temperature for t, x in scores.items()}
    if p.min_p > 0:
        scores = {t: x for t, x in scores.items() if x >= math.log(p.min_p)}
    if 0 < p.top_k < len(scores):
        border = sorted(scores.values(), reverse=True)[p.top_k - 1]
        scores = {t: x for t, x in scores.items() if x >= border}
    ranked = sorted(scores, key=lambda t: (-scores[t], t))
    total = sum(math.exp(x) for x in scores.values())
    above = 0.0
    kept = []
    for token in ranked:
        if p.top_p >= 1 or above < p.top_p * total or not kept:
            kept.append(token)
        above += math.exp(scores[token])
    noise = gumbel(noise_key(p.seed, p.choice, len(PROMPT) + len(output)), np.asarray(kept))
    noisy = {t: scores[t] + g for t, g in zip(kept, noise.tolist(), strict=True)}
    return max(noisy, key=lambda t: (noisy[t], -t))


@st.composite
def cases(draw_from: st.DrawFn) -> SamplingParams:
    number = draw_from
    rules = TokenRules(
        allowed=sorted(number(st.sets(tokens, max_size=6))),
        banned=number(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3), max_size=3)),
        bias=list(number(st.dictionaries(tokens, st.floats(-9, 9), max_size=4)).items()),
        min_tokens=number(st.integers(0, 6)),
        ends=sorted(number(st.sets(tokens, max_size=3))),
    )
    return SamplingParams(
        temperature=number(st.sampled_from([0.0, 0.5, 1.0, 1.7])),
        top_p=number(st.sampled_from([0.3, 0.9, 1.0])),
        top_k=number(st.sampled_from([0, 3, 20])),
        min_p=number(st.sampled_from([0.0, 0.05, 0.5])),
        repetition_penalty=number(st.sampled_from([0.7, 1.0, 1.5])),
        presence_penalty=number(st.sampled_from([-1.0, 0.0, 0.5])),
        frequency_penalty=number(st.sampled_from([0.0, 0.3])),
        seed=number(st.integers(0, 1 << 63)),
        rules=number(st.sampled_from([rules, None])),
    )


@examples(300)
@given(cases(), outputs, st.integers(0, 99))
def test_all_steps_in_order(params: SamplingParams, output: list[int], seed: int) -> None:
    logits = (2 * np.random.default_rng(seed).normal(size=V)).astype(np.float32)
    assert draw(logits, params, output) == reference(logits, params, output)


def test_of_rules_that_leave_nothing_the_allowed_tokens_hold() -> None:
    logits = np.arange(V, dtype=np.float32)
    allowed = SamplingParams(temperature=0.0, rules=TokenRules(allowed=[7], banned=[[7]]))
    assert draw(logits, allowed, []) == 7
    nothing = SamplingParams(temperature=0.0, rules=TokenRules(banned=[[token] for token in range(V)]))
    assert draw(logits, nothing, []) == V - 1


@pytest.mark.parametrize(
    "rules", [TokenRules(allowed=[7]), TokenRules(banned=[[3], [5]]), TokenRules(min_tokens=2, ends=[3, 5])]
)
def test_what_a_grammar_forbids_stays_forbidden_whatever_the_rules_leave(rules: TokenRules) -> None:
    scores_V = np.full(V, -np.inf)
    scores_V[[3, 5]] = 1.0
    RowRules(rules).apply(scores_V, np.asarray([], dtype=np.int32), 0)
    assert np.flatnonzero(np.isfinite(scores_V)).tolist() == [3, 5]


def test_a_row_that_is_used_again_forgets_its_rules() -> None:
    tables = Tables(1, 64, 1, 16)
    tables.apply([SetSampling(0, 1, SamplingParams(rules=TokenRules(allowed=[7])))])
    assert tables.rules[0] is not None
    tables.apply([SetSampling(0, 1, SamplingParams())])
    assert tables.rules[0] is None


@pytest.mark.parametrize("penalty", [5e-324, 1e-300, 1e-30])
@pytest.mark.parametrize("temperature", [0.0, 1e-300, 1.0])
def test_penalties_beyond_all_numbers(penalty: float, temperature: float) -> None:
    """Whatever a request may ask for, a token comes of it, and no rule is undone."""
    logits = np.linspace(-3, 3, V, dtype=np.float32)
    params = SamplingParams(repetition_penalty=penalty, temperature=temperature, seed=3, rules=TokenRules(banned=[[V - 2]]))
    assert draw(logits, params, [V - 1, V - 2]) == V - 1


EXTREME = st.sampled_from([float("nan"), float("inf"), float("-inf"), 0.0, 3e38, -3e38, 1.0])


@examples(200)
@given(
    st.lists(EXTREME, min_size=V, max_size=V),
    st.sampled_from([0.0, 5e-324, 1e-30, 1.0, 2.0]),
    st.sampled_from([5e-324, 0.5, 1.0, 100.0]),
    st.sampled_from([5e-324, 0.5, 1.0]),
    st.sampled_from([0.0, 5e-324, 1.0]),
    st.integers(0, 3),
    outputs,
)
def test_any_logits_and_any_parameters_yield_a_token(
    logits: list[float], temperature: float, penalty: float, top_p: float, min_p: float, top_k: int, output: list[int]
) -> None:
    """A worker must not die of what a request asks for, nor of a model gone wrong."""
    rules = TokenRules(allowed=list(range(1, V)), banned=[[3]], bias=[(4, 100.0), (5, -100.0)], min_tokens=3, ends=[2])
    for chosen in (rules, None):
        params = SamplingParams(
            temperature=temperature, repetition_penalty=penalty, top_p=top_p, min_p=min_p, top_k=top_k, seed=1, rules=chosen
        )
        token = draw(np.asarray(logits, dtype=np.float32), params, output)
        assert 0 <= token < V or token == NOT_FINITE
        assert chosen is None or token not in (0, 3)


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 4), max_size=8),
    st.lists(st.integers(0, 4), min_size=1, max_size=12),
    st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=3), min_size=1, max_size=4, unique_by=tuple),
    st.integers(1, 4),
)
def test_rules_of_a_checkpoint_look_at_the_prompt_too(
    prompt: list[int], output: list[int], sequences: list[list[int]], size: int
) -> None:
    logits_V, known = np.linspace(-2, 3, V).astype(np.float32), [*prompt, *output]

    def ours(rules: TokenRules, virtual: int = 0) -> np.ndarray:
        scores = logits_V.astype(np.float64)
        RowRules(rules).apply(scores, np.asarray([-1] * virtual + known, dtype=np.int32), virtual + len(prompt))
        return scores.astype(np.float32)

    bias = [[ids, 0.5 + i] for i, ids in enumerate(sequences)]
    pairs = [
        (TokenRules(barred=sequences), NoBadWordsLogitsProcessor(sequences, None)),
        (TokenRules(phrases=[(ids, weight) for ids, weight in bias]), SequenceBiasLogitsProcessor(bias)),
        (TokenRules(no_repeat=size), NoRepeatNGramLogitsProcessor(size)),
        (TokenRules(barred_first=[1, 3]), SuppressTokensAtBeginLogitsProcessor([1, 3], len(prompt))),
    ]
    for rules, theirs in pairs:
        for virtual in (0, 3):
            np.testing.assert_allclose(ours(rules, virtual), processed([theirs], logits_V, known), rtol=1e-6)
    first = TokenRules(barred_first=[1, 3])
    known = prompt
    assert np.isneginf(ours(first)).nonzero()[0].tolist() == [1, 3]


@pytest.mark.parametrize("top_k", [0, 1, 5])
def test_top_p_of_zero_takes_the_best_token_alone(top_k: int) -> None:
    logits_V = np.linspace(0, 1, V).astype(np.float32)
    for seed in range(20):
        assert draw(logits_V, SamplingParams(top_p=0.0, top_k=top_k, temperature=2.0, seed=seed), []) == V - 1
