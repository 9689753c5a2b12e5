"""Products with a fixed order of sums: columns ascend within stretches, and stretches are added in order.

Legend: T tokens, W width, Q outputs; M rows, N outputs, KB columns of a tile; KS columns of a stretch.
"""

import triton
import triton.language as tl

from .sums import pointer


@triton.jit(do_not_specialize=["x", "w0", "w1", "w2", "out", "T"])
def linear(
    x: tl.int64, w0: tl.int64, w1: tl.int64, w2: tl.int64, out: tl.int64, T: tl.int32,
    Q0: tl.constexpr, Q1: tl.constexpr, Q2: tl.constexpr, W: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    KB: tl.constexpr, KS: tl.constexpr, SPLIT: tl.constexpr, STAGES: tl.constexpr, DT: tl.constexpr,
):  # fmt: skip
    """Multiply x [T, W] with the rows of up to three weights [Qi, W]. Grid (tiles of T, tiles of all Qi, SPLIT or 1).

    With SPLIT, program z sums stretch z and leaves a part, float32 [SPLIT, T, Q]; else it sums all stretches, into [T, Q].
    Rows and outputs beyond the last repeat it and are not stored, so that nothing is masked but columns.
    """
    i = tl.program_id(0)
    j = tl.program_id(1)
    z = tl.program_id(2)
    Q: tl.constexpr = Q0 + Q1 + Q2
    A: tl.constexpr = (Q0 + N - 1) // N
    B: tl.constexpr = A + (Q1 + N - 1) // N
    w = w0
    rows = Q0 + 0 * j
    before = 0 * j
    j0 = 0 * j
    if Q1 > 0:
        w = tl.where(j >= A, w1, w)
        rows = tl.where(j >= A, Q1, rows)
        before = tl.where(j >= A, Q0, before)
        j0 = tl.where(j >= A, A, j0)
    if Q2 > 0:
        w = tl.where(j >= B, w2, w)
        rows = tl.where(j >= B, Q2, rows)
        before = tl.where(j >= B, Q0 + Q1, before)
        j0 = tl.where(j >= B, B, j0)
    r = i * M + tl.arange(0, M)
    c = (j - j0) * N + tl.arange(0, N)
    kk = tl.arange(0, KB)
    x_p = pointer(x, DT) + tl.minimum(r, T - 1).to(tl.int64)[:, None] * W + kk[None, :]
    w_p = pointer(w, DT) + tl.minimum(c, rows - 1).to(tl.int64)[:, None] * W + kk[None, :]
    total = tl.zeros([M, N], tl.float32)
    if SPLIT > 0:
        total = _stretch(x_p, w_p, kk, z * KS, W, M, N, KB, KS, STAGES)
    elif KS >= W:
        total = _stretch(x_p, w_p, kk, 0 * z, W, M, N, KB, KS, STAGES)
    else:
        for start in tl.range(0, W, KS, num_stages=1):
            total += _stretch(x_p, w_p, kk, start, W, M, N, KB, KS, STAGES)
    out_p = pointer(out, tl.float32) + z * T.to(tl.int64) * Q + r.to(tl.int64)[:, None] * Q + (before + c)[None, :]
    tl.store(out_p, total, (r < T)[:, None] & (c < rows)[None, :])


@triton.jit
def _stretch(
    x_p, w_p, kk, start, W: tl.constexpr, M: tl.constexpr, N: tl.constexpr, KB: tl.constexpr, KS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Return the sum over columns start .. start + KS - 1. A weight's rows are turned in shared memory."""
    acc = tl.zeros([M, N], tl.float32)
    if W % KS == 0:
        count: tl.constexpr = KS
        for k in tl.range(0, count, KB, num_stages=STAGES):
            acc = _block(acc, x_p + start + k, w_p + start + k, kk, W - start - k, W % KB == 0)
    else:
        for k in tl.range(0, tl.minimum(KS, W - start), KB, num_stages=STAGES):
            acc = _block(acc, x_p + start + k, w_p + start + k, kk, W - start - k, W % KB == 0)
    return acc


@triton.jit
def _block(acc, x_p, w_p, kk, left, WHOLE: tl.constexpr):
    if WHOLE:
        return tl.dot(tl.load(x_p), tl.load(w_p).trans(), acc, input_precision="ieee")
    else:
        there = (kk < left)[None, :]
        return tl.dot(tl.load(x_p, there, 0.0), tl.load(w_p, there, 0.0).trans(), acc, input_precision="ieee")
