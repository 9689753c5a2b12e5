"""GPT-NeoX and Pythia: layer norms with bias; queries, keys and values interleaved by head in one tensor; no gate.

With use_parallel_residual (the default) attention and feed-forward of a layer read the same hidden state and are one
component.
"""

from __future__ import annotations

from .config import EmbeddingConfig, HeadConfig, ModelConfig, NormConfig, ParallelConfig
from .fields import Fields
from .parts import (
    Architecture,
    Defaults,
    Part,
    Roles,
    Source,
    activation,
    attention,
    linear,
    mlp,
    read_model,
    vector,
)
from .rope import RopeRules

ROPE = RopeRules(theta_key="rotary_emb_base", partial=0.25, partial_key="rotary_pct")
DEFAULTS = Defaults(max_position=2048, eps=1e-5, eps_key="layer_norm_eps", eos=(2,), rope=ROPE)
EMBEDDING, HEAD = "gpt_neox.embed_in.weight", "embed_out.weight"


def read(architecture: str, config: Fields, stored_dtype: str) -> tuple[ModelConfig, list[Part]]:
    # transformers ignores these here: every head has keys and values of its own, and heads share the width
    config = Fields(config.source, {k: v for k, v in config.values.items() if k not in ("num_key_value_heads", "head_dim")})
    model = read_model(architecture, config, stored_dtype, DEFAULTS)
    hidden = model.hidden
    inner = model.intermediate
    vocabulary = model.vocabulary
    norm = NormConfig(kind="layer", eps=model.eps)
    act, bias = activation(config, default="gelu"), config.flag("attention_bias", default=True)
    parallel = config.flag("use_parallel_residual", default=True)
    parts: list[Part] = [
        (EmbeddingConfig(vocabulary=vocabulary, hidden=hidden), {"weight": Source(EMBEDDING, (vocabulary, hidden))})
    ]
    for i in range(model.layers):
        name = f"gpt_neox.layers.{i}"
        first = attention(model, i, norm, qkv_bias=bias, o_bias=bias)
        first_roles = (
            _norm(f"{name}.input_layernorm", hidden)
            | _interleaved(model, f"{name}.attention.query_key_value", bias)
            | linear("o", f"{name}.attention.dense", hidden, hidden, bias)
        )
        second = mlp(model, norm, activation=act, gated=False, bias=True)
        second_roles = (
            _norm(f"{name}.post_attention_layernorm", hidden)
            | linear("up", f"{name}.mlp.dense_h_to_4h", inner, hidden, bias=True)
            | linear("down", f"{name}.mlp.dense_4h_to_h", hidden, inner, bias=True)
        )
        if parallel:
            both = first_roles | {f"mlp.{role}": source for role, source in second_roles.items()}
            parts.append((ParallelConfig(attention=first, mlp=second), both))
        else:
            parts += [(first, first_roles), (second, second_roles)]
    head = _norm("gpt_neox.final_layer_norm", hidden) | {"weight": Source(HEAD, (vocabulary, hidden))}
    return model, [*parts, (HeadConfig(vocabulary=vocabulary, hidden=hidden, norm=norm), head)]


def _norm(name: str, size: int) -> Roles:
    return vector("norm", name, size) | {"norm_bias": Source(f"{name}.bias", (size,))}


def _interleaved(model: ModelConfig, name: str, bias: bool) -> Roles:
    """Return q, k and v of a tensor in which each head's query, key and value follow each other."""
    roles: Roles = {}
    size, rows = model.head_dim, 3 * model.hidden
    for place, role in enumerate("qkv"):
        part = (place * size, size, 3 * size)
        roles[role] = Source(f"{name}.weight", (rows, model.hidden), part)
        if bias:
            roles[f"{role}_bias"] = Source(f"{name}.bias", (rows,), part)
    return roles


ARCHITECTURES = (Architecture("GPTNeoXForCausalLM", "gpt_neox", read, EMBEDDING, HEAD, head_module="lm_head"),)
