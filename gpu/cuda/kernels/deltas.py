"""Deltas of products: low-rank terms, bias shifts and bottlenecks of tokens of several tenants in one launch.

A tile has at most M = 16 consecutive tokens of one number, and records on the device say what the number adds
(``ops.Terms``).
Legend: W width of the product, Q its outputs, R columns of ``low``, RB columns of a block.
"""

import triton
import triton.language as tl

from .sums import activation, load_sum, numbers, pointer, tokens

A, B, RANK, COLUMN, SCALE, SHIFT, FIRST, ROWS, LOW_BIAS, ACTIVATION, FIELDS = (tl.constexpr(i) for i in range(11))


@triton.jit
def _record(changed, terms, M: tl.constexpr):
    """Return the tokens of this program's tile, which of them count, and the record of its number and role."""
    tile_p = pointer(changed, tl.int32) + tl.program_id(0) * 3
    first = tl.load(tile_p)
    count = tl.load(tile_p + 1)
    number = tl.load(tile_p + 2)
    r = tl.arange(0, M)
    record = pointer(terms, tl.int64) + (number * tl.num_programs(1) + tl.program_id(1)) * FIELDS
    return first + tl.minimum(r, tl.maximum(count, 1) - 1), r < count, record


@triton.jit
def _activated(x, code):
    if code == 1:
        x = activation(x, 1)
    if code == 2:
        x = activation(x, 2)
    if code == 3:
        x = activation(x, 3)
    if code == 4:
        x = activation(x, 4)
    if code == 5:
        x = activation(x, 5)
    if code == 6:
        x = activation(x, 6)
    return x


@triton.jit(do_not_specialize=["x", "low", "changed", "terms", "R"])
def shrink(
    x: tl.int64, low: tl.int64, changed: tl.int64, terms: tl.int64, R: tl.int32, W: tl.constexpr, RB: tl.constexpr,
    M: tl.constexpr, KB: tl.constexpr, STAGES: tl.constexpr, DT: tl.constexpr,
):  # fmt: skip
    """Write act(x @ A^T + low bias) to low [T, R]. Grid (tiles, roles, blocks of R)."""
    t, there, record = _record(changed, terms, M)
    rank = tl.load(record + RANK).to(tl.int32)
    n, kk = tl.program_id(2) * RB + tl.arange(0, RB), tl.arange(0, KB)
    if tl.program_id(2) * RB < rank:
        x_p = pointer(x, DT) + t.to(tl.int64)[:, None] * W + kk[None, :]
        a_p = pointer(tl.load(record + A), DT) + n[:, None] * W + kk[None, :]
        acc = tl.zeros([M, RB], tl.float32)
        for k in tl.range(0, W, KB, num_stages=STAGES):
            if W % KB == 0:
                acc = tl.dot(tl.load(x_p + k), tl.load(a_p + k).trans(), acc, input_precision="ieee")
            else:
                m = (kk < W - k)[None, :]
                acc = tl.dot(tl.load(x_p + k, m, 0.0), tl.load(a_p + k, m, 0.0).trans(), acc, input_precision="ieee")
        bias = tl.load(record + LOW_BIAS)
        if bias != 0:
            acc += tl.load(pointer(bias, tl.float32) + n)[None, :]
        acc = _activated(acc, tl.load(record + ACTIVATION))
        at = t.to(tl.int64)[:, None] * R + tl.load(record + COLUMN) + n[None, :]
        tl.store(pointer(low, DT) + at, acc.to(DT), there[:, None] & (n < rank)[None, :])


@triton.jit(do_not_specialize=["low", "delta", "changed", "terms", "R"])
def expand(
    low: tl.int64, delta: tl.int64, changed: tl.int64, terms: tl.int64, R: tl.int32, Q: tl.constexpr, RB: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, DT: tl.constexpr,
):  # fmt: skip
    """Write scale * (low @ B^T) + shift to delta [T, Q]; -0.0, which changes no sum, where nothing is added.

    Grid (tiles, roles, blocks of rows).
    """
    t, there, record = _record(changed, terms, M)
    c, rows = tl.program_id(2) * N + tl.arange(0, N), tl.load(record + ROWS).to(tl.int32)
    if tl.program_id(2) * N < rows:
        rank, kk = tl.load(record + RANK).to(tl.int32), tl.arange(0, RB)
        near = tl.minimum(c, rows - 1)
        term = tl.zeros([M, N], tl.float32) * -1.0  # tl.full loses the sign
        if rank > 0:
            low_p = pointer(low, DT) + t.to(tl.int64)[:, None] * R + tl.load(record + COLUMN) + kk[None, :]
            b_p = pointer(tl.load(record + B), DT) + (near * rank)[:, None] + kk[None, :]
            acc = tl.zeros([M, N], tl.float32)
            for k in tl.range(0, rank, RB, num_stages=1):
                acc = tl.dot(tl.load(low_p + k), tl.load(b_p + k).trans(), acc, input_precision="ieee")
            term = acc * tl.load(record + SCALE).to(tl.float64, bitcast=True).to(tl.float32)
        shift = tl.load(record + SHIFT)
        if shift != 0:
            term += tl.load(pointer(shift, tl.float32) + near)[None, :]
        at = t.to(tl.int64)[:, None] * Q + tl.load(record + FIRST) + c[None, :]
        tl.store(pointer(delta, tl.float32) + at, term, there[:, None] & (c < rows)[None, :])


@triton.jit(do_not_specialize=["term", "bias", "delta", "number", "hidden", "reads", "x", "wide", "T"])
def adapt(
    term: tl.int64, bias: tl.int64, delta: tl.int64, number: tl.int64, hidden: tl.int64, reads: tl.int64, x: tl.int64,
    wide: tl.int64, T: tl.int32, W: tl.constexpr, CB: tl.constexpr, TB: tl.constexpr, Z: tl.constexpr, BIAS: tl.constexpr,
    DELTA: tl.constexpr, DT: tl.constexpr,
):  # fmt: skip
    """Write a component's result in float32, and what the tokens' bottlenecks read. Grid (tiles of T, blocks of W)."""
    t, there = tokens(T, TB)
    c = tl.program_id(1) * CB + tl.arange(0, CB)
    inside = c < W
    n = numbers(number, t, True)
    y = load_sum(term, bias, delta, n, t, c, inside, 0, 0, T, W, Z, BIAS, DELTA, DT)
    place = t.to(tl.int64)[:, None] * W + c[None, :]
    m = there[:, None] & inside[None, :]
    tl.store(pointer(wide, tl.float32) + place, y, m)
    read = tl.load(pointer(reads, tl.int32) + tl.maximum(n, 0))[:, None]
    h = tl.load(pointer(hidden, DT) + place, inside[None, :], 0.0).to(tl.float32)
    y = tl.where(read == 0, y, tl.where(read == 1, y + h, h))
    tl.store(pointer(x, DT) + place, y.to(DT), m & (n != 0)[:, None])
