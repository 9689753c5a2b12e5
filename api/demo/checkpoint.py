"""The files of a demo checkpoint: its tokenizer (one token for each byte), its text files, and random weights.

Every text has exactly one encoding and survives the round trip, even if it is not ASCII. This module imports no torch and
never trains.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from ...gpu.weights.token_bytes import byte_alphabet

BOS = 256
EOS = 257
PAD = 258
SPECIAL = {"<s>": BOS, "</s>": EOS, "<pad>": PAD}

# The model was trained on single prompts: only the last user message is rendered.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% set asked = messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list %}"
    "{% set text = asked[-1] | trim %}{{ text }}{% if text[-1:] != '=' %} ={% endif %}"
)


def encode(text: str, start: bool = True) -> list[int]:
    """Return the token ids of the written tokenizer; ``start`` puts the begin-of-sequence token in front."""
    return [BOS] * start + list(text.encode())


def make_tokenizer() -> Tokenizer:
    """Return a byte-level BPE tokenizer without merges."""
    tokenizer = Tokenizer(models.BPE(vocab=byte_alphabet() | SPECIAL, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", BOS)]
    )
    return tokenizer


def model_config(shape: dict[str, Any]) -> dict[str, Any]:
    """Return config.json of a Llama with these sizes, except for the type of its weights."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape["vocabulary"],
        "hidden_size": shape["hidden"],
        "num_hidden_layers": shape["layers"],
        "num_attention_heads": shape["heads"],
        "num_key_value_heads": shape["kv_heads"],
        "head_dim": shape["head_dim"],
        "intermediate_size": shape["intermediate"],
        "hidden_act": "silu",
        "max_position_embeddings": shape["max_position"],
        "rms_norm_eps": shape["eps"],
        "rope_theta": shape["rope_theta"],
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
    }


def write_texts(folder: Path, shape: dict[str, Any], dtype: str) -> None:
    """Write all files of a checkpoint except its weights. ``dtype``: type of the weights."""
    folder.mkdir(parents=True, exist_ok=True)
    make_tokenizer().save(str(folder / "tokenizer.json"))
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    files = {
        "config.json": model_config(shape) | {"torch_dtype": dtype},
        "generation_config.json": {
            "bos_token_id": BOS,
            "eos_token_id": EOS,
            "pad_token_id": PAD,
            "do_sample": False,
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": shape["max_position"],
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
            **special,
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1) + "\n")


RANDOM_SHAPE = {
    "vocabulary": 260,
    "hidden": 64,
    "layers": 4,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 16,
    "intermediate": 176,
    "max_position": 512,
    "eps": 1e-5,
    "rope_theta": 10000.0,
}


def write_random(folder: Path) -> None:
    """Write a checkpoint of random weights, in place of the trained one. It serves like any other and generates noise."""
    import numpy as np
    from safetensors.numpy import save_file

    shape, source = RANDOM_SHAPE, np.random.default_rng(0)
    hidden, inner = int(shape["hidden"]), int(shape["intermediate"])
    narrow = hidden // int(shape["heads"]) * int(shape["kv_heads"])
    sizes: dict[str, tuple[int, ...]] = {"embed_tokens": (int(shape["vocabulary"]), hidden), "norm": (hidden,)}
    for layer in range(int(shape["layers"])):
        near = f"layers.{layer}"
        sizes |= {f"{near}.{name}_layernorm": (hidden,) for name in ("input", "post_attention")}
        sizes |= {f"{near}.self_attn.{name}_proj": (hidden, hidden) for name in "qo"}
        sizes |= {f"{near}.self_attn.{name}_proj": (narrow, hidden) for name in "kv"}
        sizes |= {f"{near}.mlp.{name}_proj": (inner, hidden) for name in ("gate", "up")}
        sizes[f"{near}.mlp.down_proj"] = (hidden, inner)
    tensors = {}
    for name, size in sizes.items():
        drawn = source.normal(0.0, 0.2, size).astype(np.float32)
        tensors[f"model.{name}.weight"] = np.ones(size, np.float32) if len(size) == 1 else drawn
    write_texts(folder, shape, "float32")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
