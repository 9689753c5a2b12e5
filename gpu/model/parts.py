"""Building blocks of the architectures' files: the fields that all share, and tensors by role under their usual names.

An architecture's file reads config.json with these and lists its components; nothing here knows an architecture by name.
Defaults and rules are the same as in the configuration classes of transformers 5, so that a checkpoint means the same in
both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import CheckpointError
from .config import (
    MAX_HEAD_DIM,
    AttentionConfig,
    ComponentConfig,
    EmbeddingConfig,
    HeadConfig,
    MlpConfig,
    ModelConfig,
    NormConfig,
)
from .fields import Fields, shown
from .rope import PLAIN_ROPE, RopeRules, read_rope

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_fast": "gelu_fast",
    "gelu_pytorch_tanh": "gelu_tanh",
}


@dataclass(frozen=True, slots=True)
class Source:
    """The tensor of a role: its name in the checkpoint, its shape there, and which of its rows (all, unless it is fused)."""

    name: str
    shape: tuple[int, ...]
    rows: tuple[int, int, int] | None = None  # first, count, period: count rows of every period, from first on


Roles = dict[str, Source]
Part = tuple[ComponentConfig, Roles]
Reader = Callable[[str, Fields, str], tuple[ModelConfig, list[Part]]]


@dataclass(frozen=True, slots=True)
class Architecture:
    """A supported architecture.

    ``read(name, config, stored dtype)`` returns the model and its chain; a tied pair of tensors shares one weight.
    """

    name: str  # as in config.json's architectures
    model_type: str  # used if config.json has no architectures
    read: Reader
    embedding: str = "model.embed_tokens.weight"
    head: str = "lm_head.weight"
    head_module: str = ""  # its name in transformers 5, if the files use another one
    scales_inputs: bool = False  # the embedding's multiplier is applied by the model, so virtual tokens get it too


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """Values for keys that config.json lacks, and the names of some keys."""

    max_position: int
    kv_heads: int | None = None  # None: same as heads
    head_dim: int | None = None  # None: hidden_size / num_attention_heads
    eps: float = 1e-6
    eps_key: str = "rms_norm_eps"
    eos: tuple[int, ...] = ()
    tied: bool = False
    rope: RopeRules = PLAIN_ROPE


def read_model(architecture: str, config: Fields, stored_dtype: str, defaults: Defaults) -> ModelConfig:
    """Read the part of config.json that all architectures share; no windows.

    ``stored_dtype`` applies if the file names no dtype.
    """
    heads, hidden, layers = map(config.integer, ("num_attention_heads", "hidden_size", "num_hidden_layers"))
    # as in transformers: an explicit null means as many as heads, a missing key the default of the class
    missing = "num_key_value_heads" not in config.values
    kv_heads = config.integer("num_key_value_heads", (defaults.kv_heads or heads) if missing else heads)
    max_position = config.integer("max_position_embeddings", defaults.max_position)
    head_dim = config.integer("head_dim", defaults.head_dim or hidden // heads)
    _check_heads(config, hidden, heads, kv_heads, head_dim, derived=not (config.has("head_dim") or defaults.head_dim))
    return ModelConfig(
        architecture=architecture,
        vocabulary=config.integer("vocab_size"),
        hidden=hidden,
        intermediate=config.integer("intermediate_size"),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        eps=config.number_within(defaults.eps_key, defaults.eps, 0.0, 1.0),
        rope=read_rope(config, max_position, head_dim, defaults.rope),
        windows=(None,) * layers,
        max_position=max_position,
        dtype=(config.text("dtype") or config.text("torch_dtype") or stored_dtype).removeprefix("torch."),
        tied=config.flag("tie_word_embeddings", defaults.tied),
        bos_token_id=(config.token_ids("bos_token_id") or (None,))[0],
        eos_token_ids=config.token_ids("eos_token_id", defaults.eos),
    )


def _check_heads(config: Fields, hidden: int, heads: int, kv_heads: int, head_dim: int, derived: bool) -> None:
    if derived and hidden % heads:
        raise CheckpointError(
            f"{config.source}: hidden_size {hidden} is no multiple of num_attention_heads {heads}; correct the file"
        )
    if heads % kv_heads:
        raise CheckpointError(
            f"{config.source}: num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}; "
            "correct the file"
        )
    if head_dim > MAX_HEAD_DIM:
        raise CheckpointError(
            f"{config.source}: head_dim {head_dim} is not supported, only up to {MAX_HEAD_DIM}; use another checkpoint"
        )
    if head_dim % 2:
        raise CheckpointError(f"{config.source}: head_dim {head_dim} is odd, rotary embeddings need pairs; correct the file")


def activation(config: Fields, key: str = "hidden_act", default: str = "silu") -> str:
    """Return the activation that ``key`` names, under our name."""
    name = config.text(key, default)
    if name not in ACTIVATIONS:
        raise CheckpointError(
            f"{config.source}: {key} {shown(name)} is not supported (there are: {', '.join(ACTIVATIONS)}); "
            "use another checkpoint"
        )
    return ACTIVATIONS[name]


def refuse_flag(config: Fields, key: str, why: str) -> None:
    """Refuse a flag that would change the answers and is not supported here."""
    if config.flag(key):
        raise CheckpointError(f"{config.source}: {key} is true, {why} is not supported; use another checkpoint")


def typed_windows(config: Fields, window: int | None, types: list[Any], layers: int) -> tuple[int | None, ...]:
    """Return the sliding window of each layer by its type. ``types`` apply if config.json lacks layer_types."""
    if config.has("layer_types"):
        types = config.values["layer_types"]
    if not isinstance(types, list) or len(types) != layers:
        raise config.wrong("layer_types", f"a list of {layers} layer types")
    for name in types:
        if name not in ("full_attention", "sliding_attention", "attention"):
            raise CheckpointError(f"{config.source}: layer type {shown(name)} is not supported; use another checkpoint")
        if name == "sliding_attention" and window is None:
            raise CheckpointError(
                f"{config.source}: layer_types has sliding_attention but no window is in use; "
                "set sliding_window (and use_sliding_window where the model has it)"
            )
    return tuple(window if name == "sliding_attention" else None for name in types)


def attention(model: ModelConfig, layer: int, norm: NormConfig, **fields: Any) -> AttentionConfig:
    """Return the attention of ``model``. ``fields`` of ``AttentionConfig`` say where it differs from Llama's."""
    values = {"rope": model.rope, "scale": model.head_dim**-0.5, "window": model.windows[layer], **fields}
    return AttentionConfig(
        hidden=model.hidden, heads=model.heads, kv_heads=model.kv_heads, head_dim=model.head_dim, norm=norm, **values
    )


