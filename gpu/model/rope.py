"""Rotary embeddings in config.json: the old spelling (rope_theta, rope_scaling) and the new one (rope_parameters).

Resolves precedence and defaults as transformers 5 does; refuses kinds that no back end computes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..errors import CheckpointError
from .config import RopeConfig
from .fields import Fields, shown

DEFAULT_THETA = 10_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeRules:
    """The differences between configuration classes of transformers in how they read rotary embeddings."""

    kinds: tuple[str, ...] = ("default", "linear", "llama3")
    theta_key: str = "rope_theta"
    partial: float | None = None  # partial_rotary_factor if config.json lacks it; None: only 1.0 is valid
    partial_key: str = "partial_rotary_factor"
    aliases: tuple[str, ...] = ()  # other names of longrope
    original_max_position: int | None = None  # used if config.json lacks it; None: max_position_embeddings
    interleaved: bool = False
    wide: bool = False


PLAIN_ROPE = RopeRules()


def read_rope(config: Fields, max_position: int, head_dim: int, rules: RopeRules) -> RopeConfig:
    """Read the rotary embedding of a model. Raises ``CheckpointError`` for kinds that ``rules`` do not list."""
    section = config.object("rope_scaling") or config.object("rope_parameters") or Fields(config.source, {})
    theta = section.number("rope_theta", config.number(rules.theta_key, DEFAULT_THETA))
    kind = section.text("rope_type") or section.text("type", "default")
    if kind in rules.aliases:
        kind = "longrope"
    if any(isinstance(value, dict) for value in section.values.values()):
        raise CheckpointError(f"{section.source} differs by layer type, which is not supported; use another checkpoint")
    if kind not in rules.kinds:
        raise CheckpointError(
            f"{section.source}: rope type {shown(kind)} is not supported (there are: {', '.join(rules.kinds)}); "
            "use another checkpoint"
        )
    if theta <= 0:
        new = section.values.get("rope_theta") is not None
        raise section.wrong("rope_theta", "a positive number") if new else config.wrong(rules.theta_key, "a positive number")
    dim = _rotary_dim(config, section, head_dim, rules)
    base = RopeConfig(
        theta=theta, dim=None if dim == head_dim else dim, interleaved=rules.interleaved, wide=rules.wide, kind=kind
    )
    if kind == "default":
        return base
    if kind == "longrope":
        return _longrope(config, section, max_position, dim, rules, base)
    factor = section.number("factor")
    if factor <= 0:
        raise section.wrong("factor", "a positive number")
    if kind == "linear":
        return replace(base, factor=factor)
    low, high = section.number("low_freq_factor"), section.number("high_freq_factor")
    if not 0 < low < high:
        raise CheckpointError(
            f"{section.source}: low_freq_factor {low} and high_freq_factor {high} must be positive and in this order; "
            "correct the file"
        )
    original = section.integer("original_max_position_embeddings", max_position)
    return replace(
        base,
        factor=factor,
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position=config.integer("original_max_position_embeddings", original),
    )


def _rotary_dim(config: Fields, section: Fields, head_dim: int, rules: RopeRules) -> int:
    """Return how many elements of a head are rotated: the fraction partial_rotary_factor of them."""
    factor = section.number("partial_rotary_factor", config.number(rules.partial_key, rules.partial or 1.0))
    dim = int(head_dim * factor) if 0 < factor <= 1 else 0
    if factor != 1.0 and rules.partial is None:
        raise CheckpointError(
            f"{config.source}: partial_rotary_factor is {factor}, only 1.0 is supported; use another checkpoint"
        )
    if not 0 < dim <= head_dim or dim % 2:
        raise CheckpointError(
            f"{config.source}: partial_rotary_factor {factor} turns {dim} of {head_dim} elements of a head, "
            "which must be an even number of them; correct the file"
        )
    return dim


def _longrope(
    config: Fields, section: Fields, max_position: int, dim: int, rules: RopeRules, base: RopeConfig
) -> RopeConfig:
    """Return a longrope configuration with short factors only.

    Beyond original_max_position every position would have to be computed again, with the long ones.
    """
    inside = section.integer("original_max_position_embeddings", rules.original_max_position or max_position)
    original = config.integer("original_max_position_embeddings", rules.original_max_position or inside)
    if original < 2:
        raise section.wrong("original_max_position_embeddings", "an integer of at least 2")
    section.numbers("long_factor", dim // 2)
    factor = section.number("factor", max_position / original)
    attention = section.number("attention_factor", 0.0)
    if not attention:
        attention = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return replace(
        base,
        original_max_position=original,
        short_factors=section.numbers("short_factor", dim // 2),
        attention_factor=attention,
    )
