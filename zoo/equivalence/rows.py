"""Rows of tokens in batches. Legend: B rows, L positions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from .probe import Row

TOGETHER = 4096  # tokens in one batch


def batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield places of rows of like lengths, ``TOGETHER`` tokens at a time."""
    batch: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if batch and (len(batch) + 1) * lengths[place] > TOGETHER:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def padded(rows: Sequence[Row]) -> torch.Tensor:
    """Return rows as tokens [B, L], padded behind their ends, where nothing is read."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
