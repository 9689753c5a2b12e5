"""Arithmetic of the torch reference, in transformers' order of operations: norms, feed-forward, bottlenecks.

Legend: T tokens, G tokens with one delta, D hidden width, H head size, I inner width, N heads, S columns of several
projections, R width of a bottleneck.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ...model.activations import ACTIVATIONS, BOTTLENECKS
from ...model.config import MlpConfig, NormConfig
from .deltas import Products


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
    activation, each = ACTIVATIONS[config.activation], product.calls.each
    if config.gated:
        gate_TI = each(activation, product("gate", x_TD))
        inner_TI = gate_TI * product("up", x_TD)
    else:
        inner_TI = each(activation, product("up", x_TD))
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
            calls = product.calls
            low_GR = calls.linear(x_GD, weights["down"], weights["down_bias"])
            low_GR = calls.each(BOTTLENECKS[bottleneck.activation], low_GR)
            output_TD[tokens] += calls.linear(low_GR, weights["up"], weights["up_bias"]) * bottleneck.scale
    return output_TD
