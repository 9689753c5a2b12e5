"""Sampler: chooses the next token of each row in vLLM's order.

The order is: the grammar's mask, rules (further masks and biases), penalties, temperature, min p, top k, top p; then the
Gumbel argmax. A row's choice is a function of its own logits, tokens and parameters alone: rows are computed one by one, in
float64 from float32 logits, and ties go to the lower token id. Legend: N rows, V vocabulary, K candidates of one row, best
first, S tokens of one row that the grammar allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from ...policies.plan.sampling import SamplingParams
from ...policies.plan.sweep_plan import FAILED, NOT_FINITE, OFF_GRAMMAR, TokenLogprob
from ..tables import Tables
from .masks import TokenMasks, allowed_tokens, masks
from .noise import gumbel, noise_key
from .rules import RowRules

NO_TOKEN = -1  # the best token of a mask that allows none
FIRST_CANDIDATES = 256  # examined before more of the vocabulary is sorted for top p
LARGEST = 1e30
Some = tuple[np.ndarray, np.ndarray]  # token ids [K], ascending, and their logits [K]
Argmax = Callable[..., np.ndarray]  # of a back end
Allowed = Callable[[np.ndarray, np.ndarray], Some]  # of a back end


def sample(
    logits_NV: torch.Tensor,
    rows: Sequence[int],
    positions: Sequence[int],
    tables: Tables,
    argmax: Argmax,
    allowed: Allowed = allowed_tokens,
) -> tuple[list[int], list[TokenLogprob | None]]:
    """Return the token of each row as ``choose`` does and, if requested, log-probabilities of the raw logits."""
    tokens = choose(logits_NV, rows, positions, tables, argmax, allowed)
    logprobs: list[TokenLogprob | None] = [None] * len(tokens)
    all_NV = logits_NV.numpy()
    for n, row in enumerate(rows):
        if (count := tables.sampling[row].logprobs) >= 0 and tokens[n] not in FAILED:
            logprobs[n] = raw_logprobs(all_NV[n], tokens[n], count)
    return tokens, logprobs


def choose(
    logits_NV: torch.Tensor,
    rows: Sequence[int],
    positions: Sequence[int],
    tables: Tables,
    argmax: Argmax,
    allowed: Allowed = allowed_tokens,
) -> list[int]:
    """Return the token of each row.

    A row gets ``NOT_FINITE`` if its chosen logit is not finite: its model has overflowed, and a drawn token would mean
    nothing. It gets ``OFF_GRAMMAR`` if it has a grammar whose mask cannot be made: it is never drawn freely instead.
    ``logits_NV`` is float32. ``rows`` are table rows, ``positions`` the indices of the new tokens in their
    sequences. ``argmax`` and ``allowed`` are the back end's. ``argmax`` serves rows without randomness, penalties and rules.
    """
    params = [tables.sampling[row] for row in rows]
    plain = [p.temperature == 0.0 and p.rules is None and not _penalised(p) for p in params]
    all_NV = logits_NV.numpy()
    masked = _masks(rows, positions, tables, all_NV.shape[1])
    tokens = [0] * len(params)
    if any(plain):
        tokens = (argmax(logits_NV) if masked is None else argmax(logits_NV, masked)).tolist()
    off = {*masked.off} if masked is not None else set()
    for n, p in enumerate(params):
        if plain[n]:
            if tokens[n] == NO_TOKEN:
                off.add(n)
            continue
        mask = masked.of(n) if masked is not None else None
        some = allowed(all_NV[n], mask) if mask is not None else None
        if some is not None and not some[0].size:
            off.add(n)
        if n not in off:
            known, prompt = tables.tokens[rows[n], : positions[n]], int(tables.prompt_length[rows[n]])
            tokens[n] = _choose(all_NV[n], p, tables.rules[rows[n]], positions[n], known, prompt, some)
    for n in np.flatnonzero(~np.isfinite(all_NV[np.arange(len(tokens)), tokens])).tolist():
        tokens[n] = NOT_FINITE
    for n in off:
        tokens[n] = OFF_GRAMMAR
    return tokens


def _masks(rows: Sequence[int], positions: Sequence[int], tables: Tables, vocabulary: int) -> TokenMasks | None:
    if not tables.constrained:
        return None
    return masks(rows, positions, tables.grammars, tables.tokens, tables.prompt_length, vocabulary, tables.masks)


def _penalised(p: SamplingParams) -> bool:
    return p.repetition_penalty != 1.0 or p.presence_penalty != 0.0 or p.frequency_penalty != 0.0


def _finite(logits_V: np.ndarray) -> np.ndarray:
    """Return a float64 copy in which NaN and infinities have an order too, so that nothing here fails for a broken model."""
    return np.nan_to_num(logits_V.astype(np.float64), nan=-LARGEST, posinf=LARGEST, neginf=-LARGEST)


def _choose(
    logits_V: np.ndarray,
    p: SamplingParams,
    rules: RowRules | None,
    position: int,
    known: np.ndarray,
    prompt_length: int,
    some: Some | None,
) -> int:
    token_K, score_K = _possible(logits_V, p, rules, known, prompt_length, some)
    if token_K.size == 1:
        return int(token_K[0])
    noisy_K = score_K + gumbel(noise_key(p.seed, p.choice, position), token_K)
    best = noisy_K.max()
    return int(token_K[noisy_K == best].min())


def law(logits_V: np.ndarray, row: int, position: int, tables: Tables) -> np.ndarray:
    """Return float64 [V]: the probability of each token at a position of a table row."""
    p, known = tables.sampling[row], tables.tokens[row, :position]
    masked = _masks([row], [position], tables, logits_V.size)
    mask = masked.of(0) if masked is not None else None
    some = allowed_tokens(logits_V, mask) if mask is not None else None
    token_K, score_K = _possible(logits_V, p, tables.rules[row], known, int(tables.prompt_length[row]), some)
    weight_K = np.exp(score_K - score_K.max())
    law_V = np.zeros(logits_V.size)
    law_V[token_K] = weight_K / weight_K.sum()
    return law_V


def _possible(
    logits_V: np.ndarray,
    p: SamplingParams,
    rules: RowRules | None,
    known: np.ndarray,
    prompt_length: int,
    some: Some | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the token ids [K] that may be drawn, with their scores [K]; without randomness a single one.

    ``some``: the tokens that the grammar allows, with their logits; None: there is no grammar.
    """
    id_S, score_S = _scores(logits_V, p, rules, known, prompt_length, some)
    if p.temperature == 0.0:
        place_K = np.argmax(score_S, keepdims=True)
    else:
        score_S -= score_S.max()  # changes no choice, and keeps the best at zero however small the temperature
        with np.errstate(over="ignore"):
            score_S /= p.temperature
        if p.min_p > 0.0 or rules is not None or some is not None:
            place_P = np.flatnonzero(score_S >= math.log(p.min_p) if p.min_p > 0.0 else np.isfinite(score_S))
            place_K = place_P[candidates(score_S[place_P], p.top_k, p.top_p)]
        else:
            place_K = candidates(score_S, p.top_k, p.top_p)
    return place_K if id_S is None else id_S[place_K], score_S[place_K]


