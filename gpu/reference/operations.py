"""Arithmetic of the torch reference, in transformers' order of operations: norms, rotary, feed-forward, caps.

Legend: T tokens, G tokens with one delta, D hidden width, H head size, I inner width, N heads, S columns of several
projections, R width of a bottleneck.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial

import torch
import torch.nn.functional as F

from ..model.config import EmbeddingConfig, MlpConfig, NormConfig, RopeConfig
from .deltas import Products


def _gelu_new(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def _gelu_fast(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x)))


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "gelu_new": _gelu_new,  # written out as in transformers, because each operation rounds
    "gelu_fast": _gelu_fast,
}


BOTTLENECKS = ACTIVATIONS | {"relu": F.relu}


def embedding_multiplier(config: EmbeddingConfig, dtype: torch.dtype) -> float:
    """Return the factor of an embedding as a model computes with it in that type."""
    return float(torch.tensor(config.multiplier).to(dtype)) if config.rounded else config.multiplier


def normalise(x_TD: torch.Tensor, weights: dict[str, torch.Tensor], role: str, norm: NormConfig) -> torch.Tensor:
    """Apply norm ``role``.

    RMS is computed in float32, and rounded to the model's type before it is scaled, or after if ``wide``.
    """
    weight_D = weights[role]
    if norm.kind == "layer":
        return F.layer_norm(x_TD, (x_TD.shape[-1],), weight_D, weights[f"{role}_bias"], norm.eps)
    wide_TD = x_TD.float()
    wide_TD = wide_TD * torch.rsqrt(wide_TD.pow(2).mean(-1, keepdim=True) + norm.eps)
    if norm.wide:
        return (wide_TD * (norm.offset + weight_D.float())).to(x_TD.dtype)
    return (norm.offset + weight_D) * wide_TD.to(x_TD.dtype)


def feed_forward(x_TD: torch.Tensor, product: Products, config: MlpConfig) -> torch.Tensor:
    """Return the feed-forward output, with biases if the weights have them."""
    activation = ACTIVATIONS[config.activation]
    if config.gated:
        gate_TI = activation(product("gate", x_TD))
        inner_TI = gate_TI * product("up", x_TD)
    else:
        inner_TI = activation(product("up", x_TD))
    return product("down", inner_TI)


def adapt(output_TD: torch.Tensor, residual_TD: torch.Tensor, product: Products) -> torch.Tensor:
    """Apply the bottlenecks of some rows to a component's output, in place."""
    for tokens, delta in product.changes:
        assert delta.spec.delta is not None
        if (bottleneck := delta.spec.delta.config.bottleneck) is not None:
            y_GD = output_TD[tokens]
            r_GD = residual_TD[tokens]
            weights = delta.weights
            x_GD = {"output": y_GD, "sum": y_GD + r_GD, "input": r_GD}[bottleneck.reads]
            low_GR = BOTTLENECKS[bottleneck.activation](F.linear(x_GD, weights["down"], weights["down_bias"]))
            output_TD[tokens] += F.linear(low_GR, weights["up"], weights["up_bias"]) * bottleneck.scale
    return output_TD


def soft_cap(x: torch.Tensor, cap: float) -> torch.Tensor:
    """Return ``cap * tanh(x / cap)``, rounded after each operation as in transformers; 0 means no cap."""
    return torch.tanh(x / cap) * cap if cap else x


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
