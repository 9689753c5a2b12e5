"""OLMo-2: norms after attention and feed-forward, not before; queries and keys normed over all heads; wide rotary."""

from __future__ import annotations

from .config import ModelConfig, NormConfig
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
from .rope import RopeRules

DEFAULTS = Defaults(max_position=2048, eps=1e-5, eos=(50279,), rope=RopeRules(wide=True))


def read(architecture: str, config: Fields, stored_dtype: str) -> tuple[ModelConfig, list[Part]]:
    model = read_model(architecture, config, stored_dtype, DEFAULTS)
    norm, act = NormConfig(eps=model.eps, wide=True), activation(config)
    bias = config.flag("attention_bias")
    wide, narrow = model.heads * model.head_dim, model.kv_heads * model.head_dim

    def layer(i: int) -> list[Part]:
        name = f"model.layers.{i}"
        return [
            (
                attention(model, i, norm, pre_norm=False, post_norm=True, qk_norm="whole", qkv_bias=bias, o_bias=bias),
                attention_roles(model, f"{name}.self_attn", bias, bias)
                | vector("q_norm", f"{name}.self_attn.q_norm", wide)
                | vector("k_norm", f"{name}.self_attn.k_norm", narrow)
                | vector("post_norm", f"{name}.post_attention_layernorm", model.hidden),
            ),
            (
                mlp(model, norm, activation=act, pre_norm=False, post_norm=True),
                mlp_roles(model, f"{name}.mlp") | vector("post_norm", f"{name}.post_feedforward_layernorm", model.hidden),
            ),
        ]

    return model, chain(model, layer, norm)


ARCHITECTURES = (Architecture("Olmo2ForCausalLM", "olmo2", read),)
