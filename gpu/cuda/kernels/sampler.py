"""Choice of tokens by all parameters: rules, penalties, temperature, min p, top k, top p; and log-probabilities.

The order and the arithmetic are those of ``gpu/sampling/sampler.py``, in float64. Which tokens may be drawn is found by
halving: scores below the best one order like the bits of their distances from it. Sums run in blocks of ascending ids, so
that they are the same at each launch.

Legend: N rows, V vocabulary, CB logits of a block, d distance of a score from the best one.
"""

import triton
import triton.language as tl

from .draw import LARGEST, NOT_FINITE, finite, gumbel
from .sums import pointer

LOGITS, ROW, POSITION, PROMPT, TOP_K, FIRST, LISTED, ALLOWED = (tl.constexpr(i) for i in range(8))
TEMPERATURE, MIN_P, TOP_P, REPETITION, PRESENCE, FREQUENCY = (tl.constexpr(i) for i in range(6))
INTS, FLOATS = tl.constexpr(8), tl.constexpr(6)
INFINITE = tl.constexpr(0x7FF0000000000000)  # bits of float64's infinity
LEAST = tl.constexpr(1e-300)


@triton.jit(do_not_specialize=["logits", "ints", "scores", "counts"])
def weigh(
    logits: tl.int64, ints: tl.int64, scores: tl.int64, counts: tl.int64, V: tl.constexpr, CB: tl.constexpr,
    PENALISED: tl.constexpr,
):  # fmt: skip
    """Write the scores of rows, float64: minus infinity where only listed tokens are allowed. Grid (N, blocks of V)."""
    n = tl.program_id(0).to(tl.int64)
    v = tl.program_id(1) * CB + tl.arange(0, CB)
    row_p = pointer(ints, tl.int32) + n * INTS
    x = tl.load(pointer(logits, tl.float32) + tl.load(row_p + LOGITS).to(tl.int64) * V + v, v < V, 0.0)
    x = tl.where(tl.load(row_p + ALLOWED) != 0, float("-inf"), finite(x))
    tl.store(pointer(scores, tl.float64) + n * V + v, x, v < V)
    if PENALISED:
        zero = tl.zeros([CB], tl.int32)
        tl.store(pointer(counts, tl.int32) + 2 * n * V + v, zero, v < V)
        tl.store(pointer(counts, tl.int32) + (2 * n + 1) * V + v, zero, v < V)


@triton.jit(do_not_specialize=["logits", "ints", "ids", "values", "scores"])
def amend(
    logits: tl.int64, ints: tl.int64, ids: tl.int64, values: tl.int64, scores: tl.int64, V: tl.constexpr, CB: tl.constexpr,
):  # fmt: skip
    """Write the scores of listed tokens: the logit and the list's value. Grid (N, blocks of the longest list)."""
    n = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * CB + tl.arange(0, CB)
    row_p = pointer(ints, tl.int32) + n * INTS
    m = i < tl.load(row_p + LISTED)
    at = tl.load(row_p + FIRST) + i
    v = tl.load(pointer(ids, tl.int32) + at, m, 0)
    x = tl.load(pointer(logits, tl.float32) + tl.load(row_p + LOGITS).to(tl.int64) * V + v, m, 0.0)
    x = finite(x) + tl.load(pointer(values, tl.float64) + at, m, 0.0)
    tl.store(pointer(scores, tl.float64) + n * V + v, x, m)


@triton.jit(do_not_specialize=["ints", "table", "table_stride", "counts"])
def count(ints: tl.int64, table: tl.int64, table_stride: tl.int64, counts: tl.int64, V: tl.constexpr, CB: tl.constexpr):
    """Count the tokens of each row before its position: of the prompt, then of the output. Grid (N,)."""
    n = tl.program_id(0).to(tl.int64)
    row_p = pointer(ints, tl.int32) + n * INTS
    position = tl.load(row_p + POSITION)
    prompt = tl.load(row_p + PROMPT)
    known_p = pointer(table, tl.int32) + tl.load(row_p + ROW).to(tl.int64) * table_stride
    counts_p = pointer(counts, tl.int32) + 2 * n * V
    one = tl.full([CB], 1, tl.int32)
    for first in tl.range(0, position, CB):
        i = first + tl.arange(0, CB)
        token = tl.load(known_p + i, i < position, -1)
        m = (token >= 0) & (token < V)
        tl.atomic_add(counts_p + tl.where(i < prompt, 0, V) + tl.maximum(token, 0), one, m)


