"""Random Llamas of fixed size, for measuring: S has 27 million parameters, M 169 million, W 44 million.

``1B`` and ``3B`` have 1.1 and 3.0 billion. ``tiny`` and ``stages`` (with a layer for each of four workers) are for
benchmarks that do not depend on arithmetic.

Weights come from a fixed seed, so two machines measure the same model. The tokenizer covers the whole vocabulary (each token
is one to three bytes), so that detokenization costs as much as with a real model. Only the given folder is written.
"""

from __future__ import annotations

import json
import random
import string
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

EOS = 256
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
CONFIG_DTYPES = {"f32": "float32", "bf16": "bfloat16"}


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of a Llama; head_dim is 64."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    max_position: int = 2048


SIZES = {
    "S": Size(12, 384, 6, 2, 1152, 8192),
    "M": Size(12, 1024, 16, 4, 2816, 16384),
    "W": Size(6, 768, 12, 4, 2048, 4096),
    "1B": Size(22, 2048, 32, 4, 5632, 32000),
    "3B": Size(28, 3072, 48, 16, 8192, 32000),
    "tiny": Size(2, 128, 2, 1, 192, 512),
    "stages": Size(4, 256, 4, 1, 1280, 512),
}


def shapes(size: Size) -> dict[str, tuple[int, ...]]:
    """Tensor names of transformers and their shapes."""
    width, kv_width = size.heads * 64, size.kv_heads * 64
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (size.vocabulary, size.hidden)}
    for layer in range(size.layers):
        prefix = f"model.layers.{layer}."
        found |= {
            f"{prefix}input_layernorm.weight": (size.hidden,),
            f"{prefix}self_attn.q_proj.weight": (width, size.hidden),
            f"{prefix}self_attn.k_proj.weight": (kv_width, size.hidden),
            f"{prefix}self_attn.v_proj.weight": (kv_width, size.hidden),
            f"{prefix}self_attn.o_proj.weight": (size.hidden, width),
            f"{prefix}post_attention_layernorm.weight": (size.hidden,),
            f"{prefix}mlp.gate_proj.weight": (size.intermediate, size.hidden),
            f"{prefix}mlp.up_proj.weight": (size.intermediate, size.hidden),
            f"{prefix}mlp.down_proj.weight": (size.hidden, size.intermediate),
        }
    return found | {"model.norm.weight": (size.hidden,), "lm_head.weight": (size.vocabulary, size.hidden)}


def make_model(size: str, dtype: str, folder: Path, seed: int = 0) -> Path:
    """Write a checkpoint; ``size`` is a key of SIZES, ``dtype`` of DTYPES. Returns the folder."""
    chosen, generator = SIZES[size], torch.Generator().manual_seed(seed)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: (torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator) * 0.02).to(DTYPES[dtype])
        for name, shape in shapes(chosen).items()
    }
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": chosen.vocabulary,
        "hidden_size": chosen.hidden,
        "num_hidden_layers": chosen.layers,
        "num_attention_heads": chosen.heads,
        "num_key_value_heads": chosen.kv_heads,
        "head_dim": 64,
        "intermediate_size": chosen.intermediate,
        "hidden_act": "silu",
        "max_position_embeddings": chosen.max_position,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "bos_token_id": EOS,
        "eos_token_id": EOS,
        "torch_dtype": CONFIG_DTYPES[dtype],
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"})
    )
    make_tokenizer(chosen.vocabulary).save(str(folder / "tokenizer.json"))
    return folder


def merges() -> Iterator[tuple[str, str]]:
    """Pairs to merge, most useful first in no sense at all: two letters, then a pair and a letter."""
    letters = string.ascii_lowercase + string.ascii_uppercase + string.digits + string.punctuation
    pairs = [(left, right) for left in letters for right in letters]
    yield from pairs
    yield from ((left + right, letter) for left, right in pairs for letter in letters)


def make_tokenizer(vocabulary: int) -> Tokenizer:
    """Byte-level BPE with exactly ``vocabulary`` tokens: 256 bytes, the end of sequence, and merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = list(islice(merges(), vocabulary - len(alphabet) - 1))
    names = [*alphabet, "</s>", *(left + right for left, right in made)]
    tokenizer = Tokenizer(models.BPE(vocab={name: token for token, name in enumerate(names)}, merges=made))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["</s>"])
    return tokenizer


def prompts(size: str, count: int, length: int, seed: int) -> list[list[int]]:
    """Token ids that no other seed gives, so that no cache can know them."""
    draw = random.Random(seed)
    return [[draw.randrange(EOS + 1, SIZES[size].vocabulary) for _ in range(length)] for _ in range(count)]
