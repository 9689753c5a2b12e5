"""Kernels over rows: norms with the residual sum, heads with rotary and KV write, gated activation, embedding, logits.

A program has TB tokens, each computed as it would be alone. Everything is float32 and rounded once, when it is stored.
Legend: T tokens of a step, W hidden width, CB columns of a block, Q outputs of a product, Z parts of its sum, E head size.
"""

import triton
import triton.language as tl

from .sums import activation, load_sum, norm_rows, numbers, pointer, tanh, tokens


@triton.jit(
    do_not_specialize=[
        "hidden", "T", "number", "term", "bias", "delta", "side", "side_bias", "side_delta", "post", "post_bias", "norm",
        "norm_bias", "out",
    ]
)  # fmt: skip
def finish(
    hidden: tl.int64, T: tl.int32, number: tl.int64, term: tl.int64, bias: tl.int64, delta: tl.int64, side: tl.int64,
    side_bias: tl.int64, side_delta: tl.int64, post: tl.int64, post_bias: tl.int64, norm: tl.int64, norm_bias: tl.int64,
    out: tl.int64, multiplier: tl.float32, post_eps: tl.float32, eps: tl.float32, W: tl.constexpr, CB: tl.constexpr,
    TB: tl.constexpr, Z: tl.constexpr, BIAS: tl.constexpr, DELTA: tl.constexpr, SIDE: tl.constexpr, SIDE_BIAS: tl.constexpr,
    SIDE_DELTA: tl.constexpr, POST: tl.constexpr, POST_OFFSET: tl.constexpr, SCALED: tl.constexpr, NORM: tl.constexpr,
    OFFSET: tl.constexpr, DT: tl.constexpr,
):  # fmt: skip
    """Add a component's result to the hidden states, then write their norm. Grid (tiles of T,).

    Z and SIDE: parts of the two sums, 0 without; POST and NORM: 0 without, 1 RMS, 2 layer norm. The norm reads what was
    rounded.
    """
    t, there = tokens(T, TB)
    c = tl.arange(0, CB)
    inside = c < W
    m = there[:, None] & inside[None, :]
    place = t.to(tl.int64)[:, None] * W + c[None, :]
    x = tl.load(pointer(hidden, DT) + place, inside[None, :], 0.0)
    if Z > 0:
        n = numbers(number, t, DELTA or SIDE_DELTA)
        y = load_sum(term, bias, delta, n, t, c, inside, 0, 0, T, W, Z, BIAS, DELTA, DT)
        if POST > 0:
            y = norm_rows(y, post, post_bias, c, post_eps, W, POST == 2, POST_OFFSET, DT)
        if SCALED:
            y = y * multiplier
        if SIDE > 0:
            y = load_sum(side, side_bias, side_delta, n, t, c, inside, 0, 0, T, W, SIDE, SIDE_BIAS, SIDE_DELTA, DT) + y
        x = (x.to(tl.float32) + y).to(DT)
        tl.store(pointer(hidden, DT) + place, x, m)
    if NORM > 0:
        y = norm_rows(x.to(tl.float32), norm, norm_bias, c, eps, W, NORM == 2, OFFSET, DT)
        tl.store(pointer(out, DT) + place, y.to(DT), m)


@triton.jit(do_not_specialize=["table", "table_stride", "row", "position", "weight", "out", "T"])
def embed(
    table: tl.int64, table_stride: tl.int64, row: tl.int64, position: tl.int64, weight: tl.int64, out: tl.int64, T: tl.int32,
    multiplier: tl.float32, W: tl.constexpr, CB: tl.constexpr, TB: tl.constexpr, DT: tl.constexpr,
):  # fmt: skip
    """Write the embeddings of the step's tokens, zero for virtual ones. Grid (tiles of T, blocks of W)."""
    t, there = tokens(T, TB)
    c = tl.program_id(1) * CB + tl.arange(0, CB)
    r = tl.load(pointer(row, tl.int32) + t)
    at = tl.maximum(r, 0).to(tl.int64) * table_stride + tl.load(pointer(position, tl.int32) + t)
    token = tl.load(pointer(table, tl.int32) + at, r >= 0, -1)
    real = (token >= 0)[:, None] & (c < W)[None, :]
    x = tl.load(pointer(weight, DT) + token.to(tl.int64)[:, None] * W + c[None, :], real, 0.0).to(tl.float32) * multiplier
    m = there[:, None] & (c < W)[None, :]
    tl.store(pointer(out, DT) + t.to(tl.int64)[:, None] * W + c[None, :], x.to(DT), m)


@triton.jit
def _virtual(virtual, number, position, there):
    """Return the addresses of the tokens' deltas' rows, and which tokens are virtual."""
    record = pointer(virtual, tl.int64) + tl.maximum(number, 0) * 2
    return tl.load(record), there & (number > 0) & (position < tl.load(record + 1))


