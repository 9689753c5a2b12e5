"""Copies between rows, pages and slots, and edits of tables: every byte, and no other."""

from __future__ import annotations

import random

import torch

from blockwright.policies.plan.sweep_plan import NO_SLOT, NOT_FINITE
from blockwright.tests.gpu.cuda.kernels.steps import EACH_TYPE, Worker, ops_of, poisoned, random_tensor

BATCH = [(2, 5, 4), (0, 0, 1)]


def same(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Whether the bytes are equal, those of NaN too."""
    return torch.equal(one.contiguous().view(torch.uint8), two.contiguous().view(torch.uint8))


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@EACH_TYPE
def test_gather_and_scatter(dtype: torch.dtype) -> None:
    ops, index = ops_of(dtype), ints(4, -1, 0, 2)
    source, out = random_tensor(random.Random(0), 5, 50, dtype=dtype), poisoned(4, 50, dtype=dtype)
    ops.gather(source.data_ptr(), index.data_ptr(), out.data_ptr(), 4, 50)
    expected = poisoned(4, 50, dtype=dtype)
    expected[[0, 2, 3]] = source[[4, 0, 2]]
    assert same(out, expected)
    back = poisoned(5, 50, dtype=dtype)
    ops.scatter(out.data_ptr(), index.data_ptr(), back.data_ptr(), 4, 50)
    expected = poisoned(5, 50, dtype=dtype)
    expected[[4, 0, 2]] = source[[4, 0, 2]]
    assert same(back, expected)


@EACH_TYPE
def test_pages_of_hidden_states(dtype: torch.dtype) -> None:
    """What was put is taken, except from pages without a slot and for padding."""
    draw = random.Random(2)
    worker, width = Worker(ops_of(dtype), draw, page=4), 24
    worker.slots[0, 1, 0] = NO_SLOT
    arena, memory = worker.arena(4 * width)
    step = worker.step(BATCH, padding=1)
    hidden = random_tensor(draw, step.tokens, width, dtype=dtype)
    worker.ops.put_hidden(step, hidden.data_ptr(), width, arena, 1)
    expected = poisoned(*memory.shape, dtype=dtype)
    for token, position in enumerate(range(5, 9)):
        place = position % 4 * width
        expected[int(worker.slots[2, 1, position // 4]), place : place + width] = hidden[token]
    assert same(memory, expected)
    out = poisoned(*hidden.shape, dtype=dtype)
    worker.ops.take_hidden(step, out.data_ptr(), width, arena, 1)
    assert same(out, torch.cat([hidden[:4], poisoned(2, width, dtype=dtype)]))


def test_slots() -> None:
    """Export, import and move, of slots that one program copies and that several copy."""
    ops, places = ops_of(torch.bfloat16), [ints(4, 1), ints(0, 5), ints(2), ints(3)]
    taken, put, source, target = (one.data_ptr() for one in places)
    for nbytes in (1024, 12 << 10):
        arena = random_tensor(random.Random(nbytes), 6, nbytes // 4)
        before, out = arena.clone(), poisoned(2, nbytes // 4)
        ops.copy_slots(arena.data_ptr(), taken, out.data_ptr(), 0, 2, nbytes)
        assert same(out, arena[[4, 1]])
        ops.copy_slots(out.data_ptr(), 0, arena.data_ptr(), put, 2, nbytes)
        assert same(arena, before[[4, 1, 2, 3, 4, 1]])
        ops.copy_slots(arena.data_ptr(), source, arena.data_ptr(), target, 1, nbytes)
        assert same(arena, before[[4, 1, 2, 2, 4, 1]])


def test_edits_and_drawn_tokens() -> None:
    worker = Worker(ops_of(torch.float32), random.Random(1))
    expected = worker.tokens.clone()
    index, value = torch.tensor([3, 130, 257]), ints(7, 8, 9)
    worker.ops.edit(worker.tokens.data_ptr(), index.data_ptr(), value.data_ptr(), 3)
    expected.view(-1)[index] = value
    assert torch.equal(worker.tokens, expected)
    drawn = ints(1, 9, 0, 1, 3, 0, 1, 1, 0, 4, 2, 1, -1, -1, -1, -1)
    token, standing = ints(40, NOT_FINITE, 42, 43), ints(0, 0, 0, 0)
    worker.ops.keep(worker.tokens.data_ptr(), 128, 4, drawn.data_ptr(), token.data_ptr(), standing.data_ptr())
    expected[1, 9], expected[0, 4] = 40, 42
    assert torch.equal(worker.tokens, expected)
    assert standing[:3].tolist() == [1, 1, 1]


def test_drafts_stand_up_to_the_first_that_differs() -> None:
    """Then the drawn token is written in its place; beyond the table nothing is."""
    worker = Worker(ops_of(torch.float32), random.Random(1))
    drafts = worker.tokens[2, 5:8].tolist()
    drawn = [*drafts, 49, drafts[0], drafts[1] + 1, 50, 51, *[60] * 70]
    worker.tokens[3, 50:119] = 60
    worker.tokens[0, 127] = 7
    table = worker.tokens.clone()
    rows = ints(2, 5, 0, 4, 1, 5, 4, 4, 3, 50, 8, 70, 0, 127, 3, 1, 1, 128, 3, 1)
    worker.tokens[1, 5:8] = table[1, 5:8] = torch.tensor(drafts)
    standing, token = ints(0, 0, 0, 0, 0), ints(*drawn)
    worker.ops.keep(worker.tokens.data_ptr(), 128, 5, rows.data_ptr(), token.data_ptr(), standing.data_ptr())
    assert standing.tolist() == [4, 2, 70, 1, 1]
    table[2, 8], table[1, 6] = 49, drafts[1] + 1
    table[3, 119], table[0, 127] = 60, 49
    assert torch.equal(worker.tokens, table)
