"""What sharing saves, in words: the same at the start of a server, in ``ps`` and ``top``, in a zoo, and in the demo."""

from __future__ import annotations

from blockwright.policies.binary_size import binary_size


def saving(models: int, stored: int, saved: int) -> str:
    """``stored``: bytes of the parameters of all models, equal tensors once; ``saved``: what further copies would take."""
    said = f"{models} model{'s' * (models != 1)} in {binary_size(stored)}"
    if not saved:
        return said
    return f"{said} instead of {binary_size(stored + saved)} ({saved / (stored + saved):.0%} saved)"


def shared_part(value: float) -> str:
    """A share, 0 to 1: one that is not quite the whole, or not quite nothing, does not look like it."""
    if 0 < value < 0.01 or 0.99 < value < 1:
        return f"{min(max(value, 0.0001), 0.9999):.2%}"
    return f"{value:.0%}"
