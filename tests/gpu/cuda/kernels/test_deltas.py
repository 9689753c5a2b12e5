"""Deltas of several tenants in one step against float64, and each row's bits alone and in a batch.

Legend: T tokens, W width of a product, Q its outputs, R ranks.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch

from blockwright.gpu.cuda.ops import ACTIVATIONS, FIELDS, RANK_UNIT, READS, DeviceStep, Terms
from blockwright.gpu.model.activations import BOTTLENECKS
from blockwright.tests.gpu.cuda.kernels.steps import EACH_TYPE, Worker, assert_near, ops_of, poisoned, random_tensor
from blockwright.tests.parts import parts

ROLES = (30, 17, 9)  # outputs of each role
NUMBERS = 4
BATCH = [(0, 0, 19), (1, 4, 1), (2, 0, 2), (3, 7, 1)]


@dataclass(frozen=True, slots=True)
class Term:
    """What one number adds to one role; any part may be missing."""

    a: torch.Tensor | None
    b: torch.Tensor | None
    scale: float
    shift: torch.Tensor | None
    low_bias: torch.Tensor | None
    activation: str


def random_term(draw: random.Random, width: int, rows: int, dtype: torch.dtype) -> Term:
    rank = draw.choice((0, 4, 16, 20))
    return Term(
        random_tensor(draw, rank, width, dtype=dtype) / width**0.5 if rank else None,
        random_tensor(draw, rows, rank, dtype=dtype) if rank else None,
        draw.uniform(0.1, 2),
        random_tensor(draw, rows) if draw.random() < 0.5 else None,
        random_tensor(draw, rank) if rank and draw.random() < 0.5 else None,
        draw.choice(["", "", *BOTTLENECKS]) if rank else "",
    )


def padded(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    shape = list(tensor.shape)
    shape[dim] = -shape[dim] % RANK_UNIT
    return torch.cat([tensor, torch.zeros(shape, dtype=tensor.dtype)], dim)


def terms_of(worker: Worker, terms: Sequence[Sequence[Term]]) -> Terms:
    """Return the records of all numbers, where the terms of a number have columns one behind the other."""
    record = torch.zeros(len(terms), len(ROLES), FIELDS, dtype=torch.int64)
    most = 0
    for number, inside in enumerate(terms):
        column = 0
        for role, term in enumerate(inside):
            rank = 0
            addresses = [0, 0, 0, 0]
            if term.a is not None and term.b is not None:
                rank = -(-len(term.a) // RANK_UNIT) * RANK_UNIT
                addresses[:2] = [worker.keep(padded(term.a, 0)), worker.keep(padded(term.b, 1))]
                if term.low_bias is not None:
                    addresses[3] = worker.keep(padded(term.low_bias, 0))
            if term.shift is not None:
                addresses[2] = worker.keep(term.shift)
            (scale,) = struct.unpack("q", struct.pack("d", term.scale))
            first, code = sum(ROLES[:role]), ACTIVATIONS[term.activation]
            a, b, shift, low_bias = addresses
            record[number, role] = torch.tensor([a, b, rank, column, scale, shift, first, ROLES[role], low_bias, code])
            column += rank
        most = max(most, column)
    return Terms(worker.keep(record), len(ROLES), max(most, RANK_UNIT), max(ROLES))


def applied(term: Term, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
    found = None
    if term.a is not None and term.b is not None:
        low = x.double() @ term.a.double().T
        if term.low_bias is not None:
            low = low + term.low_bias.double()
        if term.activation:
            low = BOTTLENECKS[term.activation](low)
        found = low.to(dtype).double() @ term.b.double().T * term.scale
    if term.shift is not None:
        found = (0.0 if found is None else found) + term.shift.double().expand(len(x), -1)
    return found


@EACH_TYPE
@pytest.mark.parametrize("seed", parts(40, 8))
def test_each_row_gets_what_its_number_adds(dtype: torch.dtype, seed: int) -> None:
    draw = random.Random(seed)
    worker = Worker(ops_of(dtype), draw)
    width = draw.choice((24, 64, 150))
    outputs = sum(ROLES)
    terms = [[random_term(draw, width, rows, dtype) for rows in ROLES] for _ in range(NUMBERS)]
    records = terms_of(worker, terms)
    numbers = [draw.randrange(NUMBERS) for _ in BATCH]
    number_T = [n for n, (_, _, count) in zip(numbers, BATCH, strict=True) for _ in range(count)]
    x_TW = random_tensor(draw, len(number_T), width, dtype=dtype)

    def run(tokens: slice, step: DeviceStep) -> torch.Tensor:
        x = x_TW[tokens].clone()
        low, delta = poisoned(len(x), records.columns, dtype=dtype), poisoned(len(x), outputs)
        worker.ops.shrink(step, worker.keep(x), width, records, worker.keep(low))
        worker.ops.expand(step, low.data_ptr(), records, outputs, worker.keep(delta))
        return delta

    delta_TQ = run(slice(None), worker.step(BATCH, numbers=numbers))
    for token, number in enumerate(number_T):
        for role, found in enumerate(delta_TQ[token : token + 1].split(ROLES, 1)):
            if number == 0:
                assert found.isnan().all()
            elif (exact := applied(terms[number][role], x_TW[token : token + 1], dtype)) is None:
                assert torch.equal(found.view(torch.int32), torch.full_like(found, -0.0).view(torch.int32))
            else:
                assert_near(found, exact, dtype, 2)
    token = draw.randrange(len(number_T))
    place = [(row, start + i, 1) for row, start, count in BATCH for i in range(count)][token]
    one = run(slice(token, token + 1), worker.step([place], numbers=[number_T[token]]))
    assert torch.equal(one[0].view(torch.int32), delta_TQ[token].view(torch.int32))


@EACH_TYPE
def test_adapt(dtype: torch.dtype) -> None:
    """A bottleneck reads the output, the sum or the input, and rows without one are not written."""
    draw = random.Random(1)
    worker, width = Worker(ops_of(dtype), draw), 70
    step = worker.step(BATCH, numbers=[1, 0, 2, 3])
    sums, hidden, bias = (random_tensor(draw, *shape) for shape in ((2, step.tokens, width), (step.tokens, width), (width,)))
    hidden, bias = hidden.to(dtype), bias.to(dtype)
    x, wide = poisoned(step.tokens, width, dtype=dtype), poisoned(step.tokens, width)
    reads = torch.tensor([0, READS["sum"], READS["input"], READS["output"]], dtype=torch.int32)
    worker.ops.adapt(
        step, worker.sum(sums, bias), worker.keep(hidden), worker.keep(reads), worker.keep(x), worker.keep(wide)
    )
    y = sums.double().sum(0) + bias.double()
    assert_near(wide, y, torch.float32)
    assert_near(x[:19], y[:19] + hidden[:19].double(), dtype)
    assert x[19].isnan().all()
    assert torch.equal(x[20:22], hidden[20:22])
    assert_near(x[22], y[22], dtype)
