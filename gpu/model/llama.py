"""Llama and its relatives: Llama 1 to 3.1, Vicuna, Mistral, Qwen2 and 2.5."""

from __future__ import annotations

from dataclasses import dataclass, replace
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
    mlp,
    mlp_roles,
    read_model,
    typed_windows,
    vector,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaVariant:
    """The differences between members of the family, as in transformers' classes."""

    defaults: Defaults
    qkv_bias: bool | None  # None: taken from attention_bias
    o_bias: bool | None
    mlp_bias: bool | None  # None: taken from mlp_bias
    windows: str  # "none" | "all" (sliding_window on every layer) | "typed" (by layer_types)


LLAMA = LlamaVariant(
    defaults=Defaults(max_position=2048, eos=(2,)), qkv_bias=None, o_bias=None, mlp_bias=None, windows="none"
)
MISTRAL = LlamaVariant(
    defaults=Defaults(max_position=131072, kv_heads=8, eos=(2,)),
    qkv_bias=False,
    o_bias=False,
    mlp_bias=False,
    windows="all",
)
QWEN2 = LlamaVariant(
    defaults=Defaults(max_position=32768, kv_heads=32), qkv_bias=True, o_bias=False, mlp_bias=False, windows="typed"
)


def read(family: LlamaVariant, architecture: str, config: Fields, stored_dtype: str) -> tuple[ModelConfig, list[Part]]:
    model = read_model(architecture, config, stored_dtype, family.defaults)
    model = replace(model, windows=_windows(family, config, model.layers))
    qkv_bias = config.flag("attention_bias") if family.qkv_bias is None else family.qkv_bias
    o_bias = config.flag("attention_bias") if family.o_bias is None else family.o_bias
    mlp_bias = config.flag("mlp_bias") if family.mlp_bias is None else family.mlp_bias
    norm, act = NormConfig(eps=model.eps), activation(config)

    def layer(i: int) -> list[Part]:
        name = f"model.layers.{i}"
        return [
            (
                attention(model, i, norm, qkv_bias=qkv_bias, o_bias=o_bias),
                vector("norm", f"{name}.input_layernorm", model.hidden)
                | attention_roles(model, f"{name}.self_attn", qkv_bias, o_bias),
            ),
            (
                mlp(model, norm, activation=act, bias=mlp_bias),
                vector("norm", f"{name}.post_attention_layernorm", model.hidden) | mlp_roles(model, f"{name}.mlp", mlp_bias),
            ),
        ]

    return model, chain(model, layer, norm)


def _windows(family: LlamaVariant, config: Fields, layers: int) -> tuple[int | None, ...]:
    if family.windows == "none":
        return (None,) * layers
    if family.windows == "typed":
        return switched_windows(config, layers)
    return (_window(config),) * layers


def _window(config: Fields) -> int | None:
    given = "sliding_window" in config.values  # both classes default to 4096; an explicit null means none
    return config.integer("sliding_window") if config.has("sliding_window") else None if given else 4096


def switched_windows(config: Fields, layers: int) -> tuple[int | None, ...]:
    """Return the windows by Qwen's rule.

    use_sliding_window switches windows on, from layer max_window_layers up if no types are listed.
    """
    window = _window(config) if config.flag("use_sliding_window") else None
    first = config.integer("max_window_layers", 28, least=0) if window is not None else layers
    types = ["sliding_attention" if i >= first else "full_attention" for i in range(layers)]
    return typed_windows(config, window, types, layers)


ARCHITECTURES = (
    Architecture("LlamaForCausalLM", "llama", partial(read, LLAMA)),
    Architecture("LLaMAForCausalLM", "llama", partial(read, LLAMA)),  # spelling of the first conversions
    Architecture("MistralForCausalLM", "mistral", partial(read, MISTRAL)),
    Architecture("Qwen2ForCausalLM", "qwen2", partial(read, QWEN2)),
)
