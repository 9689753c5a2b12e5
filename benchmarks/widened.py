"""A wider copy of a Llama checkpoint that computes the same: its hidden states are the first's in another basis, and more.

The states are multiplied with an orthonormal matrix [wide, hidden]. Norms do not see it once their weights lie in the
matrices behind them, except for the mean over more elements, which a constant weight mends. Only the given folder is
written.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

READS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")  # of a layer: products with normed states
WRITES = ("o_proj", "down_proj")  # of a layer: what is added to the states


def basis(hidden: int, wide: int, seed: int) -> torch.Tensor:
    """Return an orthonormal matrix [wide, hidden] in float64."""
    source = torch.randn(wide, hidden, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    turn_ED: torch.Tensor = torch.linalg.qr(source).Q
    return turn_ED


def widened(base: Path, folder: Path, wide: int, *, noise: float = 0.0, seed: int = 5) -> Path:
    """Make a copy of width ``wide`` in float32. ``noise`` is added to the matrices of layers, relative to their spread."""
    shutil.copytree(base, folder)
    config = json.loads((folder / "config.json").read_text())
    hidden = config["hidden_size"]
    config |= {
        "head_dim": config.get("head_dim") or hidden // config["num_attention_heads"],
        "hidden_size": wide,
        "rms_norm_eps": config["rms_norm_eps"] * hidden / wide,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    raw = {name: one.double() for name, one in load_file(base / "model.safetensors").items()}
    turn_ED = basis(hidden, wide, seed)
    flat_E = torch.full((wide,), (hidden / wide) ** 0.5, dtype=torch.float64)
    embedding, head = "model.embed_tokens.weight", "lm_head.weight"
    made = {embedding: raw[embedding] @ turn_ED.T, "model.norm.weight": flat_E}
    made[head] = (raw.get(head, raw[embedding]) * raw["model.norm.weight"]) @ turn_ED.T
    for name, one in raw.items():
        layer, _, part = name.removesuffix(".weight").rpartition(".")
        if part in READS:
            norm = layer.replace("self_attn", "input_layernorm").replace("mlp", "post_attention_layernorm")
            made[name] = (one * raw[f"{norm}.weight"]) @ turn_ED.T
        elif part in WRITES:
            made[name] = turn_ED @ one
        elif "layernorm" in part:
            made[name] = flat_E
        if noise and part in READS + WRITES:
            source = torch.Generator().manual_seed(len(made))
            made[name] += noise * made[name].std() * torch.randn(made[name].shape, dtype=torch.float64, generator=source)
    save_file({name: one.float().contiguous() for name, one in made.items()}, folder / "model.safetensors", {"format": "pt"})
    return folder
