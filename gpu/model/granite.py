"""Granite: Llama with multipliers of embeddings, scores and residual sums, and a divisor of logits."""

from __future__ import annotations

from .config import EmbeddingConfig, HeadConfig, ModelConfig, NormConfig
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
    vector,
)

DEFAULTS = Defaults(max_position=2048, eos=(2,))


def read(architecture: str, config: Fields, stored_dtype: str) -> tuple[ModelConfig, list[Part]]:
    model = read_model(architecture, config, stored_dtype, DEFAULTS)
    norm, act = NormConfig(eps=model.eps), activation(config)
    bias, mlp_bias = config.flag("attention_bias"), config.flag("mlp_bias")
    scale, multiplier = config.number("attention_multiplier", 1.0), config.number("residual_multiplier", 1.0)
    embedding = EmbeddingConfig(
        vocabulary=model.vocabulary, hidden=model.hidden, multiplier=config.number("embedding_multiplier", 1.0)
    )
    divisor = config.number("logits_scaling", 1.0)
    if divisor == 0:
        raise config.wrong("logits_scaling", "a number other than 0")
    head = HeadConfig(vocabulary=model.vocabulary, hidden=model.hidden, norm=norm, divisor=divisor)

    def layer(i: int) -> list[Part]:
        name = f"model.layers.{i}"
        return [
            (
                attention(model, i, norm, scale=scale, multiplier=multiplier, qkv_bias=bias, o_bias=bias),
                vector("norm", f"{name}.input_layernorm", model.hidden)
                | attention_roles(model, f"{name}.self_attn", bias, bias),
            ),
            (
                mlp(model, norm, activation=act, multiplier=multiplier, bias=mlp_bias),
                vector("norm", f"{name}.post_attention_layernorm", model.hidden) | mlp_roles(model, f"{name}.mlp", mlp_bias),
            ),
        ]

    return model, chain(model, layer, norm, embedding, head)


ARCHITECTURES = (Architecture("GraniteForCausalLM", "granite", read, scales_inputs=True),)
