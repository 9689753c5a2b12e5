"""Choice of tokens where only the temperature counts: the best logit, or Gumbel noise over them, as ``gpu/sampling`` has it.

Legend: N rows, V vocabulary, CB logits of a block.
"""

import triton
import triton.language as tl

from .sums import pointer

GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
FIRST = tl.constexpr(0xBF58476D1CE4E5B9)
SECOND = tl.constexpr(0x94D049BB133111EB)
LARGEST = tl.constexpr(1e30)  # what infinities count as, so that they have an order; NaN counts as the least
NOT_FINITE = tl.constexpr(-2)


@triton.jit
def finite(x):
    """Return float64 in which NaN and infinities have an order: float32 beyond LARGEST stays as it is."""
    wide = x.to(tl.float64)
    infinity = float("inf")
    return tl.where(x == infinity, LARGEST, tl.where((x != x) | (x == -infinity), -LARGEST, wide))


@triton.jit
def gumbel(state, v):
    """Return the noise of token ids, float64."""
    z = state + (v + 1).to(tl.uint64) * GOLDEN
    z = (z ^ (z >> 30)) * FIRST
    z = (z ^ (z >> 27)) * SECOND
    z = z ^ (z >> 31)
    u = ((z >> 12).to(tl.float64) + 0.5) * 2.220446049250313e-16
    return -tl.log(-tl.log(u))


@triton.jit(do_not_specialize=["logits", "key", "temperature", "token"])
def draw(logits: tl.int64, key: tl.int64, temperature: tl.int64, token: tl.int64, V: tl.constexpr, CB: tl.constexpr):
    """Draw a token for each row: argmax of (logit - best) / temperature + noise of (key, token id). Grid (N,).

    Temperature 0 takes the best logit, where NaN counts as the best.
    """
    n = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, CB)
    row_p = pointer(logits, tl.float32) + n * V
    heat = tl.load(pointer(temperature, tl.float64) + n)
    peak = tl.full([CB], float("-inf"), tl.float64)
    for first in tl.range(0, V, CB):
        x = tl.load(row_p + first + i, first + i < V, float("-inf"))
        peak = tl.maximum(peak, tl.where(first + i < V, finite(x), float("-inf")))
    top = tl.max(peak, 0)
    state = tl.load(pointer(key, tl.int64) + n).to(tl.uint64, bitcast=True)
    best = tl.full([CB], float("-inf"), tl.float64)
    chosen = i
    for first in tl.range(0, V, CB):
        x = tl.load(row_p + first + i, first + i < V, float("-inf"))
        if heat > 0:
            score = (finite(x) - top) / heat + gumbel(state, first + i)
        else:
            score = tl.where(x != x, float("inf"), x.to(tl.float64))
        score = tl.where(first + i >= V, float("-inf"), score)
        better = score > best
        chosen = tl.where(better, first + i, chosen)
        best = tl.where(better, score, best)
    most = tl.max(best, 0)
    found = tl.min(tl.where(best == most, chosen, V), 0)
    x = tl.load(row_p + found)
    broken = (x != x) | (tl.abs(x) == float("inf"))
    tl.store(pointer(token, tl.int32) + n, tl.where(broken, NOT_FINITE, found))