def _scores(
    logits_V: np.ndarray,
    p: SamplingParams,
    rules: RowRules | None,
    known: np.ndarray,
    prompt_length: int,
    some: Some | None,
) -> tuple[np.ndarray | None, np.ndarray]:
    """Return token ids and their scores before temperature; None instead of ids: the scores are of the vocabulary."""
    if some is not None and rules is None and not _penalised(p):
        return some[0], _finite(some[1])
    if some is None:
        score_V = _finite(logits_V)
    else:
        score_V = np.full(logits_V.size, -np.inf)
        score_V[some[0]] = _finite(some[1])
    if rules is not None:
        rules.apply(score_V, known, prompt_length)
    if _penalised(p):
        penalise(score_V, p, known, prompt_length)
    return None, score_V


def penalise(score_V: np.ndarray, p: SamplingParams, known: np.ndarray, prompt_length: int) -> None:
    """Apply penalties in place.

    Repetition counts all ``known`` tokens except virtual ones; presence and frequency count the ones from ``prompt_length``
    on.
    """
    if p.repetition_penalty != 1.0:
        seen = np.unique(known[known >= 0])
        score = score_V[seen]
        with np.errstate(over="ignore"):  # a tiny penalty gives huge scores, which must still be numbers to subtract from
            weighed = np.where(score < 0, score * p.repetition_penalty, score / p.repetition_penalty)
        score_V[seen] = np.where(np.isneginf(score), score, np.clip(weighed, -LARGEST, LARGEST))
    if p.presence_penalty != 0.0 or p.frequency_penalty != 0.0:
        seen, count = np.unique(known[prompt_length:], return_counts=True)
        score_V[seen] -= p.presence_penalty + p.frequency_penalty * count


