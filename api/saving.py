"""What sharing saves, as one sentence: the same at the start of a server, in ``ps`` and ``top``, and in the demo."""

from __future__ import annotations

from blockwright.policies.binary_size import binary_size


def saving(models: int, stored: int, saved: int) -> str:
    """``stored``: bytes of the parameters of all models, equal tensors once; ``saved``: what further copies would take."""
    said = f"{models} model{'s' * (models != 1)} in {binary_size(stored)}"
    if not saved:
        return said
    return f"{said} instead of {binary_size(stored + saved)} ({saved / (stored + saved):.0%} saved)"
