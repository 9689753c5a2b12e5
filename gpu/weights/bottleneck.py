"""Bottleneck adapters in the format of AdapterHub's ``adapters`` library: ``BnConfig``, as it is computed for Llama.

Configuration and names of tensors are the library's (Poth et al., "Adapters", 2023): ``config`` in adapter_config.json, and
``...layers.<i>.<attention|output>_adapters.adapters.<name>.adapter_<down.0|up>.<weight|bias>``. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from ..errors import CheckpointError
from ..model.config import AttentionConfig, MlpConfig, TensorRef
from ..model.deltas import Bottleneck, DeltaConfig
from ..model.fields import Fields, named, shown
from ..model.registry import ARCHITECTURES
from .checkpoint import Checkpoint, DeltaPart

WEIGHTS, PICKLE = "adapter.safetensors", "pytorch_adapter.bin"
# Fields that describe the training, or matter only with options that are refused.
IGNORED = frozenset(
    {
        "init_weights", "dropout", "stochastic_depth", "adapter_residual_before_ln", "inv_adapter_reduction_factor",
        "phm_dim", "factorized_phm_W", "shared_W_phm", "shared_phm_rule", "factorized_phm_rule", "phm_c_init",
        "phm_init_range", "learn_phm", "hypercomplex_nonlinearity", "phm_rank", "phm_bias",
    }
)  # fmt: skip
READ = frozenset(
    {
        "mh_adapter", "output_adapter", "reduction_factor", "non_linearity", "original_ln_before", "original_ln_after",
        "residual_before_ln", "is_parallel", "scaling", "leave_out",
    }
)  # fmt: skip
ACTIVATIONS = {
    "relu": "relu", "swish": "silu", "silu": "silu", "gelu": "gelu", "gelu_new": "gelu_new", "gelu_fast": "gelu_fast",
    "gelu_pytorch_tanh": "gelu_tanh",
}  # fmt: skip
NAME = re.compile(
    r"(?:\w+\.)?layers\.(\d{1,9})\.(attention|output)_adapters\.adapters\.([^.]+)\.adapter_(down\.0|up)\.(weight|bias)"
)
ROLES = {"down.0weight": "down", "down.0bias": "down_bias", "upweight": "up", "upbias": "up_bias"}
# Families for which the library puts bottlenecks before the norm that follows a component. A bottleneck that reads the sum
# reads it there through that norm of the last layer, in every layer: the library's closures share one variable.
BEFORE_NORM = ("gemma2",)
NORMED = "AdapterHub's adapters library has it read through a norm, of the last layer in all (original_ln_before is true)"
BASE = "name the base that the adapter was trained on"
LARGEST_SCALE = 1e9
LARGEST_WIDTH = 4096


def read_bottlenecks(file: Path, fields: Fields, tensors: dict[str, TensorRef], base: Checkpoint) -> dict[int, DeltaPart]:
    """Return the deltas by place in the chain. ``tensors`` are the ones of ``file``. Raises CheckpointError."""
    config = fields.object("config")
    assert config is not None, "it is what says that the folder is an adapter of this kind"
    reads, scale = _read(config), config.number_within("scaling", 1.0, -LARGEST_SCALE, LARGEST_SCALE)
    if (hidden := fields.integer("hidden_size", base.config.hidden)) != base.config.hidden:
        raise CheckpointError(
            f"{fields.source}: hidden_size is {hidden}, but the base {base.label} asks for {base.config.hidden}; {BASE}"
        )
    family = ARCHITECTURES[base.config.architecture].model_type
    if (model_type := fields.text("model_type", family)) != family:
        raise CheckpointError(
            f"{fields.source}: model_type is {shown(model_type)}, but the base {base.label} is of {family}; {BASE}"
        )
    places, deltas = _places(config, reads, base), dict[int, DeltaPart]()
    for (layer, where), refs in _sorted(file, tensors, places.keys()).items():
        width = _width(config, layer, base.config.hidden)
        shapes = {"down": (width, hidden), "down_bias": (width,), "up": (hidden, width), "up_bias": (hidden,)}
        for role, ref in refs.items():
            if ref.shape != shapes[role]:
                raise CheckpointError(
                    f"{file}: tensor {named(ref.name)} has shape {list(ref.shape)} where reduction_factor and the base "
                    f"{base.label} ask for {list(shapes[role])}; {BASE}, or correct reduction_factor"
                )
        activation = ACTIVATIONS[config.text("non_linearity")]
        bottleneck = Bottleneck(width=width, activation=activation, reads=reads, scale=scale)
        deltas[places[layer, where]] = DeltaConfig(bottleneck=bottleneck), refs
    return deltas


def _read(config: Fields) -> str:
    """Return what the bottlenecks read. The library's options are checked in the order in which it evaluates them."""
    for key, value in config.values.items():
        if key not in IGNORED and key not in READ and value not in (None, False, [], {}, ""):
            raise CheckpointError(
                f"{config.source}: {named(key)} is {shown(value)}, which is not supported; train the adapter without it"
            )
    if config.text("non_linearity") not in ACTIVATIONS:
        raise config.wrong("non_linearity", f"one of {', '.join(ACTIVATIONS)}")
    before = config.flag("original_ln_before")
    after = config.flag("original_ln_after", True)
    apart = config.flag("is_parallel")
    inner = config.values.get("residual_before_ln", True)
    if inner not in (True, False):
        raise config.wrong("residual_before_ln", "true or false")
    if after == (before and not inner and not apart):
        raise config.wrong("original_ln_after", "what adds the residual once, with the options beside it")
    if apart:
        return "input"
    return "sum" if before else "output"


