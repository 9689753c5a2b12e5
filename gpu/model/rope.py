"""Rotary embeddings in config.json: the old spelling (rope_theta, rope_scaling) and the new one (rope_parameters).

Resolves precedence and defaults as transformers 5 does; refuses the kinds that no back end computes.
"""

from __future__ import annotations

from blockwright.gpu.errors import CheckpointError
from blockwright.gpu.model.config import RopeConfig
from blockwright.gpu.model.fields import Fields

DEFAULT_THETA = 10_000.0
KINDS = ("default", "linear", "llama3")


def read_rope(config: Fields, max_position: int) -> RopeConfig:
    """The rotary embedding of a model. Raises ``CheckpointError`` for kinds other than default, linear and llama3."""
    section = config.object("rope_scaling") or config.object("rope_parameters") or Fields(config.source, {})
    theta = section.number("rope_theta", config.number("rope_theta", DEFAULT_THETA))
    kind = section.text("rope_type") or section.text("type", "default")
    if any(isinstance(value, dict) for value in section.values.values()):
        raise CheckpointError(f"{section.source} differs by layer type, which is not supported; use another checkpoint")
    if kind not in KINDS:
        raise CheckpointError(
            f"{section.source}: rope type {kind!r} is not supported (there are: {', '.join(KINDS)}); use another checkpoint"
        )
    partial = section.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0))
    if partial != 1.0:
        raise CheckpointError(
            f"{config.source}: partial_rotary_factor is {partial}, only 1.0 is supported; use another checkpoint"
        )
    if theta <= 0:
        raise section.wrong("rope_theta", "a positive number")
    if kind == "default":
        return RopeConfig(theta=theta)
    factor = section.number("factor")
    if factor <= 0:
        raise section.wrong("factor", "a positive number")
    if kind == "linear":
        return RopeConfig(theta=theta, kind=kind, factor=factor)
    low, high = section.number("low_freq_factor"), section.number("high_freq_factor")
    if not 0 < low < high:
        raise CheckpointError(
            f"{section.source}: low_freq_factor {low} and high_freq_factor {high} must be positive and in this order; "
            "correct the file"
        )
    original = section.integer("original_max_position_embeddings", max_position)
    return RopeConfig(
        theta=theta,
        kind=kind,
        factor=factor,
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position=config.integer("original_max_position_embeddings", original),
    )
