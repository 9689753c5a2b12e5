"""Models that are almost another one, and rows to compare them by."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from blockwright.gpu.weights.checkpoint import Checkpoint, component_of
from blockwright.policies.model.chain import Component
from blockwright.tests.zoo.models import WEIGHTS
from blockwright.zoo.equivalence.probe import Row

ROWS: tuple[Row, ...] = tuple(
    tuple(torch.randint(3, 260, (length,), generator=torch.Generator().manual_seed(length)).tolist())
    for length in (21, 9, 33, 9, 2, 17)
)


def noisy(base: Path, folder: Path, strength: float, part: str = "layers") -> Path:
    """Make a copy in which the matrices whose names hold ``part`` have noise of ``strength`` times their spread."""
    shutil.copytree(base, folder)
    source = torch.Generator().manual_seed(11)

    def changed(name: str, tensor: torch.Tensor) -> torch.Tensor:
        noise = strength * tensor.std() * torch.randn(tensor.shape, generator=source)
        return tensor + noise if part in name and tensor.ndim > 1 else tensor

    save_file(
        {name: changed(name, one) for name, one in load_file(base / WEIGHTS).items()}, folder / WEIGHTS, {"format": "pt"}
    )
    return folder


def components(checkpoint: Checkpoint) -> list[Component]:
    """The components of a checkpoint with their identities."""
    ids = checkpoint.ids(checkpoint.hashes())
    return [component_of(config, id, 1) for (config, _), id in zip(checkpoint.parts, ids, strict=True)]
