"""Weights with NaN or infinity are refused where they are read first, by the tensor's name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from blockwright.gpu.errors import CheckpointError
from blockwright.gpu.weights.adapter import open_adapter
from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.gpu.weights.finite import BEYOND, is_finite
from blockwright.gpu.weights.identity import NotFinite, begin_hash, hash_tensor
from blockwright.gpu.weights.tensor_files import read_header
from blockwright.tests.adapters import make_adapter
from blockwright.tests.checkpoints import make_checkpoint
from blockwright.tests.claims import claim

TYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
GARBAGE = (float("nan"), -float("nan"), float("inf"), -float("inf"), 1e38, -BEYOND)  # float16 makes the last two infinite


def content(values: torch.Tensor) -> memoryview:
    return memoryview(values.view(torch.uint8).numpy())


@pytest.mark.parametrize("step", [31, pytest.param(1, marks=pytest.mark.nightly)])  # 31: some of each exponent
@pytest.mark.parametrize("dtype", TYPES)
def test_every_pattern_of_16_high_bits_is_judged_as_torch_judges_it(dtype: str, step: int) -> None:
    bits = torch.arange(0, 1 << 16, step, dtype=torch.int32).to(torch.int16)
    if dtype == "F32":
        bits = torch.stack([torch.full_like(bits, 1), bits], dim=1).flatten()  # the lower half first
    values = bits.view(TYPES[dtype])
    seen = [is_finite(content(value.reshape(1).clone()), dtype) for value in values]
    assert seen == (values.float().abs() < BEYOND).tolist(), "nothing compares with NaN"


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("place", [0, 1, 2, 255, 256])
def test_one_value_is_enough_wherever_it_is(dtype: str, garbage: float, place: int) -> None:
    values = torch.randn(257).to(TYPES[dtype])
    bound = min(torch.finfo(TYPES[dtype]).max, BEYOND * (1 - torch.finfo(TYPES[dtype]).eps))
    values[0], values[1] = bound, -bound
    assert is_finite(content(values), dtype)
    values[place] = garbage
    assert not is_finite(content(values), dtype)


def test_what_is_empty_or_no_float_is_finite() -> None:
    assert is_finite(memoryview(b""), "F32")
    assert is_finite(memoryview(b"\xff" * 8), "I64")


def test_the_error_names_the_tensor_and_has_its_hash(tmp_path: Path) -> None:
    values = torch.zeros(1 << 17, 3, dtype=torch.float32)
    values[-1, -1] = float("nan")
    save_file({"odd": values}, tmp_path / "t.safetensors")
    with pytest.raises(NotFinite, match=r"t\.safetensors: tensor odd has values that are NaN or infinite") as raised:
        hash_tensor(read_header(tmp_path / "t.safetensors")["odd"])
    digest = begin_hash("F32", values.shape)
    digest.update(content(values.flatten()))
    assert raised.value.hash == digest.digest()


def spoil(path: Path, part: str) -> str:
    """Make one value of a tensor infinite; its name."""
    tensors = load_file(path)
    name = next(name for name in tensors if part in name)
    tensors[name].view(-1)[-1] = float("-inf")
    save_file(tensors, path, metadata={"format": "pt"})
    return name


@claim("Weights with NaN or infinity are refused by the name of the tensor", of="checkpoints")
def test_a_checkpoint_and_an_adapter_are_refused(tmp_path: Path) -> None:
    base, bad = make_checkpoint(tmp_path / "base"), make_checkpoint(tmp_path / "bad")
    adapter = make_adapter(base, tmp_path / "adapter")
    name = spoil(bad / "model.safetensors", "down_proj")
    with pytest.raises(CheckpointError, match=name):
        Checkpoint.open(bad).specs(16, "float32")
    opened = Checkpoint.open(base)
    opened.specs(16, "float32")
    name = spoil(adapter / "adapter_model.safetensors", "lora_B")
    with pytest.raises(CheckpointError, match=name):
        open_adapter(adapter, opened).specs(16, "float32")


@pytest.mark.parametrize(("values", "alpha", "fits"), [(1e9, 4, True), (1e9, 256, False), (1e15, 4, False)])
def test_halves_of_an_adapter_that_are_finite_and_together_are_not(
    tmp_path: Path, values: float, alpha: int, fits: bool
) -> None:
    base = make_checkpoint(tmp_path / "base")
    adapter = make_adapter(base, tmp_path / "adapter", lora_alpha=alpha)
    file = adapter / "adapter_model.safetensors"
    tensors = load_file(file)
    for name in [name for name in tensors if "layers.1.mlp.down_proj" in name]:
        tensors[name].view(-1)[-1] = -values
    save_file(tensors, file, metadata={"format": "pt"})
    opened = Checkpoint.open(base)
    if fits:
        open_adapter(adapter, opened).specs(16, "float32")
        return
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.down_proj\.lora_A\.weight and lora_B together, with alpha"):
        open_adapter(adapter, opened).specs(16, "float32")
