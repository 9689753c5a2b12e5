"""Gemma 2: Gemma with norms before and after, soft caps of scores and logits, a sliding window in every other layer."""

from __future__ import annotations

from dataclasses import replace

from .config import HeadConfig, ModelConfig, NormConfig
from .fields import Fields
from .gemma import scaled_embedding
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
    typed_windows,
    vector,
)

DEFAULTS = Defaults(max_position=8192, kv_heads=4, head_dim=256, eos=(1,), tied=True)


def read(architecture: str, config: Fields, stored_dtype: str) -> tuple[ModelConfig, list[Part]]:
    refuse_flag(config, "use_bidirectional_attention", "attention to later tokens")
    model = read_model(architecture, config, stored_dtype, DEFAULTS)
    model = replace(model, windows=_windows(config, model.layers))
    norm = NormConfig(eps=model.eps, wide=True, offset=1.0)
    act = activation(config, "hidden_activation", "gelu_pytorch_tanh")
    bias, scalar = config.flag("attention_bias"), config.number("query_pre_attn_scalar", 256.0)
    if scalar <= 0:
        raise config.wrong("query_pre_attn_scalar", "a positive number")
    cap = _cap(config, "attn_logit_softcapping", 50.0)
    head = HeadConfig(
        vocabulary=model.vocabulary,
        hidden=model.hidden,
        norm=norm,
        softcap=_cap(config, "final_logit_softcapping", 30.0),
    )

    def layer(i: int) -> list[Part]:
        name = f"model.layers.{i}"
        return [
            (
                attention(model, i, norm, scale=scalar**-0.5, softcap=cap, post_norm=True, qkv_bias=bias, o_bias=bias),
                vector("norm", f"{name}.input_layernorm", model.hidden)
                | attention_roles(model, f"{name}.self_attn", bias, bias)
                | vector("post_norm", f"{name}.post_attention_layernorm", model.hidden),
            ),
            (
                mlp(model, norm, activation=act, post_norm=True),
                vector("norm", f"{name}.pre_feedforward_layernorm", model.hidden)
                | mlp_roles(model, f"{name}.mlp")
                | vector("post_norm", f"{name}.post_feedforward_layernorm", model.hidden),
            ),
        ]

    return model, chain(model, layer, norm, scaled_embedding(model), head)


def _windows(config: Fields, layers: int) -> tuple[int | None, ...]:
    window = None if config.null("sliding_window") else config.integer("sliding_window", 4096)
    return typed_windows(config, window, ["full_attention" if i % 2 else "sliding_attention" for i in range(layers)], layers)


def _cap(config: Fields, key: str, default: float) -> float:
    """Return the cap; 0, no cap, if the file says null."""
    cap = 0.0 if config.null(key) else config.number(key, default)
    if cap < 0 or (cap == 0 and not config.null(key)):
        raise config.wrong(key, "a positive number or null")
    return cap


ARCHITECTURES = (Architecture("Gemma2ForCausalLM", "gemma2", read),)
