"""Folders of prompt and prefix tuning: what is read, and what is refused by field, value and remedy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from blockwright.gpu.errors import CheckpointError
from blockwright.gpu.weights.adapter import open_adapter
from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.gpu.weights.loader import read_rows
from blockwright.tests.adapters import make_adapter

Checkpoints = Callable[..., Path]
KINDS = {"prompt": "PromptTuningConfig", "prefix": "PrefixTuningConfig"}


@pytest.fixture(scope="module")
def made(checkpoint: Checkpoints, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("made")
    base = checkpoint("llama")
    return {kind: make_adapter(base, folder / kind, kind=name, num_virtual_tokens=4) for kind, name in KINDS.items()}


def reopened(source: Path, path: Path, base: Path, changes: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Checkpoint:
    """A copy whose configuration and tensors are others in part; those of no elements are left out."""
    path.mkdir()
    config = json.loads((source / "adapter_config.json").read_text()) | changes
    (path / "adapter_config.json").write_text(json.dumps(config))
    found = {n: t for n, t in (load_file(source / "adapter_model.safetensors") | tensors).items() if t.numel()}
    save_file(found, path / "adapter_model.safetensors")
    return open_adapter(path, Checkpoint.open(base))


def test_a_prompt_is_a_delta_of_the_embedding_a_prefix_of_every_attention(
    made: dict[str, Path], checkpoint: Checkpoints
) -> None:
    base = Checkpoint.open(checkpoint("llama"))
    prompt, prefix = (open_adapter(made[kind], base) for kind in KINDS)
    assert (base.virtual, prompt.virtual, prefix.virtual) == (0, 4, 4)
    assert list(prompt.deltas) == [0]
    assert list(prefix.deltas) == [1, 3, 5]
    whole = load_file(made["prefix"] / "adapter_model.safetensors")["prompt_embeddings"]
    for layer, (_, refs) in enumerate(prefix.deltas.values()):
        assert torch.equal(read_rows(refs["prefix"], 0, refs["prefix"].shape[0]), whole[:, layer * 64 : (layer + 1) * 64])
    ids = {spec.component.id for spec in prefix.specs(16, "float32")} - {s.component.id for s in base.specs(16, "float32")}
    assert len(ids) == 3


def test_what_a_projection_made_is_saved_without_it(checkpoint: Checkpoints, tmp_path: Path) -> None:
    base = checkpoint("llama")
    more = {"prefix_projection": True, "encoder_hidden_size": 8, "num_virtual_tokens": 3}
    folder = make_adapter(base, tmp_path / "a", kind="PrefixTuningConfig", **more)
    assert open_adapter(folder, Checkpoint.open(base)).virtual == 3


@pytest.mark.parametrize(
    ("kind", "field", "value", "sentence"),
    [
        ("prompt", "num_virtual_tokens", 0, "num_virtual_tokens is 0, not an integer from 1"),
        ("prompt", "num_virtual_tokens", None, "lacks num_virtual_tokens"),
        ("prefix", "num_virtual_tokens", 5, r"has shape \[4, 192\] where num_virtual_tokens 5 .* ask for \[5, 192\]"),
        ("prefix", "num_virtual_tokens", 512, "num_virtual_tokens is 512, but .* has 512 positions; name the base"),
        ("prompt", "token_dim", 96, "token_dim is 96, but the base .* asks for 64; name the base"),
        ("prefix", "token_dim", 64, "token_dim is 64, but the base .* asks for 32"),
        ("prefix", "num_layers", 2, "num_layers is 2, but the base .* asks for 3"),
        ("prefix", "num_attention_heads", 4, "num_attention_heads is 4, but the base .* asks for 2"),
        ("prompt", "num_transformer_submodules", 2, "num_transformer_submodules is 2, not 1: no encoder"),
        ("prompt", "task_type", "SEQ_2_SEQ_LM", "task_type is 'SEQ_2_SEQ_LM', not CAUSAL_LM"),
        ("prefix", "modules_to_save", ["lm_head"], "modules_to_save is .'lm_head'., which is not supported; train"),
        ("prompt", "something", 3, "something is 3, which is not supported"),
        ("prompt", "peft_type", "P_TUNING", "peft_type 'P_TUNING' is not supported .there are: LORA, .*PREFIX_TUNING"),
    ],
)
def test_a_field_that_does_not_fit_is_named(
    made: dict[str, Path], checkpoint: Checkpoints, tmp_path: Path, kind: str, field: str, value: object, sentence: str
) -> None:
    with pytest.raises(CheckpointError, match=sentence):
        reopened(made[kind], tmp_path / "a", checkpoint("llama"), {field: value}, {})


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        ({"prompt_embeddings": torch.ones(0)}, "lacks tensor prompt_embeddings"),
        ({"prompt_embeddings": torch.ones(4, 63)}, r"has shape \[4, 63\] where num_virtual_tokens 4"),
        ({"transform.0.weight": torch.ones(2, 2)}, "tensor transform.0.weight is not supported, only prompt_embeddings is"),
        ({"prompt_embeddings": torch.ones(4, 64, dtype=torch.int8)}, "is quantized"),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    made: dict[str, Path], checkpoint: Checkpoints, tmp_path: Path, tensors: dict[str, torch.Tensor], sentence: str
) -> None:
    with pytest.raises(CheckpointError, match=sentence):
        reopened(made["prompt"], tmp_path / "a", checkpoint("llama"), {}, tensors)


def test_an_adapter_of_another_base_is_refused(made: dict[str, Path], checkpoint: Checkpoints) -> None:
    with pytest.raises(CheckpointError, match=r"token_dim is 64, but the base .* asks for 96; name the base"):
        open_adapter(made["prompt"], Checkpoint.open(checkpoint("llama", hidden_size=96)))
