"""The arithmetic of the torch reference, in the order of operations of transformers' Llama: norm, rotary, feed-forward.

Legend: T tokens, D hidden width, H head size, I inner width, N heads.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from blockwright.gpu.model.config import RopeConfig


def rms_norm(x_TD: torch.Tensor, weight_D: torch.Tensor, eps: float) -> torch.Tensor:
    """Normalised in float32, rounded to the model's type, then scaled."""
    wide_TD = x_TD.float()
    wide_TD = wide_TD * torch.rsqrt(wide_TD.pow(2).mean(-1, keepdim=True) + eps)
    return weight_D * wide_TD.to(x_TD.dtype)


def feed_forward(x_TD: torch.Tensor, weights: dict[str, torch.Tensor]) -> torch.Tensor:
    """SiLU-gated feed-forward; biases where ``weights`` has them."""
    gate_TI = F.silu(F.linear(x_TD, weights["gate"], weights.get("gate_bias")))
    up_TI = F.linear(x_TD, weights["up"], weights.get("up_bias"))
    return F.linear(gate_TI * up_TI, weights["down"], weights.get("down_bias"))


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """float32 [head_dim / 2]."""
    exponent_H = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
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
    frequency_H: torch.Tensor, position_T: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine [T, 1, head_dim], computed in float32."""
    angle_TH = position_T[:, None].float() * frequency_H
    angle_TH = torch.cat((angle_TH, angle_TH), dim=-1)
    return angle_TH.cos().to(dtype)[:, None], angle_TH.sin().to(dtype)[:, None]


def rotate(x_TNH: torch.Tensor, table: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotary embedding of queries or keys; the two halves of a head are the pairs."""
    cos_T1H, sin_T1H = table
    half = x_TNH.shape[-1] // 2
    turned_TNH = torch.cat((-x_TNH[..., half:], x_TNH[..., :half]), dim=-1)
    return x_TNH * cos_T1H + turned_TNH * sin_T1H
