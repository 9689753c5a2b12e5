"""The demo checkpoint's folder: its tokenizer (one token for each byte) and the files that transformers reads.

Every text has exactly one encoding and survives the round trip, also where it is not ASCII. Training and writing share
the numbers below; serving reads only the folder. Never trains anything.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

BOS, EOS, PAD = 256, 257, 258
SPECIAL = {"<s>": BOS, "</s>": EOS, "<pad>": PAD}

# The model was trained on single prompts: the last user message is rendered, what came before it is not.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% set asked = messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list %}"
    "{% set text = asked[-1] | trim %}{{ text }}{% if text[-1:] != '=' %} ={% endif %}"
)


def encode(text: str, start: bool = True) -> list[int]:
    """Token ids, the same that the written tokenizer gives; ``start`` puts the begin-of-sequence token before them."""
    return [BOS] * start + list(text.encode())


def byte_symbols() -> dict[str, int]:
    """The printable characters that the byte-level pre-tokenizer writes for the bytes, each with its byte as id."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + rank): byte for rank, byte in enumerate(others)}


def make_tokenizer() -> Tokenizer:
    """Byte-level BPE without a single merge."""
    tokenizer = Tokenizer(models.BPE(vocab=byte_symbols() | SPECIAL, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", BOS)]
    )
    return tokenizer


def model_config(shape: dict[str, Any]) -> dict[str, Any]:
    """config.json of a Llama with these sizes."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape["vocabulary"],
        "hidden_size": shape["hidden"],
        "num_hidden_layers": shape["layers"],
        "num_attention_heads": shape["heads"],
        "num_key_value_heads": shape["kv_heads"],
        "head_dim": shape["hidden"] // shape["heads"],
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
        "torch_dtype": "bfloat16",
    }


def write_folder(folder: Path, shape: dict[str, Any], weights: dict[str, torch.Tensor], report: dict[str, Any]) -> None:
    """Writes all files; ``weights`` have the names of transformers without their leading ``model.``."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"model.{name}": weight.bfloat16().contiguous() for name, weight in weights.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    make_tokenizer().save(str(folder / "tokenizer.json"))
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    files = {
        "config.json": model_config(shape),
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
        "report.json": report,
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1) + "\n")
