"""Attention of the torch reference over paged KV: writes a step's keys and values, then reads each row's pages.

Each query is computed for itself, so that its bits depend on its position alone. Only positions that a row may attend to
are read, so the rest of a page never matters.
Legend: T tokens of the step, N rows, S positions read, G query heads per KV head, K KV heads, H head size, C slots of the
arena, O tokens of a page, Q query heads.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F

from ...backend import Batch
from ...model.activations import soft_cap
from ...model.config import AttentionConfig, RopeConfig
from ...model.rotary import rotary_table
from ...tables import Tables
from .calls import aligned

TURNS = 64  # positions of a block of cosines and sines


class StepIndex:
    """Positions of a step's tokens, computed once per step and used by all of its components."""

    def __init__(self, batch: Batch, tables: Tables) -> None:
        self.row_N = batch.row_N
        self.start_N = batch.start_N
        self.count_N = batch.count_N
        self.tables = tables
        self.offset_N = np.cumsum(self.count_N) - self.count_N  # first token of each row in the step
        self.row_T = np.repeat(self.row_N, self.count_N)
        within_T = np.arange(self.row_T.size) - np.repeat(self.offset_N, self.count_N)
        self.position_T = np.repeat(self.start_N, self.count_N) + within_T
        self._rotary: dict[object, tuple[torch.Tensor, torch.Tensor]] = {}

    @property
    def token_T(self) -> torch.Tensor:
        return torch.from_numpy(self.tables.tokens[self.row_T, self.position_T].astype(np.int64))

    def rotary(self, config: AttentionConfig, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosine and sine of the step's positions. Components of equal rotary configuration share them."""
        key = (config.rope, config.head_dim)
        if key not in self._rotary:
            blocks, block_T = np.unique(self.position_T // TURNS, return_inverse=True)
            cosines, sines = zip(*(turns(*key, block, dtype) for block in blocks.tolist()), strict=True)
            place_T = torch.from_numpy(block_T * TURNS + self.position_T % TURNS)
            self._rotary[key] = torch.cat(cosines)[place_T], torch.cat(sines)[place_T]
        return self._rotary[key]


@lru_cache(maxsize=1024)
def turns(rope: RopeConfig, head_dim: int, block: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosine and sine of a block of positions, which is computed at once, whichever of them a step has."""
    return rotary_table(rope, head_dim, torch.arange(block * TURNS, (block + 1) * TURNS), dtype)


def attend(
    q_TNH: torch.Tensor,
    k_TKH: torch.Tensor,
    v_TKH: torch.Tensor,
    kv_C2OKH: torch.Tensor,
    layer: int,
    index: StepIndex,
    config: AttentionConfig,
) -> torch.Tensor:
    """Return the attention output [T, N * H] of rotated queries.

    ``k_TKH`` (rotated) and ``v_TKH`` are first written to their slots.
    """
    page = kv_C2OKH.shape[2]
    slot_T = torch.from_numpy(index.tables.slots[index.row_T, layer, index.position_T // page].astype(np.int64))
    within_T = torch.from_numpy(index.position_T % page)
    kv_C2OKH[slot_T, 0, within_T] = k_TKH
    kv_C2OKH[slot_T, 1, within_T] = v_TKH
    out_TNH = torch.empty_like(q_TNH)
    for n, first in enumerate(index.offset_N.tolist()):
        count = int(index.count_N[n])
        _attend_row(q_TNH[first : first + count], kv_C2OKH, layer, index, n, config, out_TNH[first : first + count])
    return out_TNH.flatten(1)


def _attend_row(
    q_TQH: torch.Tensor,
    kv_C2OKH: torch.Tensor,
    layer: int,
    index: StepIndex,
    n: int,
    config: AttentionConfig,
    out_TQH: torch.Tensor,
) -> None:
    """Attend with the queries of batch row ``n``, each by a call whose shapes follow from its position."""
    start, count = int(index.start_N[n]), len(q_TQH)
    kv_heads = kv_C2OKH.shape[3]
    low_T = np.maximum(np.arange(start, start + count) - (config.window or start + count) + 1, 0)
    first = int(low_T[0])
    k_SKH, v_SKH = _read(kv_C2OKH, layer, index, n, first)
    for t, low in enumerate((low_T - first).tolist()):
        span = slice(low, start + t + 1 - first)
        k_KSH, v_KSH = aligned(k_SKH[span]).transpose(0, 1), aligned(v_SKH[span]).transpose(0, 1)
        q_KGH = aligned(q_TQH[t]).view(kv_heads, -1, q_TQH.shape[2])
        out_TQH[t] = _weigh(q_KGH[None], k_KSH[None], v_KSH[None], config)[0].flatten(0, 1)


def _read(kv_C2OKH: torch.Tensor, layer: int, index: StepIndex, n: int, first: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys and values [S, K, H] of batch row ``n`` from position ``first`` to its last one."""
    page = kv_C2OKH.shape[2]
    position_S = np.arange(first, int(index.start_N[n]) + int(index.count_N[n]))
    slot_S = torch.from_numpy(index.tables.slots[index.row_N[n], layer, position_S // page].astype(np.int64))
    within_S = torch.from_numpy(position_S % page)
    return kv_C2OKH[slot_S, 0, within_S], kv_C2OKH[slot_S, 1, within_S]


def _weigh(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, config: AttentionConfig) -> torch.Tensor:
    """Return softmax-weighted values. Capped scores are computed step by step, as in transformers."""
    if not config.softcap:
        return F.scaled_dot_product_attention(q, k, v, scale=config.scale)
    scores = soft_cap(q @ k.transpose(-1, -2) * config.scale, config.softcap)
    return torch.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype) @ v
