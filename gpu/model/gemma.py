"""Gemma 1: Llama with scaled embeddings, norms of 1 + weight in float32, a gate of GELU, a head tied to the embedding."""

from __future__ import annotations

from .config import EmbeddingConfig, ModelConfig, NormConfig
from .fields import Fields
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
    refuse_flag,
    vector,
)

DEFAULTS = Defaults(max_position=8192, kv_heads=16, head_dim=256, eos=(1,), tied=True)


def read(architecture: str, config: Fields, stored_dtype: str) -> tuple[ModelConfig, list[Part]]:
    refuse_flag(config, "use_bidirectional_attention", "attention to later tokens")
    model = read_model(architecture, config, stored_dtype, DEFAULTS)
    norm = NormConfig(eps=model.eps, wide=True, offset=1.0)
    act = activation(config, default="gelu_pytorch_tanh")
    act = "gelu_tanh" if act == "gelu" else act  # the first releases said gelu and meant its tanh form
    bias = config.flag("attention_bias")

    def layer(i: int) -> list[Part]:
        name = f"model.layers.{i}"
        return [
            (
                attention(model, i, norm, qkv_bias=bias, o_bias=bias),
                vector("norm", f"{name}.input_layernorm", model.hidden)
                | attention_roles(model, f"{name}.self_attn", bias, bias),
            ),
            (
                mlp(model, norm, activation=act),
                vector("norm", f"{name}.post_attention_layernorm", model.hidden) | mlp_roles(model, f"{name}.mlp"),
            ),
        ]

    return model, chain(model, layer, norm, scaled_embedding(model))


def scaled_embedding(model: ModelConfig) -> EmbeddingConfig:
    """Return the embedding's configuration: its multiplier is the square root of the width, rounded to the model's type.

    Transformers keeps this multiplier as a tensor and casts it to the weight's type, so Gemma is trained and run with it.
    """
    return EmbeddingConfig(vocabulary=model.vocabulary, hidden=model.hidden, multiplier=model.hidden**0.5, rounded=True)


ARCHITECTURES = (Architecture("GemmaForCausalLM", "gemma", read),)
