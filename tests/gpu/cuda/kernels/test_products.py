"""Products: right, and bitwise the same alone, in any batch, split or whole."""

from __future__ import annotations

import random

import pytest
import torch

from blockwright.tests.gpu.cuda.kernels.steps import EACH_TYPE, Worker, assert_near, ops_of, random_tensor
from blockwright.tests.parts import parts


@EACH_TYPE
@pytest.mark.parametrize("seed", parts(150, 30))
def test_each_row_is_right_and_has_its_own_bits(dtype: torch.dtype, seed: int) -> None:
    """One to three weights, odd widths and heights; some rows again alone, as few and as many rows, whose tiles differ."""
    draw = random.Random(seed)
    tokens, width = draw.choice((1, 2, 15, 17, 33)), draw.choice((1, 40, 64, 100, 128, 200))
    worker = Worker(ops_of(dtype), draw)
    weights = [random_tensor(draw, draw.randint(1, 60), width, dtype=dtype) for _ in range(draw.randint(1, 3))]
    x_TW = random_tensor(draw, tokens, width, dtype=dtype)
    whole_TQ = worker.product(x_TW, *weights)
    assert_near(whole_TQ, x_TW.double() @ torch.cat(weights).double().T, torch.float32)
    row = draw.randrange(tokens)
    assert torch.equal(worker.product(x_TW[row : row + 1].clone(), *weights)[0], whole_TQ[row])
    if tokens <= 16:
        more = torch.cat([random_tensor(draw, 16, width, dtype=dtype), x_TW])
        assert torch.equal(worker.product(more, *weights)[16:], whole_TQ)