@triton.jit(do_not_specialize=["ints", "floats", "counts", "scores"])
def penalise(ints: tl.int64, floats: tl.int64, counts: tl.int64, scores: tl.int64, V: tl.constexpr, CB: tl.constexpr):
    """Apply the penalties of known tokens to scores. Grid (N, blocks of V)."""
    n = tl.program_id(0).to(tl.int64)
    v = tl.program_id(1) * CB + tl.arange(0, CB)
    prompt = tl.load(pointer(counts, tl.int32) + 2 * n * V + v, v < V, 0)
    output = tl.load(pointer(counts, tl.int32) + (2 * n + 1) * V + v, v < V, 0)
    own_p = pointer(floats, tl.float64) + n * FLOATS
    repetition = tl.load(own_p + REPETITION)
    repeated = (repetition != 1).to(tl.int32)  # a whole number, which the interpreter can spread
    x_p = pointer(scores, tl.float64) + n * V + v
    x = tl.load(x_p, v < V, 0.0)
    weighed = tl.minimum(tl.maximum(tl.where(x < 0, x * repetition, x / repetition), -LARGEST), LARGEST)
    seen = (prompt + output > 0) & (x > float("-inf")) & (repeated > 0)
    x = tl.where(seen, weighed, x)
    less = tl.load(own_p + PRESENCE) + tl.load(own_p + FREQUENCY) * output.to(tl.float64)
    tl.store(x_p, tl.where(output > 0, x - less, x), v < V)


@triton.jit
def _scaled(scores_p, v, top, heat, V: tl.constexpr):
    """Return scores below the best one by temperature, minus infinity beyond the vocabulary, and the bits of distances."""
    s = tl.where(v < V, (tl.load(scores_p + v, v < V, 0.0) - top) / heat, float("-inf"))
    return s, tl.abs(s).to(tl.int64, bitcast=True)


@triton.jit
def _furthest(scores_p, top, heat, k, V: tl.constexpr, CB: tl.constexpr):
    """Return the bits of the distance within which the k best tokens lie, with all that equal the last of them."""
    low = tl.full([], -1, tl.int64)
    high = tl.full([], INFINITE, tl.int64)
    found = tl.full([], 0, tl.int32)
    while (high - low > 1) & (found != k):
        middle = low + (high - low) // 2
        within = tl.zeros([CB], tl.int32)
        for first in tl.range(0, V, CB):
            v = first + tl.arange(0, CB)
            _s, bits = _scaled(scores_p, v, top, heat, V)
            within += ((v < V) & (bits <= middle)).to(tl.int32)
        found = tl.sum(within, 0)
        high = tl.where(found >= k, middle, high)
        low = tl.where(found >= k, low, middle)
    return high


@triton.jit
def _nucleus(scores_p, top, heat, share, limit, least, V: tl.constexpr, CB: tl.constexpr):
    """Return bits: a token nearer than ``low`` is in the nucleus, and one before ``high`` up to the id ``last``.

    Of tokens within ``limit`` and not below ``least``.
    """
    total = tl.zeros([CB], tl.float64)
    for first in tl.range(0, V, CB):
        s, bits = _scaled(scores_p, first + tl.arange(0, CB), top, heat, V)
        total += tl.where((bits <= limit) & (s >= least), tl.exp(s), 0.0)
    mass = tl.maximum(share * tl.sum(total, 0), LEAST)
    low, high = tl.full([], 0, tl.int64), tl.full([], INFINITE + 1, tl.int64)
    below = tl.full([], 0.0, tl.float64)  # the mass nearer than low
    before, within = tl.full([], 0, tl.int32), tl.full([], V + 1, tl.int32)  # tokens nearer than low, and than high
    while (high - low > 1) & (within - before > 1):
        middle = low + (high - low) // 2
        weight, tokens = tl.zeros([CB], tl.float64), tl.zeros([CB], tl.int32)
        for first in tl.range(0, V, CB):
            s, bits = _scaled(scores_p, first + tl.arange(0, CB), top, heat, V)
            near = (bits < middle) & (bits <= limit) & (s >= least) & (s > float("-inf"))
            weight += tl.where(near, tl.exp(s), 0.0)
            tokens += near.to(tl.int32)
        sum, some = tl.sum(weight, 0), tl.sum(tokens, 0)
        inside = sum < mass
        below = tl.where(inside, sum, below)
        low, before = tl.where(inside, middle, low), tl.where(inside, some, before)
        high, within = tl.where(inside, high, middle), tl.where(inside, within, some)
    last = tl.full([], V, tl.int32)
    if within - before > 1:  # several of equal score: those with low ids are in
        each = tl.exp(-low.to(tl.float64, bitcast=True))
        kept = tl.ceil((mass - below) / each).to(tl.int32)
        passed = tl.full([], 0, tl.int32)
        for first in tl.range(0, V, CB):
            v = first + tl.arange(0, CB)
            _s, bits = _scaled(scores_p, v, top, heat, V)
            equal = ((bits == low) & (v < V)).to(tl.int32)
            hit = (equal > 0) & (passed + tl.cumsum(equal, 0) == kept)
            last = tl.minimum(last, tl.min(tl.where(hit, v, V), 0))
            passed += tl.sum(equal, 0)
    return low, high, last


