"""Tokens drawn by the kernel are the ones that ``gpu/sampling`` chooses."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from blockwright.gpu.cpu.reference.backend import TorchBackend
from blockwright.gpu.sampling.noise import noise_key
from blockwright.gpu.sampling.sampler import choose
from blockwright.gpu.tables import Tables
from blockwright.policies.plan.sampling import SamplingParams
from blockwright.tests.gpu.cuda.kernels.steps import ops_of, random_tensor
from blockwright.tests.parts import parts

OPS = ops_of(torch.float32)


def chosen(logits_NV: torch.Tensor, params: list[SamplingParams], positions: list[int]) -> list[int]:
    """Return the host's choice."""
    tables = Tables(len(params), 8, 1, 8)
    tables.sampling = params
    return choose(logits_NV, range(len(params)), positions, tables, TorchBackend("float32").argmax)


def drawn(logits_NV: torch.Tensor, params: list[SamplingParams], positions: list[int]) -> list[int]:
    """Return the kernel's choice."""
    keys = [noise_key(p.seed, p.choice, position) for p, position in zip(params, positions, strict=True)]
    key = torch.from_numpy(np.asarray(keys, dtype=np.uint64).view(np.int64))
    heat = torch.tensor([p.temperature for p in params], dtype=torch.float64)
    token = torch.full((len(params),), -9, dtype=torch.int32)
    addresses: list[Any] = [one.data_ptr() for one in (key, heat, token)]
    OPS.draw(logits_NV.data_ptr(), *logits_NV.shape, *addresses)
    return [int(one) for one in token]


@pytest.mark.parametrize("seed", parts(40, 4))
def test_the_hosts_tokens(seed: int) -> None:
    draw = random.Random(seed)
    vocabulary, rows = draw.choice((1, 500, 1024, 3000)), 12
    logits_NV = random_tensor(draw, rows, vocabulary) * draw.choice((0.01, 3))
    logits_NV[3:6] = logits_NV[3:6].round()  # many equal ones
    params = [
        SamplingParams(
            temperature=draw.choice((0.0, 1e-6, 0.3, 1.0, 1.7)),
            seed=draw.getrandbits(64),
            choice=draw.randrange(3),
        )
        for _ in range(rows)
    ]
    positions = [draw.randrange(1, 8) for _ in range(rows)]
    assert drawn(logits_NV, params, positions) == chosen(logits_NV, params, positions)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_logits_give_no_token(temperature: float) -> None:
    """As on the host: NaN and infinity, and minus infinity for some or all."""
    inf, nan = float("inf"), float("nan")
    rows = [
        [1.0, nan, 2, 0],
        [inf, 1, inf, nan],
        [-inf, 3, -inf, 1],
        [nan] * 4,
        [-inf] * 4,
        [-3.4e38, 3.4e38, 0, 1],
        [3e38, inf, 0, 0],
    ]
    logits_NV = torch.tensor(rows)
    params = [SamplingParams(temperature=temperature, seed=seed) for seed in range(len(rows))]
    found, expected = (way(logits_NV, params, [1] * len(rows)) for way in (drawn, chosen))
    assert found == expected