@triton.jit(do_not_specialize=["virtual", "number", "row", "position", "out", "T"])
def fill(
    virtual: tl.int64, number: tl.int64, row: tl.int64, position: tl.int64, out: tl.int64, T: tl.int32, W: tl.constexpr,
    CB: tl.constexpr, TB: tl.constexpr, DT: tl.constexpr,
):  # fmt: skip
    """Overwrite the rows of virtual tokens. Grid (tiles of T, blocks of W)."""
    t, there = tokens(T, TB)
    c = tl.program_id(1) * CB + tl.arange(0, CB)
    place = tl.load(pointer(position, tl.int32) + t)
    there = there & (tl.load(pointer(row, tl.int32) + t) >= 0)
    address, taken = _virtual(virtual, tl.load(pointer(number, tl.int32) + t), place, there)
    m = taken[:, None] & (c < W)[None, :]
    source = address.to(tl.pointer_type(DT))[:, None] + (place.to(tl.int64) * W)[:, None] + c[None, :]
    tl.store(pointer(out, DT) + t.to(tl.int64)[:, None] * W + c[None, :], tl.load(source, m, 0.0), m)


@triton.jit(do_not_specialize=["sums", "b0", "b1", "b2", "delta", "number", "norm_q", "norm_k", "T"])
def norm_whole(
    sums: tl.int64, b0: tl.int64, b1: tl.int64, b2: tl.int64, delta: tl.int64, number: tl.int64, norm_q: tl.int64,
    norm_k: tl.int64, T: tl.int32, eps: tl.float32, QW: tl.constexpr, KW: tl.constexpr, CB: tl.constexpr, TB: tl.constexpr,
    Z: tl.constexpr, BIAS: tl.constexpr, DELTA: tl.constexpr, OFFSET: tl.constexpr, DT: tl.constexpr,
):  # fmt: skip
    """Norm queries and keys over all heads, into part 0 of the sums; values are added up there. Grid (tiles of T, 3)."""
    t, there = tokens(T, TB)
    which = tl.program_id(1)
    c = tl.arange(0, CB)
    first = tl.where(which == 0, 0, QW + (which - 1) * KW)
    width = tl.where(which == 0, QW, KW)
    bias = tl.where(which == 0, b0, tl.where(which == 1, b1, b2))
    inside = c < width
    x = load_sum(sums, bias, delta, numbers(number, t, DELTA), t, c, inside, first, 0, T, QW + 2 * KW, Z, BIAS, DELTA, DT)
    weight = tl.load(pointer(tl.where(which == 0, norm_q, norm_k), DT) + c, inside, 0.0).to(tl.float32)
    normed = x * tl.rsqrt(tl.sum(x * x, 1) / width + eps)[:, None] * (weight + OFFSET)[None, :]
    x = tl.where(which < 2, normed, x)
    place = t.to(tl.int64)[:, None] * (QW + 2 * KW) + (first + c)[None, :]
    tl.store(pointer(sums, tl.float32) + place, x, there[:, None] & inside[None, :])