@triton.jit(do_not_specialize=["logits", "ints", "floats", "key", "scores", "token"])
def choose(
    logits: tl.int64, ints: tl.int64, floats: tl.int64, key: tl.int64, scores: tl.int64, token: tl.int64, V: tl.constexpr,
    CB: tl.constexpr,
):  # fmt: skip
    """Write the token of each row, at the place of its logits: the best of scores and noise that truncation leaves.

    Temperature 0 takes the best score. Grid (N,).
    """
    n = tl.program_id(0).to(tl.int64)
    row_p, own_p = pointer(ints, tl.int32) + n * INTS, pointer(floats, tl.float64) + n * FLOATS
    scores_p = pointer(scores, tl.float64) + n * V
    heat = tl.load(own_p + TEMPERATURE)
    peak = tl.full([CB], float("-inf"), tl.float64)
    chosen = tl.arange(0, CB)
    for first in tl.range(0, V, CB):
        v = first + tl.arange(0, CB)
        x = tl.load(scores_p + v, v < V, float("-inf"))
        chosen = tl.where(x > peak, v, chosen)
        peak = tl.maximum(peak, x)
    top = tl.max(peak, 0)
    found = tl.min(tl.where(peak == top, chosen, V), 0)
    if heat > 0:
        least = tl.load(own_p + MIN_P)
        k = tl.load(row_p + TOP_K)
        limit = tl.full([], INFINITE, tl.int64)
        if (k > 0) & (k < V):
            limit = _furthest(scores_p, top, heat, k, V, CB)
        share = tl.load(own_p + TOP_P)
        low = tl.full([], INFINITE + 1, tl.int64)
        high, last = low, tl.full([], V, tl.int32)
        if share < 1:
            low, high, last = _nucleus(scores_p, top, heat, share, limit, least, V, CB)
        state = tl.load(pointer(key, tl.int64) + n).to(tl.uint64, bitcast=True)
        best = tl.full([CB], float("-inf"), tl.float64)
        chosen = tl.arange(0, CB)
        for first in tl.range(0, V, CB):
            v = first + tl.arange(0, CB)
            s, bits = _scaled(scores_p, v, top, heat, V)
            kept = (bits <= limit) & (s >= least) & ((bits < low) | ((bits < high) & (v <= last)))
            score = tl.where(kept, s + gumbel(state, v), float("-inf"))
            chosen = tl.where(score > best, v, chosen)
            best = tl.maximum(best, score)
        found = tl.min(tl.where(best == tl.max(best, 0), chosen, V), 0)
    place = tl.load(row_p + LOGITS).to(tl.int64)
    x = tl.load(pointer(logits, tl.float32) + place * V + found)
    broken = (x != x) | (tl.abs(x) == float("inf"))
    tl.store(pointer(token, tl.int32) + place, tl.where(broken, NOT_FINITE, found))


@triton.jit(do_not_specialize=["logits", "index", "token", "best", "numbers", "ranks"])
def logprobs(
    logits: tl.int64, index: tl.int64, token: tl.int64, best: tl.int32, numbers: tl.int64, ranks: tl.int64, V: tl.constexpr,
    CB: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """Write what log-probabilities are made of (``ops.Logprobs``). Grid (N,)."""
    n = tl.program_id(0).to(tl.int64)
    place = tl.load(pointer(index, tl.int32) + n).to(tl.int64)
    row_p = pointer(logits, tl.float32) + place * V
    own = tl.maximum(tl.load(pointer(token, tl.int32) + place), 0)
    mine = tl.load(row_p + own)
    peak = tl.full([CB], float("-inf"), tl.float64)
    above = tl.zeros([CB], tl.int32)
    for first in tl.range(0, V, CB):
        v = first + tl.arange(0, CB)
        x = tl.load(row_p + v, v < V, float("-inf"))
        peak = tl.maximum(peak, tl.where(v < V, finite(x), float("-inf")))
        above += ((v < V) & (x > mine)).to(tl.int32)
    top = tl.max(peak, 0)
    total = tl.zeros([CB], tl.float64)
    for first in tl.range(0, V, CB):
        v = first + tl.arange(0, CB)
        total += tl.where(v < V, tl.exp(finite(tl.load(row_p + v, v < V, 0.0)) - top), 0.0)
    numbers_p = pointer(numbers, tl.float64) + n * (2 + MOST)
    ranks_p = pointer(ranks, tl.int32) + n * (1 + MOST)
    tl.store(numbers_p, top + tl.log(tl.sum(total, 0)))
    tl.store(numbers_p + 1, finite(mine))
    tl.store(ranks_p, 1 + tl.sum(above, 0))
    before, id = tl.full([], float("inf"), tl.float64), tl.full([], -1, tl.int32)
    for k in tl.range(0, best):
        peak = tl.full([CB], float("-inf"), tl.float64)
        chosen = tl.full([CB], V, tl.int32)
        for first in tl.range(0, V, CB):
            v = first + tl.arange(0, CB)
            x = finite(tl.load(row_p + v, v < V, 0.0))
            behind = (v < V) & ((x < before) | ((x == before) & (v > id)))
            better = behind & (x > peak)
            chosen = tl.where(better, v, chosen)
            peak = tl.where(better, x, peak)
        before = tl.max(peak, 0)
        id = tl.min(tl.where(peak == before, chosen, V), 0)
        tl.store(numbers_p + 2 + k, before)
        tl.store(ranks_p + 1 + k, id)
