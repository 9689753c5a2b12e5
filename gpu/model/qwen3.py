"""Qwen3: Llama with a norm of every head of queries and keys."""

from __future__ import annotations

from dataclasses import replace

from .config import ModelConfig, NormConfig
from .fields import Fields
from .llama import switched_windows
from .parts import (
    Architecture,
    Defaults,
    Part,
    activation,
    attention,
    attention_roles,
    chain,
    mlp,
    mlp_roles,
    read_model,
    vector,
)

DEFAULTS = Defaults(max_position=32768, kv_heads=32, head_dim=128)


def read(architecture: str, config: Fields, stored_dtype: str) -> tuple[ModelConfig, list[Part]]:
    model = read_model(architecture, config, stored_dtype, DEFAULTS)
    model = replace(model, windows=switched_windows(config, model.layers))
    bias = config.flag("attention_bias")
    norm = NormConfig(eps=model.eps)
    act = activation(config)

    def layer(i: int) -> list[Part]:
        name = f"model.layers.{i}"
        return [
            (
                attention(model, i, norm, qkv_bias=bias, o_bias=bias, qk_norm="head"),
                vector("norm", f"{name}.input_layernorm", model.hidden)
                | attention_roles(model, f"{name}.self_attn", bias, bias)
                | vector("q_norm", f"{name}.self_attn.q_norm", model.head_dim)
                | vector("k_norm", f"{name}.self_attn.k_norm", model.head_dim),
            ),
            (
                mlp(model, norm, activation=act),
                vector("norm", f"{name}.post_attention_layernorm", model.hidden) | mlp_roles(model, f"{name}.mlp"),
            ),
        ]

    return model, chain(model, layer, norm)


ARCHITECTURES = (Architecture("Qwen3ForCausalLM", "qwen3", read),)
