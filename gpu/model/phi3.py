"""Phi-3: Llama with queries, keys and values in one tensor, gate and up in another, a sliding window, longrope.

Longrope has two sets of factors. As soon as a sequence is longer than original_max_position_embeddings, transformers
switches to the long factors and computes all of the sequence again. Here sequences end there.
"""

from __future__ import annotations

from dataclasses import replace

from .config import ModelConfig, NormConfig
from .fields import Fields
from .parts import (
    Architecture,
    Defaults,
    Part,
    activation,
    attention,
    chain,
    fused,
    linear,
    mlp,
    read_model,
    vector,
)
from .rope import RopeRules

ROPE = RopeRules(kinds=("default", "longrope"), aliases=("su", "yarn"), partial=1.0, original_max_position=4096)
DEFAULTS = Defaults(max_position=4096, eps=1e-5, eos=(32000,), rope=ROPE)


def read(architecture: str, config: Fields, stored_dtype: str) -> tuple[ModelConfig, list[Part]]:
    model = read_model(architecture, config, stored_dtype, DEFAULTS)
    window = config.integer("sliding_window") if config.has("sliding_window") else None
    longest = min(model.max_position, model.rope.original_max_position or model.max_position)
    model = replace(model, windows=(window,) * model.layers, max_position=longest)
    norm, act = NormConfig(eps=model.eps), activation(config)
    wide = model.heads * model.head_dim
    narrow = model.kv_heads * model.head_dim
    inner = model.intermediate

    def layer(i: int) -> list[Part]:
        name = f"model.layers.{i}"
        return [
            (
                attention(model, i, norm),
                vector("norm", f"{name}.input_layernorm", model.hidden)
                | fused({"q": wide, "k": narrow, "v": narrow}, f"{name}.self_attn.qkv_proj", model.hidden)
                | linear("o", f"{name}.self_attn.o_proj", model.hidden, wide),
            ),
            (
                mlp(model, norm, activation=act),
                vector("norm", f"{name}.post_attention_layernorm", model.hidden)
                | fused({"gate": inner, "up": inner}, f"{name}.mlp.gate_up_proj", model.hidden)
                | linear("down", f"{name}.mlp.down_proj", model.hidden, inner),
            ),
        ]

    return model, chain(model, layer, norm)


ARCHITECTURES = (Architecture("Phi3ForCausalLM", "phi3", read),)