def _places(config: Fields, reads: str, base: Checkpoint) -> dict[tuple[int, str], int]:
    """Return the place of a component in the chain, by layer and by what the adapter follows."""
    left = config.values.get("leave_out") or []
    if not isinstance(left, list) or not all(type(layer) is int for layer in left):
        raise config.wrong("leave_out", "a list of layers")
    family = ARCHITECTURES[base.config.architecture].model_type
    found: dict[tuple[int, str], int] = {}
    for where, flag, kind in (("attention", "mh_adapter", AttentionConfig), ("output", "output_adapter", MlpConfig)):
        if not config.flag(flag):
            continue
        parts = [(place, part) for place, (part, _) in enumerate(base.parts) if isinstance(part, kind)]
        plain = len(parts) == base.config.layers and not any(part.post_norm or part.multiplier != 1.0 for _, part in parts)
        if not plain and (family not in BEFORE_NORM or reads == "sum"):
            why = NORMED if family in BEFORE_NORM else f"AdapterHub's adapters library has none for {family} models"
            raise CheckpointError(f"{config.source}: {flag} is not supported for {base.label}: {why}; train a LoRA")
        found |= {(layer, where): place for layer, (place, _) in enumerate(parts) if layer not in left}
    if not found:
        raise CheckpointError(f"{config.source}: mh_adapter, output_adapter and leave_out leave no adapter; save it again")
    return found


def _sorted(
    file: Path, tensors: dict[str, TensorRef], wanted: Collection[tuple[int, str]]
) -> dict[tuple[int, str], dict[str, TensorRef]]:
    """Return the tensors by their places and roles. Checks that they are exactly what the configuration asks for."""
    found: dict[tuple[int, str], dict[str, TensorRef]] = {place: {} for place in wanted}
    names = set()
    for name, ref in tensors.items():
        parts = NAME.fullmatch(name)
        place = (int(parts[1]), parts[2]) if parts else (-1, "")
        if parts is None or place not in found:
            raise CheckpointError(
                f"{file}: tensor {named(name)} belongs to no bottleneck that the configuration and the base have; {BASE}, "
                "or use the adapter_config.json that was saved with the weights"
            )
        names.add(parts[3])
        found[place][ROLES[parts[4] + parts[5]]] = ref
    if len(names) > 1:
        raise CheckpointError(
            f"{file} has adapters {', '.join(map(named, sorted(names)))}; save each in a folder of its own"
        )
    for (layer, where), refs in found.items():
        if missing := sorted(set(ROLES.values()) - refs.keys()):
            raise CheckpointError(
                f"{file} lacks {missing[0]} of the adapter behind the {where} of layer {layer}; save the adapter again"
            )
    return found


def _width(config: Fields, layer: int, hidden: int) -> int:
    """Return the width of a layer's bottlenecks."""
    factor = config.values.get("reduction_factor")
    if isinstance(factor, dict):
        key = str(layer) if str(layer) in factor else "default"
        value = Fields(f"{config.source}: reduction_factor", factor).number_within(key, 0.0, 0.0, LARGEST_SCALE)
    else:
        value = config.number_within("reduction_factor", 0.0, 0.0, LARGEST_SCALE)
    if not hidden / LARGEST_WIDTH <= value:
        raise config.wrong("reduction_factor", f"a number, for layer {layer}, that leaves 1 to {LARGEST_WIDTH} columns")
    return max(1, int(hidden // value))
