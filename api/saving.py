"""The memory that sharing saves, in words: the same at a server's start, in ``ps`` and ``top``, in zoos and in the demo.

``actors/controller/view.py`` computes a server's numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..policies.binary_size import binary_size


def saving(models: int, stored: int, saved: int) -> str:
    """Return a sentence on the savings.

    ``stored``: bytes of all models' parameters, equal tensors once. ``saved``: bytes of the further copies.
    """
    said = f"{models} model{'s' * (models != 1)} in {binary_size(stored)}"
    if not saved:
        return said
    return f"{said} instead of {binary_size(stored + saved)} ({saved / (stored + saved):.0%} saved)"


def in_memory(sizes: Sequence[int]) -> str:
    """Return a sentence on the workers' memory for these parameters. ``sizes``: bytes on each worker.

    They differ from the bytes in files, since they are in the layout of the kernels.
    """
    if not sizes:
        return "no worker holds parameters"
    said = [binary_size(size) for size in sorted(sizes)]
    on = "on its worker" if len(sizes) == 1 else f"on each of {len(sizes)} workers"
    amount = said[0] if said[0] == said[-1] else f"{said[0]} to {said[-1]}"
    return f"in memory, as the kernels read them: {amount} {on}"


def shared_part(value: float) -> str:
    """Return a share from 0 to 1 in percent; one close to the whole or to nothing gets two decimals, so that it shows."""
    if 0 < value < 0.01 or 0.99 < value < 1:
        return f"{min(max(value, 0.0001), 0.9999):.2%}"
    return f"{value:.0%}"
