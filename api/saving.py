"""What sharing saves, in words: the same at the start of a server, in ``ps`` and ``top``, in a zoo, and in the demo."""

from __future__ import annotations

from collections.abc import Sequence

from ..policies.binary_size import binary_size


def saving(models: int, stored: int, saved: int) -> str:
    """``stored``: bytes of the parameters of all models, equal tensors once; ``saved``: what further copies would take."""
    said = f"{models} model{'s' * (models != 1)} in {binary_size(stored)}"
    if not saved:
        return said
    return f"{said} instead of {binary_size(stored + saved)} ({saved / (stored + saved):.0%} saved)"


def in_memory(sizes: Sequence[int]) -> str:
    """Return what the memory of workers holds of these parameters: bytes in the layout of the kernels, which differ from
    those of the files. ``sizes``: of each worker."""
    if not sizes:
        return "no worker holds parameters"
    said = [binary_size(size) for size in sorted(sizes)]
    on = "on its worker" if len(sizes) == 1 else f"on each of {len(sizes)} workers"
    amount = said[0] if said[0] == said[-1] else f"{said[0]} to {said[-1]}"
    return f"in memory, as the kernels read them: {amount} {on}"


def shared_part(value: float) -> str:
    """A share, 0 to 1: one that is not quite the whole, or not quite nothing, does not look like it."""
    if 0 < value < 0.01 or 0.99 < value < 1:
        return f"{min(max(value, 0.0001), 0.9999):.2%}"
    return f"{value:.0%}"
