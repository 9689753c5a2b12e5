"""Steps of the kernels' tests: tables, slots and batches on a CPU, whose addresses operations take.

Legend: R rows, M longest sequence, L layers, P pages, T tokens.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from blockwright.gpu.cuda.ops import DELTA_TILE, DeviceStep, Slots, Sum, Tiles, Weight
from blockwright.gpu.cuda.ops_triton import TritonOps
from blockwright.gpu.cuda.plan_columns import attention_tiles, delta_tiles
from blockwright.gpu.cuda.tiles import SMALL
from blockwright.gpu.model.config import AttentionConfig, NormConfig, RopeConfig

DTYPES = (torch.float32, torch.bfloat16)
EACH_TYPE = pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 4e-3}  # of the norm of an error, relative
POISON = float("nan")
LAYERS = 2

_OPS: dict[torch.dtype, TritonOps] = {}
Batch = Sequence[tuple[int, int, int]]  # row, start, count


def ops_of(dtype: torch.dtype) -> TritonOps:
    """Return operations with small tiles, one instance of each type."""
    if dtype not in _OPS:
        _OPS[dtype] = TritonOps(dtype, SMALL)
    return _OPS[dtype]


def random_tensor(draw: random.Random, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(draw.getrandbits(40))).to(dtype)


def poisoned(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full(shape, POISON, dtype=dtype)


def assert_near(found: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype, times: float = 1.0) -> None:
    assert found.shape == exact.shape
    error = (found.double() - exact.double()).norm() / exact.double().norm().clamp(min=1e-30)
    assert float(error) < TOLERANCE[dtype] * times, f"an error of {float(error):.1e}"


def random_attention(
    draw: random.Random, *, size: int = 0, window: int | None = None, softcap: float = 0.0
) -> AttentionConfig:
    kv_heads, group = draw.choice(((1, 1), (1, 5), (2, 2), (2, 3), (1, 8)))
    return AttentionConfig(
        hidden=8,
        heads=kv_heads * group,
        kv_heads=kv_heads,
        head_dim=size or draw.choice((6, 16, 20, 32)),
        norm=NormConfig(eps=1e-5),
        rope=RopeConfig(theta=1e4),
        scale=draw.uniform(0.1, 0.5),
        window=window,
        softcap=softcap,
    )


class Worker:
    """Tables and an arena of KV, with what steps read kept alive. Unwritten memory is NaN."""

    def __init__(self, ops: TritonOps, draw: random.Random, *, rows: int = 4, length: int = 128, page: int = 8) -> None:
        self.ops = ops
        self.dtype = ops.dtype
        self.draw = draw
        self.page, pages = page, -(-length // page)
        order = list(range(rows * LAYERS * pages))
        draw.shuffle(order)
        self.slots = torch.tensor(order, dtype=torch.int32).view(rows, LAYERS, pages)
        self.tokens = torch.tensor([[draw.randrange(50) for _ in range(length)] for _ in range(rows)], dtype=torch.int32)
        self._kept: list[torch.Tensor] = []

    def keep(self, tensor: torch.Tensor) -> int:
        """Keep a tensor alive, and return its address."""
        self._kept.append(tensor)
        return tensor.data_ptr()

    def arena(self, elements: int) -> tuple[Slots, torch.Tensor]:
        """Return an arena with a slot for each page of the tables, and its elements [slots, elements and padding]."""
        padded = -(-elements // 16) * 16 + 16
        memory = poisoned(self.slots.numel(), padded, dtype=self.dtype)
        return Slots(self.keep(memory), padded * self.dtype.itemsize, self.page), memory

    def step(
        self, batch: Batch, config: AttentionConfig | None = None, numbers: Sequence[int] = (), padding: int = 0
    ) -> DeviceStep:
        """Return the step of a batch; ``numbers`` are its rows' deltas."""
        row_N, start_N, count_N = (np.asarray(column, dtype=np.int32) for column in zip(*batch, strict=True))
        row_T = np.repeat(row_N, count_N)
        within_T = np.arange(len(row_T)) - np.repeat(np.cumsum(count_N) - count_N, count_N)
        position_T = (np.repeat(start_N, count_N) + within_T).astype(np.int32)
        row_T = np.concatenate([row_T, np.full(padding, -1, dtype=np.int32)])
        position_T = np.concatenate([position_T, np.zeros(padding, dtype=np.int32)])
        tiles = {}
        if config is not None:
            group = config.heads // config.kv_heads
            made = attention_tiles(row_N, start_N, count_N, self.ops.tile_rows // group)
            if padding:
                made = np.concatenate([made, np.full((1, 4), -1, dtype=np.int32)])
            tiles[group] = Tiles(self.keep(torch.from_numpy(made)), len(made))
        number = 0
        changed = 0
        changes = 0
        if numbers:
            number_N = np.asarray(numbers, dtype=np.int32)
            number_T = np.concatenate([np.repeat(number_N, count_N), np.zeros(padding, dtype=np.int32)])
            found = delta_tiles(number_N, count_N, DELTA_TILE)
            number, changed = self.keep(torch.from_numpy(number_T)), self.keep(torch.from_numpy(found))
            changes = len(found)
        return DeviceStep(
            tokens=len(row_T),
            row_T=self.keep(torch.from_numpy(row_T)),
            position_T=self.keep(torch.from_numpy(position_T)),
            table=self.tokens.data_ptr(),
            table_stride=self.tokens.shape[1],
            slots=self.slots.data_ptr(),
            row_stride=self.slots.stride(0),
            layer_stride=self.slots.stride(1),
            longest=int((start_N + count_N).max()),
            tiles=tiles,
            number_T=number,
            changed=changed,
            changes=changes,
        )

    def weight(self, *parts: torch.Tensor) -> Weight:
        return Weight(tuple((self.keep(part), len(part)) for part in parts), parts[0].shape[1])

    def sum(self, parts_ZTQ: torch.Tensor, *biases: torch.Tensor, delta: torch.Tensor | None = None) -> Sum:
        """Return a sum with these parts."""
        where = tuple((self.keep(bias), len(bias)) for bias in biases)
        return Sum(self.keep(parts_ZTQ), *parts_ZTQ.shape[::2], where, self.keep(delta) if delta is not None else 0)

    def product(self, x_TW: torch.Tensor, *parts: torch.Tensor) -> torch.Tensor:
        """Return the sums of a product, float32 [T, Q], added as their reader adds them."""
        weight = self.weight(*parts)
        out = poisoned(self.ops.product_bytes(len(x_TW), weight.width, weight.outputs) // 4)
        found = self.ops.product(self.keep(x_TW), weight, self.keep(out), len(x_TW))
        total = torch.zeros(len(x_TW), weight.outputs)
        for part_TQ in out[: found.parts * total.numel()].view(found.parts, *total.shape):
            total += part_TQ
        return total
