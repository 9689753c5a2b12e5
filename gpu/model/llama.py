"""Llama and its kin (Mistral, Qwen2): what their config.json means and which tensor plays which role.

Defaults and window rules are those of the configuration classes of transformers 5, so that a checkpoint means the same
here and there. Reads no tensor.
"""

from __future__ import annotations

from dataclasses import dataclass

from blockwright.gpu.errors import CheckpointError
from blockwright.gpu.model.config import (
    AttentionConfig,
    ComponentConfig,
    EmbeddingConfig,
    HeadConfig,
    MlpConfig,
    ModelConfig,
)
from blockwright.gpu.model.fields import Fields
from blockwright.gpu.model.rope import read_rope

# A role's tensor: its name in the checkpoint and its shape.
Roles = dict[str, tuple[str, tuple[int, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Where members of the family differ, as transformers' classes have it."""

    max_position: int
    kv_heads: int | None  # when config.json lacks num_key_value_heads; None: as many as heads
    eos: tuple[int, ...]  # when config.json lacks eos_token_id
    qkv_bias: bool | None  # None: as attention_bias says
    o_bias: bool | None
    mlp_bias: bool | None  # None: as mlp_bias says
    windows: str  # "none" | "all" (sliding_window on every layer) | "typed" (by layer_types)


LLAMA = Family(max_position=2048, kv_heads=None, eos=(2,), qkv_bias=None, o_bias=None, mlp_bias=None, windows="none")
MISTRAL = Family(max_position=131072, kv_heads=8, eos=(2,), qkv_bias=False, o_bias=False, mlp_bias=False, windows="all")
QWEN2 = Family(max_position=32768, kv_heads=32, eos=(), qkv_bias=True, o_bias=False, mlp_bias=False, windows="typed")


def read_config(family: Family, architecture: str, config: Fields, stored_dtype: str) -> ModelConfig:
    """config.json as a ``ModelConfig``; ``stored_dtype`` counts where the file names no dtype."""
    heads = config.integer("num_attention_heads")
    hidden = config.integer("hidden_size")
    layers = config.integer("num_hidden_layers")
    kv_heads = config.integer("num_key_value_heads", _default_kv_heads(family, config, heads))
    max_position = config.integer("max_position_embeddings", family.max_position)
    head_dim = config.integer("head_dim", hidden // heads)
    _check(config, hidden, heads, kv_heads, head_dim)
    return ModelConfig(
        architecture=architecture,
        vocabulary=config.integer("vocab_size"),
        hidden=hidden,
        intermediate=config.integer("intermediate_size"),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        eps=config.number("rms_norm_eps", 1e-6),
        rope=read_rope(config, max_position),
        windows=_windows(family, config, layers),
        max_position=max_position,
        dtype=(config.text("dtype") or config.text("torch_dtype") or stored_dtype).removeprefix("torch."),
        qkv_bias=config.flag("attention_bias") if family.qkv_bias is None else family.qkv_bias,
        o_bias=config.flag("attention_bias") if family.o_bias is None else family.o_bias,
        mlp_bias=config.flag("mlp_bias") if family.mlp_bias is None else family.mlp_bias,
        tied=config.flag("tie_word_embeddings"),
        bos_token_id=(config.token_ids("bos_token_id") or (None,))[0],
        eos_token_ids=config.token_ids("eos_token_id", family.eos),
    )


def _default_kv_heads(family: Family, config: Fields, heads: int) -> int:
    # transformers: an explicit null means as many as heads, a missing key the default of the class
    explicit_null = "num_key_value_heads" in config.values
    return heads if family.kv_heads is None or explicit_null else family.kv_heads


def _check(config: Fields, hidden: int, heads: int, kv_heads: int, head_dim: int) -> None:
    activation = config.text("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise CheckpointError(
            f"{config.source}: hidden_act {activation!r} is not supported, only 'silu' is; use another checkpoint"
        )
    if not config.has("head_dim") and hidden % heads:
        raise CheckpointError(
            f"{config.source}: hidden_size {hidden} is no multiple of num_attention_heads {heads}; correct the file"
        )
    if heads % kv_heads:
        raise CheckpointError(
            f"{config.source}: num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}; "
            "correct the file"
        )
    if head_dim % 2:
        raise CheckpointError(f"{config.source}: head_dim {head_dim} is odd, rotary embeddings need pairs; correct the file")


def _windows(family: Family, config: Fields, layers: int) -> tuple[int | None, ...]:
    """The sliding window of each layer, by the rules of transformers' configuration classes."""
    if family.windows == "none":
        return (None,) * layers
    given = "sliding_window" in config.values  # both classes default to 4096; an explicit null means none
    window = config.integer("sliding_window") if config.has("sliding_window") else None if given else 4096
    if family.windows == "all":
        return (window,) * layers
    if not config.flag("use_sliding_window"):
        window = None
    if not config.has("layer_types"):
        first = config.integer("max_window_layers", 28, least=0)
        return tuple(window if i >= first else None for i in range(layers))
    types = config.values["layer_types"]
    if not isinstance(types, list) or len(types) != layers:
        raise config.wrong("layer_types", f"a list of {layers} layer types")
    for name in types:
        if name not in ("full_attention", "sliding_attention", "attention"):
            raise CheckpointError(f"{config.source}: layer type {name!r} is not supported; use another checkpoint")
        if name == "sliding_attention" and window is None:
            raise CheckpointError(
                f"{config.source}: layer_types has sliding_attention but no window is in use; "
                "set use_sliding_window and sliding_window"
            )
    return tuple(window if name == "sliding_attention" else None for name in types)


def components(model: ModelConfig) -> list[tuple[ComponentConfig, Roles]]:
    """The chain: embedding, (attention, feed-forward) per layer, head, each with the tensors that it is made of."""
    hidden, vocabulary = model.hidden, model.vocabulary
    embedding: Roles = {"weight": ("model.embed_tokens.weight", (vocabulary, hidden))}
    chain: list[tuple[ComponentConfig, Roles]] = [(EmbeddingConfig(vocabulary=vocabulary, hidden=hidden), embedding)]
    for layer in range(model.layers):
        chain.append(_attention(model, layer))
        chain.append(_mlp(model, layer))
    head: Roles = {"norm": ("model.norm.weight", (hidden,)), "weight": ("lm_head.weight", (vocabulary, hidden))}
    chain.append((HeadConfig(vocabulary=vocabulary, hidden=hidden, eps=model.eps), head))
    return chain


def _attention(model: ModelConfig, layer: int) -> tuple[AttentionConfig, Roles]:
    prefix, hidden = f"model.layers.{layer}", model.hidden
    wide, narrow = model.heads * model.head_dim, model.kv_heads * model.head_dim
    roles: Roles = {"norm": (f"{prefix}.input_layernorm.weight", (hidden,))}
    for role, rows in (("q", wide), ("k", narrow), ("v", narrow)):
        roles[role] = (f"{prefix}.self_attn.{role}_proj.weight", (rows, hidden))
        if model.qkv_bias:
            roles[f"{role}_bias"] = (f"{prefix}.self_attn.{role}_proj.bias", (rows,))
    roles["o"] = (f"{prefix}.self_attn.o_proj.weight", (hidden, wide))
    if model.o_bias:
        roles["o_bias"] = (f"{prefix}.self_attn.o_proj.bias", (hidden,))
    config = AttentionConfig(
        hidden=hidden,
        heads=model.heads,
        kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        eps=model.eps,
        rope=model.rope,
        window=model.windows[layer],
        qkv_bias=model.qkv_bias,
        o_bias=model.o_bias,
    )
    return config, roles


def _mlp(model: ModelConfig, layer: int) -> tuple[MlpConfig, Roles]:
    prefix, hidden, inner = f"model.layers.{layer}", model.hidden, model.intermediate
    roles: Roles = {"norm": (f"{prefix}.post_attention_layernorm.weight", (hidden,))}
    for role, shape in (("gate", (inner, hidden)), ("up", (inner, hidden)), ("down", (hidden, inner))):
        roles[role] = (f"{prefix}.mlp.{role}_proj.weight", shape)
        if model.mlp_bias:
            roles[f"{role}_bias"] = (f"{prefix}.mlp.{role}_proj.bias", shape[:1])
    return MlpConfig(hidden=hidden, intermediate=inner, eps=model.eps, bias=model.mlp_bias), roles
