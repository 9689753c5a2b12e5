"""Paged attention in one order: keys in blocks of BK inside segments of SEG positions, both counted from position 0.

A token's segments are joined in ascending order, by one program or by ``join_parts``; keys that it does not see, and
blocks and segments of such keys, change no bit. So its result is the same in prefill and decode, alone and in any batch.

Legend: M rows of a tile (token, query head of a group), KV heads, G query heads of one, E head size, EB the power of two
from E on.
"""

import triton
import triton.language as tl

from .sums import pointer, tanh


@triton.jit
def _segment(
    q, slots_p, kv_p, start, last, position, e, scale, SOFTCAP: tl.constexpr, WINDOW: tl.constexpr, SLOT: tl.constexpr,
    PAGE: tl.constexpr, KV: tl.constexpr, E: tl.constexpr, BK: tl.constexpr, SEG: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Return maximum, sum and weighted values over keys start .. start + SEG - 1, and not beyond last.

    Keys beyond last repeat it, so that nothing is masked: no row sees them, and what is read was written.
    """
    top = tl.full([q.shape[0]], float("-inf"), tl.float32)
    total = tl.zeros([q.shape[0]], tl.float32)
    acc = tl.zeros([q.shape[0], q.shape[1]], tl.float32)
    for first in tl.range(start, tl.minimum(start + SEG, last + 1), BK, num_stages=STAGES):
        key = first + tl.arange(0, BK)
        near = tl.minimum(key, last)
        slot = tl.load(slots_p + near // PAGE).to(tl.int64)
        place = (slot * SLOT + (near % PAGE) * E)[:, None] + e[None, :]
        if q.shape[1] == E:
            k = tl.load(kv_p + place)  # as rows, and turned in shared memory: otherwise 80 registers more
            v = tl.load(kv_p + KV * PAGE * E + place)
        else:
            k = tl.load(kv_p + place, (e < E)[None, :], 0.0)
            v = tl.load(kv_p + KV * PAGE * E + place, (e < E)[None, :], 0.0)
        s = tl.dot(q, k.trans(), input_precision="ieee") * scale
        if SOFTCAP > 0:
            s = SOFTCAP * tanh(s / SOFTCAP)
        seen = key[None, :] <= position[:, None]
        if WINDOW > 0:
            seen = seen & (key[None, :] > position[:, None] - WINDOW)
        s = tl.where(seen, s, float("-inf"))
        peak = tl.maximum(top, tl.max(s, 1))
        base = tl.where(peak == float("-inf"), 0.0, peak)
        p = tl.exp(s - base[:, None])
        old = tl.exp(top - base)
        total = total * old + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * old[:, None], input_precision="ieee")
        top = peak
    return top, total, acc


@triton.jit
def _join(top, total, acc, top2, total2, acc2):
    """Return an earlier and a later segment as one. A segment without seen keys changes no bit."""
    peak = tl.maximum(top, top2)
    base = tl.where(peak == float("-inf"), 0.0, peak)
    one, two = tl.exp(top - base), tl.exp(top2 - base)
    return peak, total * one + total2 * two, acc * one[:, None] + acc2 * two[:, None]


@triton.jit
def _lowest(first, WINDOW: tl.constexpr, SEG: tl.constexpr):
    """Return the first position of the first segment that a tile sees."""
    if WINDOW > 0:
        return tl.maximum(first - WINDOW + 1, 0) // SEG * SEG
    else:
        return 0 * first


@triton.jit
def _finish(out, at, e, inside, total, acc, E: tl.constexpr, DT: tl.constexpr):
    result = acc / tl.where(total == 0, 1.0, total)[:, None]
    tl.store(pointer(out, DT) + at[:, None] + e[None, :], result.to(DT), inside[:, None] & (e < E)[None, :])


@triton.jit(
    do_not_specialize=["q", "out", "tiles", "slots", "arena", "parts", "layer", "row_stride", "layer_stride", "splits"]
)
def attend(
    q: tl.int64, out: tl.int64, tiles: tl.int64, slots: tl.int64, arena: tl.int64, parts: tl.int64, scale: tl.float32,
    layer: tl.int32, row_stride: tl.int64, layer_stride: tl.int64, splits: tl.int32, SOFTCAP: tl.constexpr,
    WINDOW: tl.constexpr, SLOT: tl.constexpr, PAGE: tl.constexpr, KV: tl.constexpr, G: tl.constexpr, E: tl.constexpr,
    EB: tl.constexpr, M: tl.constexpr, BK: tl.constexpr, SEG: tl.constexpr, STAGES: tl.constexpr, SPLIT: tl.constexpr,
    DT: tl.constexpr,
):  # fmt: skip
    """Attend with the tiles of a step. Grid (tiles, KV heads, splits or 1).

    With SPLIT, program z computes segment z and leaves a part: maxima [M], sums [M], values [M, EB]. Else it joins all
    segments and writes the result.
    """
    tile = tl.program_id(0)
    head = tl.program_id(1)
    z = tl.program_id(2)
    tile_p = pointer(tiles, tl.int32) + tile * 4
    row = tl.load(tile_p)
    first = tl.load(tile_p + 1)
    count = tl.load(tile_p + 2)
    token = tl.load(tile_p + 3)
    if row >= 0:
        slots_p = pointer(slots, tl.int32) + row.to(tl.int64) * row_stride + layer * layer_stride
        kv_p = pointer(arena, DT) + head * PAGE * E
        r, e = tl.arange(0, M), tl.arange(0, EB)
        inside = (r // G) < count
        near = tl.minimum(r // G, count - 1)
        position, last = first + near, first + count - 1
        at = (token + near).to(tl.int64) * (KV * G * E) + (head * G + r % G) * E
        if E == EB:
            queries = tl.load(pointer(q, DT) + at[:, None] + e[None, :])
        else:
            queries = tl.load(pointer(q, DT) + at[:, None] + e[None, :], (e < E)[None, :], 0.0)
        lowest = _lowest(first, WINDOW, SEG)
        if SPLIT:
            start = lowest + z * SEG
            if start <= last:
                top, total, acc = _segment(
                    queries, slots_p, kv_p, start, last, position, e, scale, SOFTCAP, WINDOW, SLOT, PAGE, KV, E, BK, SEG,
                    STAGES,
                )  # fmt: skip
                part_p = pointer(parts, tl.float32) + ((tile * KV + head) * splits + z).to(tl.int64) * (M * (EB + 2))
                tl.store(part_p + r, top)
                tl.store(part_p + M + r, total)
                tl.store(part_p + 2 * M + r[:, None] * EB + e[None, :], acc)
        else:
            top, total, acc = _segment(
                queries, slots_p, kv_p, lowest, last, position, e, scale, SOFTCAP, WINDOW, SLOT, PAGE, KV, E, BK, SEG, STAGES
            )
            for start in tl.range(lowest + SEG, last + 1, SEG, num_stages=1):
                top2, total2, acc2 = _segment(
                    queries, slots_p, kv_p, start, last, position, e, scale, SOFTCAP, WINDOW, SLOT, PAGE, KV, E, BK, SEG,
                    STAGES,
                )  # fmt: skip
                top, total, acc = _join(top, total, acc, top2, total2, acc2)
            _finish(out, at, e, inside, total, acc, E, DT)


@triton.jit(do_not_specialize=["parts", "out", "tiles", "splits"])
def join_parts(
    parts: tl.int64, out: tl.int64, tiles: tl.int64, splits: tl.int32, WINDOW: tl.constexpr, KV: tl.constexpr,
    G: tl.constexpr, E: tl.constexpr, EB: tl.constexpr, M: tl.constexpr, SEG: tl.constexpr, DT: tl.constexpr,
):  # fmt: skip
    """Join the parts that ``attend`` left, in ascending order, and write the result. Grid (tiles, KV heads)."""
    tile, head = tl.program_id(0), tl.program_id(1)
    tile_p = pointer(tiles, tl.int32) + tile * 4
    row = tl.load(tile_p)
    first = tl.load(tile_p + 1)
    count = tl.load(tile_p + 2)
    token = tl.load(tile_p + 3)
    if row >= 0:
        r, e = tl.arange(0, M), tl.arange(0, EB)
        part_p = pointer(parts, tl.float32) + (tile * KV + head).to(tl.int64) * splits * (M * (EB + 2))
        cell = 2 * M + r[:, None] * EB + e[None, :]
        top = tl.load(part_p + r)
        total = tl.load(part_p + M + r)
        acc = tl.load(part_p + cell)
        last = (first + count - 1 - _lowest(first, WINDOW, SEG)) // SEG
        for z in tl.range(1, last + 1, num_stages=1):
            p = part_p + z * (M * (EB + 2))
            top, total, acc = _join(top, total, acc, tl.load(p + r), tl.load(p + M + r), tl.load(p + cell))
        near = tl.minimum(r // G, count - 1)
        at = (token + near).to(tl.int64) * (KV * G * E) + (head * G + r % G) * E
        _finish(out, at, e, (r // G) < count, total, acc, E, DT)