@triton.jit(
    do_not_specialize=[
        "sums", "b0", "b1", "b2", "delta", "number", "norm_q", "norm_k", "cos", "sin", "q", "row", "position", "slots",
        "arena", "layer", "row_stride", "layer_stride", "virtual", "T",
    ]
)  # fmt: skip
def heads(
    sums: tl.int64, b0: tl.int64, b1: tl.int64, b2: tl.int64, delta: tl.int64, number: tl.int64, norm_q: tl.int64,
    norm_k: tl.int64, cos: tl.int64, sin: tl.int64, q: tl.int64, row: tl.int64, position: tl.int64, slots: tl.int64,
    arena: tl.int64, layer: tl.int32, row_stride: tl.int64, layer_stride: tl.int64, virtual: tl.int64, T: tl.int32,
    eps: tl.float32, H: tl.constexpr, K: tl.constexpr, E: tl.constexpr, EB: tl.constexpr, TB: tl.constexpr,
    TURNED: tl.constexpr, NEIGHBOURS: tl.constexpr, NORM: tl.constexpr, OFFSET: tl.constexpr, Z: tl.constexpr,
    BIAS: tl.constexpr, DELTA: tl.constexpr, VIRTUAL: tl.constexpr, SLOT: tl.constexpr, PAGE: tl.constexpr, DT: tl.constexpr,
):  # fmt: skip
    """Write rotated queries, and keys and values to their slots. Grid (tiles of T, H + 2K): a head of q, then of k, of v.

    The first TURNED elements of queries and keys turn: each with its partner, which is read again from the sums.
    """
    t, there = tokens(T, TB)
    h = tl.program_id(1)
    e = tl.arange(0, EB)
    inside = e < E
    n = numbers(number, t, DELTA or VIRTUAL)
    r, place = tl.load(pointer(row, tl.int32) + t), tl.load(pointer(position, tl.int32) + t)
    there = there & (r >= 0)
    mine = tl.where(h < H, h, tl.where(h < H + K, h - H, h - H - K))
    bias = tl.where(h < H, b0, tl.where(h < H + K, b1, b2))
    x = load_sum(sums, bias, delta, n, t, e, inside, h * E, mine * E, T, (H + 2 * K) * E, Z, BIAS, DELTA, DT)
    if h < H + K:
        half: tl.constexpr = TURNED // 2
        turning = e < TURNED
        if NEIGHBOURS:
            partner = e ^ 1
            angle = e // 2
            left = e % 2 == 0
        else:
            partner = tl.where(e < half, e + half, e - half)
            angle = tl.where(e < half, e, e - half)
            left = e < half
        partner = tl.where(turning, partner, 0)
        y = load_sum(sums, bias, delta, n, t, partner, turning, h * E, mine * E, T, (H + 2 * K) * E, Z, BIAS, DELTA, DT)
        if NORM:
            weight = pointer(tl.where(h < H, norm_q, norm_k), DT)
            scale = tl.rsqrt(tl.sum(x * x, 1) / E + eps)[:, None]
            x = x * scale * (tl.load(weight + e, inside, 0.0).to(tl.float32) + OFFSET)[None, :]
            y = y * scale * (tl.load(weight + partner, turning, 0.0).to(tl.float32) + OFFSET)[None, :]
        at = place[:, None] * half + tl.where(turning, angle, 0)[None, :]
        turned = x * tl.load(pointer(cos, tl.float32) + at) + tl.where(left[None, :], -y, y) * tl.load(
            pointer(sin, tl.float32) + at
        )
        x = tl.where(turning[None, :], turned, x)
    z = x.to(DT)
    if h < H:
        at = t.to(tl.int64)[:, None] * (H * E) + h * E + e[None, :]
        tl.store(pointer(q, DT) + at, z, there[:, None] & inside[None, :])
    else:
        if VIRTUAL:
            address, taken = _virtual(virtual, n, place, there)
            source = address.to(tl.pointer_type(DT))[:, None] + (place.to(tl.int64) * (2 * K * E))[:, None]
            m = taken[:, None] & inside[None, :]
            z = tl.where(m, tl.load(source + ((h - H) * E + e)[None, :], m, 0.0), z)
        page_p = pointer(slots, tl.int32) + tl.maximum(r, 0).to(tl.int64) * row_stride + layer * layer_stride + place // PAGE
        slot = tl.load(page_p, there, 0).to(tl.int64)
        at = (slot * SLOT + (place % PAGE) * E)[:, None] + ((h - H) * PAGE * E + e)[None, :]
        tl.store(pointer(arena, DT) + at, z, there[:, None] & inside[None, :])


@triton.jit(do_not_specialize=["sums", "b0", "b1", "delta", "number", "out", "T"])
def activate(
    sums: tl.int64, b0: tl.int64, b1: tl.int64, delta: tl.int64, number: tl.int64, out: tl.int64, T: tl.int32,
    INNER: tl.constexpr, CB: tl.constexpr, TB: tl.constexpr, CODE: tl.constexpr, GATED: tl.constexpr, Z: tl.constexpr,
    BIAS: tl.constexpr, DELTA: tl.constexpr, DT: tl.constexpr,
):  # fmt: skip
    """Write act(gate) * up, or act(up). Grid (tiles of T, blocks of INNER)."""
    t, there = tokens(T, TB)
    c = tl.program_id(1) * CB + tl.arange(0, CB)
    inside = c < INNER
    n = numbers(number, t, DELTA)
    Q: tl.constexpr = 2 * INNER if GATED else INNER
    x = activation(load_sum(sums, b0, delta, n, t, c, inside, 0, 0, T, Q, Z, BIAS, DELTA, DT), CODE)
    if GATED:
        x = x * load_sum(sums, b1, delta, n, t, c, inside, INNER, 0, T, Q, Z, BIAS, DELTA, DT)
    tl.store(pointer(out, DT) + t.to(tl.int64)[:, None] * INNER + c[None, :], x.to(DT), there[:, None] & inside[None, :])


@triton.jit(do_not_specialize=["sums", "delta", "number", "out", "T"])
def logits(
    sums: tl.int64, delta: tl.int64, number: tl.int64, out: tl.int64, T: tl.int32, divisor: tl.float32, cap: tl.float32,
    V: tl.constexpr, CB: tl.constexpr, TB: tl.constexpr, Z: tl.constexpr, DELTA: tl.constexpr, DIVIDED: tl.constexpr,
    CAPPED: tl.constexpr,
):  # fmt: skip
    """Write the logits of a sum, divided, then capped. Grid (tiles of T, blocks of V)."""
    t, there = tokens(T, TB)
    c = tl.program_id(1) * CB + tl.arange(0, CB)
    inside = c < V
    x = load_sum(sums, sums, delta, numbers(number, t, DELTA), t, c, inside, 0, 0, T, V, Z, False, DELTA, tl.float32)
    if DIVIDED:
        x = x / divisor
    if CAPPED:
        x = tanh(x / cap) * cap
    tl.store(pointer(out, tl.float32) + t.to(tl.int64)[:, None] * V + c[None, :], x, there[:, None] & inside[None, :])
