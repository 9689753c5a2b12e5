"""Steps for single operations of ``gpu.py``: tables, slots, tiles and sums on the card, whose addresses operations take.

Legend: R rows, M longest sequence, L layers, P pages, T tokens, K KV heads, E head size, S positions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from gpu_card import Card, in_order, poisoned

from blockwright.gpu.cuda.ops import DELTA_TILE, DeviceStep, Ops, Slots, Sum, Tiles, Weight
from blockwright.gpu.cuda.plan_columns import attention_tiles, delta_tiles
from blockwright.gpu.model.config import AttentionConfig, NormConfig, RopeConfig

LAYERS = 2
LAYER = 1  # the one that attentions of these steps have


def attention(
    heads: int, kv_heads: int, size: int, *, window: int | None = None, softcap: float = 0.0, hidden: int = 64
) -> AttentionConfig:
    return AttentionConfig(
        hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=size, norm=NormConfig(eps=1e-5), rope=RopeConfig(theta=1e4),
        scale=size**-0.5, window=window, softcap=softcap,
    )  # fmt: skip


class Bench:
    """Operations on a card, with tables of a few rows; what steps read is kept alive."""

    def __init__(self, card: Card, ops: Ops, *, rows: int = 4, length: int = 256, page: int = 16, seed: int = 0) -> None:
        self.card = card
        self.ops = ops
        self.dtype = ops.dtype
        self.page = page
        self.draw = np.random.default_rng(seed)
        pages = -(-length // page)
        slots = self.draw.permutation(rows * LAYERS * pages).astype(np.int32)
        self.slots_RLP = slots.reshape(rows, LAYERS, pages)
        self.tokens_RM = self.draw.integers(0, 50, (rows, length)).astype(np.int32)
        self._kept: list[torch.Tensor] = []
        self._slots, self._tokens = self.ints(self.slots_RLP), self.ints(self.tokens_RM)

    def keep(self, tensor: torch.Tensor) -> int:
        """Keep a tensor alive, and return its address."""
        self._kept.append(tensor)
        return tensor.data_ptr()

    def kept(self, place: int) -> torch.Tensor:
        """Return what was kept at this place of the list."""
        return self._kept[place]

    def ints(self, array: np.ndarray) -> int:
        """Return the address of integers on the card."""
        return self.keep(torch.from_numpy(np.ascontiguousarray(array)).to(self.card.device))

    def random(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return numbers that no earlier case had, in the model's type."""
        values = torch.from_numpy(self.draw.standard_normal(shape, dtype=np.float32))
        return values.to(dtype or self.dtype).to(self.card.device)

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return poisoned memory for a result."""
        made = poisoned(self.card, *shape, dtype=dtype or self.dtype)
        self._kept.append(made)
        return made

    def step(
        self, batch: Sequence[tuple[int, int, int]], config: AttentionConfig | None = None, numbers: Sequence[int] = ()
    ) -> DeviceStep:
        """Return the step of a batch (row, start, count); ``numbers`` are its rows' deltas."""
        row_N, start_N, count_N = (np.asarray(column, dtype=np.int32) for column in zip(*batch, strict=True))
        row_T = np.repeat(row_N, count_N)
        within_T = np.arange(len(row_T)) - np.repeat(np.cumsum(count_N) - count_N, count_N)
        position_T = (np.repeat(start_N, count_N) + within_T).astype(np.int32)
        tiles: dict[int, Tiles] = {}
        if config is not None:
            group = config.heads // config.kv_heads
            made = attention_tiles(row_N, start_N, count_N, self.ops.tile_rows // group)
            tiles[group] = Tiles(self.ints(made), len(made))
        number = changed = changes = 0
        if numbers:
            number_N = np.asarray(numbers, dtype=np.int32)
            found = delta_tiles(number_N, count_N, DELTA_TILE)
            number = self.ints(np.repeat(number_N, count_N))
            changed = self.ints(found)
            changes = len(found)
        return DeviceStep(
            tokens=len(row_T),
            row_T=self.ints(row_T),
            position_T=self.ints(position_T),
            table=self._tokens,
            table_stride=self.tokens_RM.shape[1],
            slots=self._slots,
            row_stride=LAYERS * self.slots_RLP.shape[2],
            layer_stride=self.slots_RLP.shape[2],
            longest=int((start_N + count_N).max()),
            tiles=tiles,
            number_T=number,
            changed=changed,
            changes=changes,
        )

    def arena(self, config: AttentionConfig) -> tuple[Slots, torch.Tensor]:
        """Return an arena with a slot for each page of the tables, and its elements [slots, 2, K, page, E]."""
        shape = (2, config.kv_heads, self.page, config.head_dim)
        memory = self.empty(self.slots_RLP.size, *shape)
        return Slots(memory.data_ptr(), memory[0].nbytes, self.page), memory

    def write_kv(self, memory: torch.Tensor, row: int, kv_S2KE: torch.Tensor) -> None:
        """Write keys and values of a row's first positions to its slots of ``LAYER``."""
        for position, kv_2KE in enumerate(kv_S2KE):
            memory[int(self.slots_RLP[row, LAYER, position // self.page]), :, :, position % self.page] = kv_2KE

    def weight(self, *parts: torch.Tensor) -> Weight:
        return Weight(tuple((self.keep(part), len(part)) for part in parts), parts[0].shape[1])

    def product(self, x_TW: torch.Tensor, *parts: torch.Tensor) -> torch.Tensor:
        """Return a product's sums, float32 [T, Q], added in the order of their readers."""
        weight = self.weight(*parts)
        tokens = len(x_TW)
        out = self.empty(self.ops.product_bytes(tokens, weight.width, weight.outputs) // 4, dtype=torch.float32)
        found: Sum = in_order(self.card, lambda: self.ops.product(self.keep(x_TW), weight, out.data_ptr(), tokens))
        total_TQ = torch.zeros(tokens, weight.outputs, device=self.card.device)
        for part_TQ in out[: found.parts * total_TQ.numel()].view(found.parts, *total_TQ.shape):
            total_TQ += part_TQ
        return total_TQ

    def sum(self, parts_ZTQ: torch.Tensor, delta: int = 0) -> Sum:
        """Return a sum with these parts."""
        return Sum(self.keep(parts_ZTQ), parts_ZTQ.shape[0], parts_ZTQ.shape[2], (), delta)

    def attend(
        self, batch: Sequence[tuple[int, int, int]], q_TQ: torch.Tensor, config: AttentionConfig, kv: Slots
    ) -> torch.Tensor:
        """Return the attention of a batch's queries."""
        step = self.step(batch, config)
        (tiles,) = step.tiles.values()
        out = self.empty(*q_TQ.shape)
        scratch = self.empty(max(1, self.ops.attend_bytes(tiles.count, step.longest, config) // 4), dtype=torch.float32)
        q = self.keep(q_TQ)
        in_order(self.card, lambda: self.ops.attend(step, q, config, kv, LAYER, out.data_ptr(), scratch.data_ptr()))
        return out
