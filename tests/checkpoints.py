"""Tiny random checkpoints with a tokenizer, made with transformers: what tests serve and compare with.

Weights are drawn with ``initializer_range`` 0.2, norms and biases are random too, so that an error in any of them shows in
the tokens. Import as ``blockwright.tests.checkpoints``; in tests prefer the ``checkpoint`` fixture, which makes each once.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SPECIAL = ["<unk>", "<s>", "</s>"]
MERGES = ["Ġ t", "h e", "Ġt he", "i n", "e r", "o n", "a n", "r e", "Ġ a", "Ġ s"]
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
BASE: dict[str, Any] = {
    "vocab_size": 384,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
CAPS = {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 4.0}  # low enough to change answers
PRESETS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 24}),
    "llama-multihead": ("llama", {"num_key_value_heads": 4}),
    "llama3": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "llama-linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral-window": ("mistral", {"sliding_window": 11}),
    "qwen2": ("qwen2", {"rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}}),
    "qwen2-windows": ("qwen2", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}),
    "gemma": ("gemma", {"hidden_size": 80, "head_dim": 24, "num_key_value_heads": 1}),
    "gemma2": ("gemma2", {"head_dim": 32, "sliding_window": 13, "query_pre_attn_scalar": 24, **CAPS}),
    "glm4": ("glm4", {"head_dim": 24, "pad_token_id": 0}),
    "glm": ("glm", {"head_dim": 16, "attention_bias": False, "pad_token_id": 0}),
    "gpt-neox": ("gpt_neox", {"rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.25}}),
    "gpt-neox-serial": ("gpt_neox", {"use_parallel_residual": False, "hidden_act": "gelu_fast", "intermediate_size": 81}),
    "granite": (
        "granite",
        {"embedding_multiplier": 5.3, "attention_multiplier": 0.2, "residual_multiplier": 0.4, "logits_scaling": 3.0},
    ),
    "olmo2": ("olmo2", {}),
    "phi3": ("phi3", {"sliding_window": 21, "pad_token_id": 0}),
    "phi3-longrope": (
        "phi3",
        {
            "pad_token_id": 0,
            "max_position_embeddings": 2048,
            "original_max_position_embeddings": 512,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "short_factor": [1.0, 1.1, 1.3, 1.6, 2.0, 2.5, 3.0, 4.0],
                "long_factor": [2.0 + i for i in range(8)],
            },
        },
    ),
    "qwen3": ("qwen3", {"head_dim": 24, "num_key_value_heads": 1}),
}

# Factors of parameters by a mark in their names: without them these answers soon repeat themselves, which hides errors.
LIVELIER: dict[str, dict[str, float]] = {
    "gpt-neox": {"embed_in": 5.0, "query_key_value.weight": 2.0, "bias": 0.5},
    "gpt-neox-serial": {"embed_in": 5.0, "query_key_value.weight": 2.0, "bias": 0.5},
    "olmo2": {"embed_tokens": 12.0},
}


def make_checkpoint(
    path: Path | str, architecture: str = "llama", seed: int = 0, dtype: str = "float32", shard: str = "", **config: Any
) -> Path:
    """A checkpoint in folder ``path``: ``architecture`` is a key of ``PRESETS``, ``config`` overrides fields of config.json.

    ``shard`` ("50KB") splits the weights into several files.
    """
    import torch

    folder = Path(path)
    model = build_model(architecture, seed, **config).to(getattr(torch, dtype))
    model.config.dtype = getattr(torch, dtype)
    model.save_pretrained(folder, **({"max_shard_size": shard} if shard else {}))
    write_tokenizer(folder)
    return folder


def build_model(architecture: str, seed: int, **config: Any) -> Any:
    """A random transformers model in float32, in evaluation mode."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    family, preset = PRESETS[architecture]
    settings = AutoConfig.for_model(family, **{**BASE, **preset, **config})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(settings, dtype=torch.float32).eval()
        spread = settings.initializer_range
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("norm.weight"):  # drawn around what changes nothing, which is 0 in Gemma
                    parameter.add_(spread * torch.randn_like(parameter))
                elif name.endswith("bias"):
                    parameter.copy_(spread * torch.randn_like(parameter))
                for mark, factor in LIVELIER.get(architecture, {}).items():
                    if mark in name:
                        parameter.mul_(factor)
    return model


def fused_as_phi3(llama: Path, phi3: Path, target: Path) -> Path:
    """A copy of a Phi-3 checkpoint in ``target`` with a Llama's parameters of the same shapes, fused as Phi-3 has them."""
    import torch
    from safetensors.torch import load_file

    names = (("self_attn.qkv_proj", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
             ("mlp.gate_up_proj", ("mlp.gate_proj", "mlp.up_proj")))  # fmt: skip
    raw = load_file(llama / "model.safetensors")
    layers = {name.rpartition(".self_attn.q_proj")[0] for name in raw if ".self_attn.q_proj" in name}
    for layer in layers:
        for fused, parts in names:
            raw[f"{layer}.{fused}.weight"] = torch.cat([raw.pop(f"{layer}.{part}.weight") for part in parts])
    return with_tensors(phi3, target, raw)


def with_tensors(folder: Path, target: Path, tensors: dict[str, Any]) -> Path:
    """A copy of a checkpoint in one file with some of its tensors replaced; a shape may not change."""
    import shutil

    from safetensors.torch import load_file, save_file

    shutil.copytree(folder, target)
    raw = load_file(folder / "model.safetensors")
    assert all(raw[name].shape == tensor.shape for name, tensor in tensors.items()), "another shape"
    save_file(raw | tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


def write_tokenizer(folder: Path) -> None:
    """tokenizer.json (byte-level BPE of 269 tokens) and tokenizer_config.json with a chat template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [(left, right) for left, _, right in (merge.partition(" ") for merge in MERGES)]
    words = [*SPECIAL, *alphabet, *("".join(merge) for merge in merges)]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges, unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "model_max_length": 512,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1), encoding="utf-8")


def make_family(folder: Path, target: Path, exits: dict[int, str]) -> Path:
    """A copy of a checkpoint in one file with exits: for each number of layers the name of a head, or "shared".

    A head of its own is the top's, disturbed; its dtype is the top's.
    """
    import shutil

    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(folder, target)
    entries = [{"layers": layers, "head": head} for layers, head in exits.items()]
    (target / "exits.json").write_text(json.dumps({"version": 1, "exits": entries}), encoding="utf-8")
    raw = load_file(folder / "model.safetensors")
    names = {"norm.weight": ("model.norm.weight", "gpt_neox.final_layer_norm.weight"),
             "norm.bias": ("gpt_neox.final_layer_norm.bias",),
             "head.weight": ("lm_head.weight", "embed_out.weight", "model.embed_tokens.weight")}  # fmt: skip
    heads = {}
    for name in {head: None for head in exits.values() if head != "shared"}:
        generator = torch.Generator().manual_seed(sum(name.encode()))
        for suffix, sources in names.items():
            if (top := next((raw[source] for source in sources if source in raw), None)) is not None:
                noise = 0.1 * torch.randn(top.shape, generator=generator)
                heads[f"{name}.{suffix}"] = (top.float() + noise).to(top.dtype)
    if heads:
        save_file(heads, target / "exits.safetensors", metadata={"format": "pt"})
    return target
