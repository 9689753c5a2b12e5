"""GLM-4: half of each head is rotated, by pairs of neighbors; gate and up in one tensor; biases of queries, keys, values.

The later release (Glm4ForCausalLM, GLM-4-0414) also has norms after attention and feed-forward.
"""

from __future__ import annotations

from functools import partial

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
    fused,
    linear,
    mlp,
    read_model,
    vector,
)
from .rope import RopeRules

DEFAULTS = Defaults(
    max_position=131072,
    kv_heads=2,
    head_dim=128,
    eps=1.5625e-7,
    eos=(151329, 151336, 151338),
    rope=RopeRules(partial=0.5, interleaved=True),
)


def read(sandwich: bool, architecture: str, config: Fields, stored_dtype: str) -> tuple[ModelConfig, list[Part]]:
    model = read_model(architecture, config, stored_dtype, DEFAULTS)
    norm = NormConfig(eps=model.eps)
    act = activation(config)
    bias = config.flag("attention_bias", default=True)
    hidden, inner = model.hidden, model.intermediate

    def layer(i: int) -> list[Part]:
        name = f"model.layers.{i}"
        before = vector("norm", f"{name}.input_layernorm", hidden)
        between = vector("norm", f"{name}.post_attention_layernorm", hidden)
        if sandwich:
            before |= vector("post_norm", f"{name}.post_self_attn_layernorm", hidden)
            between |= vector("post_norm", f"{name}.post_mlp_layernorm", hidden)
        return [
            (
                attention(model, i, norm, qkv_bias=bias, post_norm=sandwich),
                before | attention_roles(model, f"{name}.self_attn", bias),
            ),
            (
                mlp(model, norm, activation=act, post_norm=sandwich),
                between
                | fused({"gate": inner, "up": inner}, f"{name}.mlp.gate_up_proj", hidden)
                | linear("down", f"{name}.mlp.down_proj", hidden, inner),
            ),
        ]

    return model, chain(model, layer, norm)


ARCHITECTURES = (
    Architecture("Glm4ForCausalLM", "glm4", partial(read, True)),
    Architecture("GlmForCausalLM", "glm", partial(read, False)),
)
