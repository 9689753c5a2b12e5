"""Rotary position embeddings: frequencies, tables of cosines and sines, and the rotation of queries and keys.

Legend: T tokens, H half of the rotated elements of a head, N heads.
"""

from __future__ import annotations

import math
from functools import cache

import torch

from .config import RopeConfig


@cache
def inverse_frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """Return float32 [half of the rotated elements]."""
    dim = rope.dim or head_dim
    exponent_H = torch.arange(0, dim, 2, dtype=torch.int64).float() / dim
    if rope.kind == "longrope":
        return 1.0 / (torch.tensor(rope.short_factors) * rope.theta**exponent_H)
    frequency_H = 1.0 / (rope.theta**exponent_H)
    if rope.kind == "linear":
        return frequency_H / rope.factor
    if rope.kind == "default":
        return frequency_H
    low_wave = rope.original_max_position / rope.low_freq_factor
    high_wave = rope.original_max_position / rope.high_freq_factor
    wave_H = 2 * math.pi / frequency_H
    scaled_H = torch.where(wave_H > low_wave, frequency_H / rope.factor, frequency_H)
    smooth_H = (rope.original_max_position / wave_H - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    between_H = (1 - smooth_H) * scaled_H / rope.factor + smooth_H * scaled_H
    medium_H = ~(wave_H < high_wave) & ~(wave_H > low_wave)
    return torch.where(medium_H, between_H, scaled_H)


def rotary_table(
    rope: RopeConfig, head_dim: int, position_T: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosine and sine [T, half of the rotated elements].

    They are computed in float32, then rounded to the model's type unless ``wide``.
    """
    angle_TH = position_T[:, None].float() * inverse_frequencies(rope, head_dim)
    kept = torch.float32 if rope.wide else dtype
    return (angle_TH.cos() * rope.attention_factor).to(kept), (angle_TH.sin() * rope.attention_factor).to(kept)


def rotate(x_TNH: torch.Tensor, table: tuple[torch.Tensor, torch.Tensor], rope: RopeConfig) -> torch.Tensor:
    """Apply the rotary embedding to queries or keys.

    Only the leading elements are rotated. Pairs are neighbors, or the two halves of these elements.
    """
    cos_T1H, sin_T1H = (one_TH[:, None] for one_TH in table)
    dim = 2 * cos_T1H.shape[-1]
    turning_TNH = x_TNH[..., :dim]
    if rope.interleaved:
        first, second = turning_TNH[..., 0::2], turning_TNH[..., 1::2]
    else:
        first, second = turning_TNH[..., : dim // 2], turning_TNH[..., dim // 2 :]
    pair = (first * cos_T1H - second * sin_T1H, second * cos_T1H + first * sin_T1H)
    turned_TNH = torch.stack(pair, dim=-1).flatten(-2) if rope.interleaved else torch.cat(pair, dim=-1)
    return torch.cat((turned_TNH.to(x_TNH.dtype), x_TNH[..., dim:]), dim=-1)