def attention_roles(model: ModelConfig, prefix: str, qkv_bias: bool = False, o_bias: bool = False) -> Roles:
    """Return q, k, v and o under their usual names."""
    wide, narrow = model.heads * model.head_dim, model.kv_heads * model.head_dim
    roles: Roles = {}
    for role, rows in (("q", wide), ("k", narrow), ("v", narrow)):
        roles |= linear(role, f"{prefix}.{role}_proj", rows, model.hidden, qkv_bias)
    return roles | linear("o", f"{prefix}.o_proj", model.hidden, wide, o_bias)


def mlp_roles(model: ModelConfig, prefix: str, bias: bool = False) -> Roles:
    """Return gate, up and down under their usual names."""
    hidden, inner = model.hidden, model.intermediate
    roles: Roles = {}
    for role in ("gate", "up"):
        roles |= linear(role, f"{prefix}.{role}_proj", inner, hidden, bias)
    return roles | linear("down", f"{prefix}.down_proj", hidden, inner, bias)


def linear(role: str, name: str, rows: int, width: int, bias: bool = False) -> Roles:
    """Return a projection [rows, width], and its bias."""
    weight: Roles = {role: Source(f"{name}.weight", (rows, width))}
    return weight | ({f"{role}_bias": Source(f"{name}.bias", (rows,))} if bias else {})


def fused(roles: dict[str, int], name: str, width: int) -> Roles:
    """Return projections that follow each other in one tensor. ``roles`` has the number of rows of each."""
    total = sum(roles.values())
    first = 0
    sources = {}
    for role, rows in roles.items():
        sources[role] = Source(f"{name}.weight", (total, width), (first, rows, total))
        first += rows
    return sources


def vector(role: str, name: str, size: int) -> Roles:
    """Return a norm's weight."""
    return {role: Source(f"{name}.weight", (size,))}


def chain(
    model: ModelConfig,
    layer: Callable[[int], list[Part]],
    norm: NormConfig,
    embedding: EmbeddingConfig | None = None,
    head: HeadConfig | None = None,
) -> list[Part]:
    """Return the whole chain under the usual names: embedding, the components of each layer, head."""
    hidden, vocabulary = model.hidden, model.vocabulary
    first = embedding or EmbeddingConfig(vocabulary=vocabulary, hidden=hidden)
    last = head or HeadConfig(vocabulary=vocabulary, hidden=hidden, norm=norm)
    parts: list[Part] = [(first, {"weight": Source("model.embed_tokens.weight", (vocabulary, hidden))})]
    for i in range(model.layers):
        parts += layer(i)
    roles = vector("norm", "model.norm", hidden) | {"weight": Source("lm_head.weight", (vocabulary, hidden))}
    return [*parts, (last, roles)]


def mlp(model: ModelConfig, norm: NormConfig, **fields: Any) -> MlpConfig:
    """Return the feed-forward of ``model``. ``fields`` of ``MlpConfig`` say where it differs from Llama's."""
    return MlpConfig(hidden=model.hidden, intermediate=model.intermediate, norm=norm, **fields)
