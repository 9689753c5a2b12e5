"""Draws of the CUDA back end on host memory: the twin of ``kernels/draw.py`` and ``kernels/sampler.py`` for tests.

Made of the host's sampler, so that a test of the card's host code shows what it gives to the kernels. Legend: as in
``ops.py``.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from ...policies.plan.sampling import SamplingParams
from ...policies.plan.sweep_plan import NOT_FINITE
from ..sampling.noise import gumbel
from ..sampling.sampler import LARGEST, candidates, penalise
from .host_memory import floats, ints, longs, view
from .ops import BEST, Choices, Logprobs

WORD = (1 << 64) - 1


def draw(logits: int, rows: int, vocabulary: int, key: int, temperature: int, token: int) -> None:
    """Do what ``Ops.draw`` does."""
    all_NV, token_N = floats(logits, rows, vocabulary).numpy(), ints(token, rows)
    temperature_N = _doubles(temperature, rows).tolist()
    for n in range(rows):
        score_V = all_NV[n].astype(np.float64)
        if temperature_N[n] > 0.0:
            score_V = _finite(all_NV[n])
            noise_V = gumbel(int(longs(key, rows)[n]) & WORD, np.arange(vocabulary))
            score_V = (score_V - score_V.max()) / temperature_N[n] + noise_V
        best = int(np.argmax(score_V))
        token_N[n] = best if np.isfinite(all_NV[n, best]) else NOT_FINITE


def choose(logits: int, vocabulary: int, choices: Choices, token: int) -> None:
    """Do what ``Ops.choose`` does."""
    for n, (place, row, position, prompt, top_k, first, listed, allowed) in enumerate(
        ints(choices.ints, choices.rows, 8).tolist()
    ):
        temperature, min_p, top_p, *penalties = _doubles(choices.floats, choices.rows, 6)[n].tolist()
        logits_V = floats(logits + 4 * place * vocabulary, vocabulary).numpy()
        raw_V = _finite(logits_V)
        score_V = np.full(vocabulary, -np.inf) if allowed else raw_V.copy()
        if listed:
            id_L = ints(choices.ids + 4 * first, listed)
            score_V[id_L] = raw_V[id_L] + _doubles(choices.values + 8 * first, listed)
        if penalties != [1.0, 0.0, 0.0]:
            assert choices.penalised, "rows with penalties have counts"
            names = ("repetition_penalty", "presence_penalty", "frequency_penalty")
            known = ints(choices.table + 4 * row * choices.table_stride, position)
            penalise(score_V, SamplingParams(**dict(zip(names, penalties, strict=True))), known, prompt)
        id = _chosen(score_V, temperature, min_p, top_k, top_p, int(longs(choices.key, choices.rows)[n]) & WORD)
        ints(token + 4 * place, 1)[0] = id if math.isfinite(logits_V[id]) else NOT_FINITE


def _chosen(score_V: np.ndarray, temperature: float, min_p: float, top_k: int, top_p: float, key: int) -> int:
    if temperature == 0.0:
        return int(np.argmax(score_V))
    with np.errstate(over="ignore"):
        score_V = (score_V - score_V.max()) / temperature
    possible_P = np.flatnonzero(np.isfinite(score_V) & (score_V >= min_p))
    token_K = possible_P[candidates(score_V[possible_P], top_k, top_p)]
    noisy_K = score_V[token_K] + gumbel(key, token_K)
    return int(token_K[noisy_K == noisy_K.max()].min())


def logprobs(logits: int, vocabulary: int, rows: int, index: int, best: int, token: int, out: Logprobs) -> None:
    """Do what ``Ops.logprobs`` does."""
    numbers, ranks = _doubles(out.numbers, rows, 2 + BEST), ints(out.ranks, rows, 1 + BEST)
    for n, place in enumerate(ints(index, rows).tolist()):
        logits_V = floats(logits + 4 * place * vocabulary, vocabulary).numpy()
        wide_V, id = _finite(logits_V), max(int(ints(token + 4 * place, 1)[0]), 0)
        order_K = np.argsort(-wide_V, kind="stable")[:best]
        numbers[n, :2] = wide_V.max() + math.log(np.exp(wide_V - wide_V.max()).sum()), wide_V[id]
        numbers[n, 2 : 2 + len(order_K)] = wide_V[order_K]
        ranks[n, 0] = 1 + np.count_nonzero(logits_V > logits_V[id])
        ranks[n, 1 : 1 + len(order_K)] = order_K


def keep(table: int, table_stride: int, rows: int, drawn: int, token: int, standing: int) -> None:
    """Do what ``Ops.keep`` does."""
    for n, (row, position, place, count) in enumerate(ints(drawn, rows, 4).tolist()):
        if row < 0:
            continue
        here = table + 4 * (row * table_stride + position)
        token_T = ints(token + 4 * place, count)
        differs: list[int] = np.flatnonzero(token_T[:-1] != ints(here, count - 1)).tolist()
        counting = differs[0] + 1 if differs else count
        ints(standing + 4 * n, 1)[0] = counting
        if position + counting - 1 < table_stride and token_T[counting - 1] != NOT_FINITE:
            ints(here + 4 * (counting - 1), 1)[0] = token_T[counting - 1]


def _finite(logits_V: np.ndarray) -> np.ndarray:
    return np.nan_to_num(logits_V.astype(np.float64), nan=-LARGEST, posinf=LARGEST, neginf=-LARGEST)


def _doubles(address: int, *shape: int) -> np.ndarray:
    return view(address, shape, torch.float64).numpy()
