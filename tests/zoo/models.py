"""Folders that are almost another checkpoint, and what lies in a zoo: what its tests add and look at."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

WEIGHTS = "model.safetensors"
Change = Callable[[torch.Tensor], torch.Tensor]


def variant(base: Path, folder: Path, changes: Mapping[str, Change]) -> Path:
    """The same checkpoint, but the tensors whose names hold one of these words are changed. At least one is."""
    shutil.copytree(base, folder)
    tensors = load_file(base / WEIGHTS)
    changed = {name: change(tensors[name]) for name in tensors for word, change in changes.items() if word in name}
    assert changed
    save_file({**tensors, **changed}, folder / WEIGHTS, {"format": "pt"})
    return folder


def doubled(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * 2


def infinite(tensor: torch.Tensor) -> torch.Tensor:
    """As a training run that has diverged leaves it."""
    return tensor * torch.finfo(tensor.dtype).max * 2


def files(zoo: Path) -> dict[str, bytes]:
    """What lies in a zoo but for its lock: path -> content, or where a link leads."""
    return {
        str(path.relative_to(zoo)): str(path.readlink()).encode() if path.is_symlink() else path.read_bytes()
        for path in sorted(zoo.rglob("*"))
        if (path.is_symlink() or path.is_file()) and path.name != "lock"
    }


def tensor_files(zoo: Path) -> set[str]:
    return {name for name in files(zoo) if name.startswith("tensors/")}