def candidates(score_V: np.ndarray, top_k: int, top_p: float) -> np.ndarray:
    """Return the token ids [K] that may be drawn.

    Top k keeps the k best and any that equal the last of them. Of these, top p keeps a token while the ones ranked above it
    (higher score, or equal score and lower id) have less than ``top_p`` of the probability. The best one always stays.
    """
    vocabulary = score_V.size
    if not 0 < top_k < vocabulary:
        if top_p >= 1.0:
            return np.arange(vocabulary)
        return _nucleus(score_V, top_p)
    token_K = _best(score_V, top_k)
    if top_p >= 1.0:
        return token_K
    weight_K = np.exp(score_V[token_K] - score_V[token_K[0]])
    return token_K[: _kept(weight_K, float(weight_K.sum()), top_p)]


def _nucleus(score_V: np.ndarray, top_p: float) -> np.ndarray:
    """Apply top p to the whole vocabulary, sorting no more of it than the answer needs."""
    total = float(np.exp(score_V - score_V.max()).sum())
    size = FIRST_CANDIDATES
    while True:
        token_K = _best(score_V, min(size, score_V.size))
        weight_K = np.exp(score_V[token_K] - score_V[token_K[0]])
        kept = _kept(weight_K, total, top_p)
        if kept < token_K.size or token_K.size == score_V.size:
            return token_K[:kept]
        size *= 8


def _kept(weight_K: np.ndarray, total: float, top_p: float) -> int:
    above_K = np.cumsum(weight_K) - weight_K
    return max(1, int(np.count_nonzero(above_K < top_p * total)))


def _best(score_V: np.ndarray, k: int) -> np.ndarray:
    """Return the ids of the k highest scores and of any that equal the last of them, best first, equal ones by id."""
    if k < score_V.size:
        border = np.partition(score_V, score_V.size - k)[score_V.size - k]
        token_K = np.flatnonzero(score_V >= border)
    else:
        token_K = np.arange(score_V.size)
    return token_K[np.argsort(-score_V[token_K], kind="stable")]


def score_prompt(logits_NV: torch.Tensor, tokens: Sequence[int], k: int) -> list[TokenLogprob]:
    """Return the log-probabilities of prompt tokens under the raw logits of the positions before them, with ranks."""
    scored = []
    for logits_V, token in zip(logits_NV.numpy(), tokens, strict=True):
        entry = raw_logprobs(logits_V, token, k)
        entry.rank = 1 + int(np.count_nonzero(logits_V > logits_V[token]))
        scored.append(entry)
    return scored


def raw_logprobs(logits_V: np.ndarray, token: int, k: int) -> TokenLogprob:
    """Return the log-softmax of the raw logits: of ``token`` and of the ``k`` best, best first."""
    wide_V = _finite(logits_V)
    top = float(wide_V.max())
    norm = top + float(np.log(np.exp(wide_V - top).sum()))
    best = _best(wide_V, min(k, wide_V.size))[:k] if k else np.arange(0)
    return TokenLogprob(float(wide_V[token]) - norm, [(int(t), float(wide_V[t]) - norm) for t in best])
