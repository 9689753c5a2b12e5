"""Tensors come from files as they are, at any alignment, and leave no memory behind."""

from __future__ import annotations

import errno
import mmap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from blockwright.gpu.model.config import TensorRef
from blockwright.gpu.weights.checkpoint import Checkpoint, CheckpointError
from blockwright.gpu.weights.loader import read_rows


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_equal_to_the_file(checkpoint: Callable[..., Path], dtype: str) -> None:
    path = checkpoint("qwen2", dtype=dtype)
    want = load_file(path / "model.safetensors")
    for spec in Checkpoint.open(path).specs(16, "float32"):
        for ref in spec.tensors.values():
            assert torch.equal(read_tensor(ref), want[ref.name])


@pytest.mark.parametrize("architecture", ["phi3", "gpt-neox"])
def test_rows_of_fused_tensors(checkpoint: Callable[..., Path], architecture: str) -> None:
    for spec in Checkpoint.open(checkpoint(architecture)).specs(16, "float32"):
        for ref in spec.tensors.values():
            whole = read_tensor(ref)
            for first in range(0, ref.shape[0], 7):
                assert torch.equal(read_rows(ref, first, min(first + 7, ref.shape[0])), whole[first : first + 7])


@pytest.mark.parametrize("offset", [0, 1, 3, 4095, 4096, 5001])
def test_any_alignment(tmp_path: Path, offset: int) -> None:
    want = torch.arange(600, dtype=torch.float32).view(20, 30)
    path = tmp_path / "file"
    path.write_bytes(b"x" * offset + want.numpy().tobytes() + b"y")
    assert torch.equal(read_tensor(TensorRef(str(path), "t", "F32", (20, 30), offset, 2400)), want)


def read_tensor(ref: TensorRef) -> torch.Tensor:
    return read_rows(ref, 0, ref.shape[0])


def mappings(path: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(path))


def test_dropped_with_the_tensor(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(1 << 16))
    tensor = read_tensor(TensorRef(str(path), "t", "BF16", (1 << 15,), 0, 1 << 16))
    assert mappings(path) == 1
    del tensor
    assert mappings(path) == 0


def test_missing_and_short_files(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    ref = TensorRef(str(path), "model.norm.weight", "F32", (4,), 0, 16)
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight cannot be read"):
        read_tensor(ref)
    path.write_bytes(bytes(8))
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_tensor(ref)
    assert read_tensor(replace(ref, shape=(0,), nbytes=0)).shape == (0,)


def test_too_many_open_files_are_not_held_against_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    path = tmp_path / "weights"
    path.write_bytes(bytes(16))
    monkeypatch.setattr(mmap, "mmap", full)
    with pytest.raises(CheckpointError, match=r"Too many open files.*ulimit -n"):
        read_tensor(TensorRef(str(path), "t", "F32", (4,), 0, 16))
