"""Copies on the device: rows of hidden states, pages of hidden states, whole slots, edits of tables, drawn tokens.

Legend: T tokens, W width, CB columns of a block, P tokens of a page.
"""

import triton
import triton.language as tl

from .sums import pointer, tokens

NO_SLOT, NOT_FINITE = tl.constexpr(-1), tl.constexpr(-2)


@triton.jit(do_not_specialize=["source", "index", "out", "rows"])
def copy_rows(
    source: tl.int64, index: tl.int64, out: tl.int64, rows: tl.int32, W: tl.constexpr, CB: tl.constexpr, TB: tl.constexpr,
    SCATTER: tl.constexpr, DT: tl.constexpr,
):  # fmt: skip
    """Copy rows from or, with SCATTER, to the places of an index, where -1 is none. Grid (tiles of rows, blocks of W)."""
    t, there = tokens(rows, TB)
    c = tl.program_id(1) * CB + tl.arange(0, CB)
    at = tl.load(pointer(index, tl.int32) + t)
    m = (there & (at >= 0))[:, None] & (c < W)[None, :]
    far = tl.maximum(at, 0).to(tl.int64)[:, None] * W + c[None, :]
    near = t.to(tl.int64)[:, None] * W + c[None, :]
    if SCATTER:
        tl.store(pointer(out, DT) + far, tl.load(pointer(source, DT) + near, m, 0.0), m)
    else:
        tl.store(pointer(out, DT) + near, tl.load(pointer(source, DT) + far, m, 0.0), m)


@triton.jit(do_not_specialize=["hidden", "row", "position", "slots", "arena", "layer", "row_stride", "layer_stride", "T"])
def copy_hidden(
    hidden: tl.int64, row: tl.int64, position: tl.int64, slots: tl.int64, arena: tl.int64, layer: tl.int32,
    row_stride: tl.int64, layer_stride: tl.int64, T: tl.int32, W: tl.constexpr, CB: tl.constexpr, TB: tl.constexpr,
    SLOT: tl.constexpr, PAGE: tl.constexpr, PUT: tl.constexpr, DT: tl.constexpr,
):  # fmt: skip
    """Write hidden states to the slots of their pages, or read them. Grid (tiles of T, blocks of W)."""
    t, there = tokens(T, TB)
    c = tl.program_id(1) * CB + tl.arange(0, CB)
    r, place = tl.load(pointer(row, tl.int32) + t), tl.load(pointer(position, tl.int32) + t)
    there = there & (r >= 0)
    page_p = pointer(slots, tl.int32) + tl.maximum(r, 0).to(tl.int64) * row_stride + layer * layer_stride + place // PAGE
    slot = tl.load(page_p, there, NO_SLOT)
    m = (there & (slot != NO_SLOT))[:, None] & (c < W)[None, :]
    kept = pointer(arena, DT) + (slot.to(tl.int64) * SLOT + (place % PAGE) * W)[:, None] + c[None, :]
    mine = pointer(hidden, DT) + t.to(tl.int64)[:, None] * W + c[None, :]
    if PUT:
        tl.store(kept, tl.load(mine, m, 0.0), m)
    else:
        tl.store(mine, tl.load(kept, m, 0.0), m)


@triton.jit(do_not_specialize=["source", "source_slots", "target", "target_slots"])
def copy_slots(
    source: tl.int64, source_slots: tl.int64, target: tl.int64, target_slots: tl.int64, WORDS: tl.constexpr,
    CB: tl.constexpr, FROM: tl.constexpr, TO: tl.constexpr,
):  # fmt: skip
    """Copy whole slots of WORDS int32. Grid (slots, blocks of words).

    Without FROM or TO, the slots of that side are 0, 1, ...
    """
    i = tl.program_id(0)
    c = tl.program_id(1) * CB + tl.arange(0, CB)
    one, two = i.to(tl.int64), i.to(tl.int64)
    if FROM:
        one = tl.load(pointer(source_slots, tl.int32) + i).to(tl.int64)
    if TO:
        two = tl.load(pointer(target_slots, tl.int32) + i).to(tl.int64)
    x = tl.load(pointer(source, tl.int32) + one * WORDS + c, c < WORDS)
    tl.store(pointer(target, tl.int32) + two * WORDS + c, x, c < WORDS)


@triton.jit(do_not_specialize=["target", "index", "value", "count"])
def edit(target: tl.int64, index: tl.int64, value: tl.int64, count: tl.int32, CB: tl.constexpr):
    """Write values to elements of a table. Grid (blocks of edits,)."""
    i = tl.program_id(0) * CB + tl.arange(0, CB)
    m = i < count
    at = tl.load(pointer(index, tl.int64) + i, m, 0)
    tl.store(pointer(target, tl.int32) + at, tl.load(pointer(value, tl.int32) + i, m, 0), m)


@triton.jit(do_not_specialize=["table", "table_stride", "drawn", "token", "standing"])
def keep(
    table: tl.int64, table_stride: tl.int64, drawn: tl.int64, token: tl.int64, standing: tl.int64, CB: tl.constexpr
):  # fmt: skip
    """Write the last token that counts of each row's drawn ones to the table, and how many count. Grid (N,).

    A row's tokens count up to the first that is not the draft at its place in the table.
    """
    n = tl.program_id(0).to(tl.int64)
    row = tl.load(pointer(drawn, tl.int32) + n * 4)
    position = tl.load(pointer(drawn, tl.int32) + n * 4 + 1)
    place = tl.load(pointer(drawn, tl.int32) + n * 4 + 2)
    count = tl.load(pointer(drawn, tl.int32) + n * 4 + 3)
    table_p = pointer(table, tl.int32) + tl.maximum(row, 0).to(tl.int64) * table_stride + position
    token_p = pointer(token, tl.int32) + place
    counting = count
    for first in tl.range(0, count - 1, CB):
        i = first + tl.arange(0, CB)
        m = (i < count - 1) & (row >= 0)
        differs = m & (tl.load(token_p + i, m, 0) != tl.load(table_p + i, m, 0))
        counting = tl.minimum(counting, tl.min(tl.where(differs, i, count), 0) + 1)
    tl.store(pointer(standing, tl.int32) + n, counting)
    last = tl.load(token_p + counting - 1, row >= 0, 0)
    inside = (row >= 0) & (position + counting - 1 < table_stride) & (last != NOT_FINITE)
    tl.store(table_p + counting - 1, last, inside)
