"""Training of the demo family: fine-tunes of the demo checkpoint for the tasks of ``api/demo/family.py``, LoRA and full.

    python examples/train_demo.py --family [NAME ...]

About a minute of one core for each. A LoRA member is a folder in the format of ``peft``, written without it. A full
fine-tune is a folder in Hugging Face format. If it changes only upper layers, everything else is a symbolic link to the
checkpoint's own files, and its index says which file has which tensor, so that it is as small as its changes.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
import train_demo
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from train_demo import Llama, Shape

from blockwright.api.demo.family import FAMILY, Form, questions
from blockwright.api.demo.tasks import is_right

SEED, EXAMINED = 21, 100
RANK, ALPHA = 4, 8
LORA_FROM = 2  # the layers below are the checkpoint's, and so is their KV
UPPER_FROM = 4
MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
RECIPES: dict[Form, dict[str, Any]] = {
    Form.LORA: {"steps": 600, "size": 32, "rate": 8e-3, "room": 0.0, "seed": SEED},
    Form.UPPER: {"steps": 400, "size": 32, "rate": 4e-3, "room": 0.0, "seed": SEED},
    Form.FULL: {"steps": 400, "size": 32, "rate": 4e-3, "room": 0.0, "seed": SEED},
}
SHARED_SHARD, OWN_SHARD = (f"model-{number:05}-of-00002.safetensors" for number in (1, 2))
SHARED_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


class LowRank(nn.Module):
    """A frozen linear module plus ``ALPHA / RANK * B A``; attribute names are those of ``peft``."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Linear(base.in_features, RANK, bias=False)
        self.lora_B = nn.Linear(RANK, base.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, input_BTD: Tensor) -> Tensor:
        out_BTD: Tensor = self.base(input_BTD) + ALPHA / RANK * self.lora_B(self.lora_A(input_BTD))
        return out_BTD


def foundation(folder: Path) -> Llama:
    """The demo checkpoint, as the training script has it."""
    config = json.loads((folder / "config.json").read_text())
    theirs = {"vocabulary": "vocab_size", "hidden": "hidden_size", "layers": "num_hidden_layers", "eps": "rms_norm_eps"}
    theirs |= {"heads": "num_attention_heads", "kv_heads": "num_key_value_heads", "intermediate": "intermediate_size"}
    theirs |= {"max_position": "max_position_embeddings", "rope_theta": "rope_theta", "head_dim": "head_dim"}
    model = Llama(Shape(**{field.name: config[theirs[field.name]] for field in fields(Shape)}))
    weights = load_file(folder / "model.safetensors")
    model.load_state_dict({name.removeprefix("model."): weight.float() for name, weight in weights.items()})
    return model


def prepare(model: Llama, form: Form) -> None:
    """Freeze what the form keeps, and put low-rank terms where it adds some."""
    if form is Form.FULL:
        return
    model.requires_grad_(False)
    for number, layer in enumerate(model.layers):
        if form is Form.UPPER:
            layer.requires_grad_(number >= UPPER_FROM)
        elif number >= LORA_FROM:
            for part in (layer.self_attn, layer.mlp):
                for name in MODULES:
                    if hasattr(part, name):
                        setattr(part, name, LowRank(getattr(part, name)))


def rounded(model: Llama) -> None:
    """To bfloat16, as it is stored."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.bfloat16())


def learned(model: Llama) -> dict[str, Tensor]:
    """What training changed, in bfloat16, by the names of the training script."""
    return {name: weight.detach().bfloat16() for name, weight in model.named_parameters() if weight.requires_grad}


def write_adapter(folder: Path, model: Llama, foundation: str) -> None:
    """What ``peft`` would save."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"base_model.model.model.{name}": weight for name, weight in learned(model).items()}
    config = {
        "base_model_name_or_path": foundation,
        "bias": "none",
        "layers_to_transform": list(range(LORA_FROM, model.shape.layers)),
        "lora_alpha": ALPHA,
        "peft_type": "LORA",
        "r": RANK,
        "target_modules": list(MODULES),
        "task_type": "CAUSAL_LM",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1) + "\n")
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def write_upper(folder: Path, model: Llama, base: Path) -> None:
    """The upper layers, and links to the rest."""
    folder.mkdir(parents=True, exist_ok=True)
    own = {f"model.{name}": weight for name, weight in learned(model).items()}
    save_file(own, folder / OWN_SHARD, metadata={"format": "pt"})
    for name, target in ((SHARED_SHARD, "model.safetensors"), *((name, name) for name in SHARED_FILES)):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(os.path.relpath(base / target, folder))
    every = load_file(base / "model.safetensors")
    where = {name: OWN_SHARD if name in own else SHARED_SHARD for name in every}
    index = {"metadata": {"total_size": sum(weight.nbytes for weight in every.values())}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def write_full(folder: Path, model: Llama, base: Path) -> None:
    """All tensors of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in SHARED_FILES:
        (folder / name).write_bytes((base / name).read_bytes())
    tensors = {f"model.{name}": weight for name, weight in learned(model).items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def write(folder: Path, model: Llama, form: Form, base: Path) -> None:
    """A member's folder."""
    if form is Form.LORA:
        write_adapter(folder, model, base.name)
    elif form is Form.UPPER:
        write_upper(folder, model, base)
    else:
        write_full(folder, model, base)


def share_right(model: Llama, name: str) -> float:
    """Of the answers to held-out prompts of a member's task."""
    examples = questions(name, SEED, EXAMINED)
    texts = train_demo.answers(model, examples)
    return sum(is_right(example, text) for example, text in zip(examples, texts, strict=True)) / len(examples)


def make(names: list[str], base: Path, folder: Path) -> None:
    """Train and write members; ``report.json`` in ``folder`` has the accuracy of each and of the checkpoint alone."""
    path = folder / "report.json"
    report = json.loads(path.read_text()) if path.exists() else {}
    for name in names:
        member, began = FAMILY[name], time.monotonic()
        torch.manual_seed(SEED)
        model = foundation(base)
        alone = share_right(model, name)
        prepare(model, member.form)
        train_demo.train(model, **RECIPES[member.form], tasks={name: member.task})
        rounded(model)
        write(folder / name, model, member.form, base)
        seconds = round(time.monotonic() - began)
        report[name] = {"form": member.form, "accuracy": share_right(model, name), "foundation": alone, "seconds": seconds}
        path.write_text(json.dumps(report, indent=1) + "\n")
        print(name, json.dumps(report[name]), flush=True)
