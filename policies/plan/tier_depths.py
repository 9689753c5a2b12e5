"""Depths of tiers by equal latency: the layers of a large model that take as long as a smaller model. Pure."""

from __future__ import annotations

from collections.abc import Mapping

COARSE = 16  # most depths that are measured before the ones around the wanted latency


def coarse_depths(layers: int) -> list[int]:
    """Return the depths to measure first, about evenly spaced; the last is the whole model."""
    step = -(-layers // COARSE)
    return sorted({*range(step, layers, step), layers, 1})


def depths_between(latency: float, measured: Mapping[int, float]) -> list[int]:
    """Return the depths still to measure for a latency: those between the two measured ones that enclose it."""
    above = equal_depth(latency, measured)
    if above is None:
        return []
    below = max((depth for depth in measured if depth < above), default=0)
    return [*range(below + 1, above)]


def equal_depth(latency: float, measured: Mapping[int, float]) -> int | None:
    """Return the least depth that takes at least this latency; None if the whole model takes less."""
    return next((depth for depth in sorted(measured) if measured[depth] >= latency), None)
