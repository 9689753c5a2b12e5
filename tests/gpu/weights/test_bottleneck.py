"""Folders of bottleneck adapters: what is read, and what is refused by field, value and remedy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from blockwright.gpu.errors import CheckpointError
from blockwright.gpu.model.deltas import Bottleneck
from blockwright.gpu.weights.adapter import is_adapter, open_adapter
from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.tests.adapters import make_bottleneck

Checkpoints = Callable[..., Path]
UP = "model.layers.0.output_adapters.adapters.task.adapter_up"


def change(folder: Path, fields: dict[str, Any], config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    """Other fields, other fields of ``config``, other tensors; those of no elements are left out."""
    answer = json.loads((folder / "adapter_config.json").read_text()) | fields
    answer["config"] = answer["config"] | config if isinstance(answer["config"], dict) else answer["config"]
    (folder / "adapter_config.json").write_text(json.dumps(answer))
    weights = load_file(folder / "adapter.safetensors") | tensors
    save_file({name: t for name, t in weights.items() if t.numel()}, folder / "adapter.safetensors")


@pytest.mark.parametrize(
    ("config", "reads"),
    [
        ({}, "sum"),
        ({"original_ln_before": False}, "output"),
        ({"is_parallel": True}, "input"),
        ({"original_ln_after": False, "residual_before_ln": False}, "sum"),
    ],
)
def test_the_kinds_differ_in_what_is_read(
    config: dict[str, Any], reads: str, checkpoint: Checkpoints, tmp_path: Path
) -> None:
    base = Checkpoint.open(checkpoint("llama"))
    more = {"reduction_factor": {"0": 4, "default": 9}, "leave_out": [1], "scaling": 2, "mh_adapter": True}
    folder = make_bottleneck(base.path, tmp_path / "a", **config, **more)
    assert is_adapter(folder)
    found = open_adapter(folder, base).deltas
    widths = {1: 16, 2: 16, 5: 7, 6: 7}
    assert {place: change.bottleneck for place, (change, _) in found.items()} == {
        place: Bottleneck(width=width, activation="relu", reads=reads, scale=2) for place, width in widths.items()
    }


@pytest.mark.parametrize(
    ("fields", "config", "sentence"),
    [
        ({"hidden_size": 96}, {}, "hidden_size is 96, but the base .* asks for 64; name the base"),
        ({"model_type": "t5"}, {}, "model_type is 't5', but the base .* is of llama; name the base"),
        ({"config": "pfeiffer"}, {}, "config is 'pfeiffer', not an object"),
        ({"config": None}, {}, "peft_type '' is not supported"),
        ({}, {"reduction_factor": 8}, r"has shape \[4\] where reduction_factor and .* ask for \[8\]"),
        ({}, {"reduction_factor": 0}, "reduction_factor is 0, not a number, for layer 0, that leaves 1 to 4096 columns"),
        ({}, {"reduction_factor": "x"}, "reduction_factor is 'x', not a finite number"),
        ({}, {"reduction_factor": {"1": 16}}, "reduction_factor is .'1': 16., not a number, for layer 0"),
        ({}, {"reduction_factor": 10**400}, "reduction_factor is 1000.*, not a finite number"),
        ({}, {"non_linearity": "leakyrelu"}, "non_linearity is 'leakyrelu', not one of relu, swish"),
        ({}, {"ln_after": True}, "ln_after is True, which is not supported; train the adapter without it"),
        ({}, {"use_gating": True}, "use_gating is True, which is not supported"),
        ({}, {"phm_layer": True}, "phm_layer is True, which is not supported"),
        ({}, {"inv_adapter": "nice"}, "inv_adapter is 'nice', which is not supported"),
        ({}, {"cross_adapter": True}, "cross_adapter is True, which is not supported"),
        ({}, {"architecture": "lora"}, "architecture is 'lora', which is not supported"),
        ({}, {"scaling": "learned"}, "scaling is 'learned', not a finite number"),
        ({}, {"residual_before_ln": "post_add"}, "residual_before_ln is 'post_add', not true or false"),
        ({}, {"original_ln_after": False}, "original_ln_after is False, not what adds the residual once"),
        ({}, {"residual_before_ln": False}, "original_ln_after is True, not what adds the residual once"),
        ({}, {"leave_out": ["a"]}, "leave_out is .'a'., not a list of layers"),
        ({}, {"leave_out": [0, 1, 2]}, "mh_adapter, output_adapter and leave_out leave no adapter"),
        (
            {},
            {"leave_out": [0]},
            "layers.0.output_adapters.* belongs to no bottleneck that the configuration and the base have",
        ),
        ({}, {"mh_adapter": True}, "lacks down of the adapter behind the attention of layer 0"),
    ],
)
def test_a_field_that_does_not_fit_is_named(
    fields: dict[str, Any], config: dict[str, Any], sentence: str, checkpoint: Checkpoints, tmp_path: Path
) -> None:
    base = checkpoint("llama")
    folder = make_bottleneck(base, tmp_path / "a")
    change(folder, fields, config, {})
    with pytest.raises(CheckpointError, match=sentence):
        open_adapter(folder, Checkpoint.open(base))


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        ({f"{UP}.weight": torch.ones(64, 5)}, r"adapter_up.weight has shape \[64, 5\] where"),
        ({f"{UP}.bias": torch.ones(0)}, "lacks up_bias of the adapter behind the output of layer 0"),
        ({f"{UP.replace('task', 'other')}.bias": torch.ones(64)}, "has adapters other, task; save each in a folder"),
        ({"model.layers.9.output_adapters.adapters.task.adapter_up.bias": torch.ones(64)}, "belongs to no bottleneck"),
        ({"model.invertible_adapters.task.F.0.weight": torch.ones(4)}, "invertible_adapters.* belongs to no bottleneck"),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    tensors: dict[str, torch.Tensor], sentence: str, checkpoint: Checkpoints, tmp_path: Path
) -> None:
    base = checkpoint("llama")
    folder = make_bottleneck(base, tmp_path / "a")
    change(folder, {}, {}, tensors)
    with pytest.raises(CheckpointError, match=sentence):
        open_adapter(folder, Checkpoint.open(base))


@pytest.mark.parametrize(
    ("architecture", "why"),
    [
        ("gemma2", r"library has it read through a norm, of the last layer in all \(original_ln_before is true\)"),
        *(
            (name, f"library has none for {name.replace('-', '_')} models")
            for name in ("granite", "gpt-neox", "olmo2", "glm4")
        ),
    ],
)
def test_models_that_change_what_is_added_are_refused(
    architecture: str, why: str, checkpoint: Checkpoints, tmp_path: Path
) -> None:
    base = checkpoint(architecture)
    with pytest.raises(CheckpointError, match=f"output_adapter is not supported for .*: AdapterHub's .*{why}; train a LoRA"):
        open_adapter(make_bottleneck(base, tmp_path / "a"), Checkpoint.open(base))


def test_a_pickle_is_never_loaded(checkpoint: Checkpoints, tmp_path: Path) -> None:
    base = checkpoint("llama")
    folder = make_bottleneck(base, tmp_path / "a")
    (folder / "adapter.safetensors").rename(folder / "pytorch_adapter.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_adapter.bin is a pickle, which is never loaded"):
        open_adapter(folder, Checkpoint.open(base))
