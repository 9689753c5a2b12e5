"""LoRA rules from PEFT's adapter_config.json: modules, rank, scale, and refused options.

The rules are the same as in peft's ``LoraConfig``, ``check_target_module_exists`` and ``get_pattern_key``. Standard library
only. ``gpu/cpu/reference/deltas.py`` and ``gpu/cpu/kernels/deltas.h`` apply the delta in a forward pass.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

from ..errors import CheckpointError
from ..model.config import TensorRef
from ..model.fields import Fields, named, shown
from .patterns import is_plain, matches

# Fields that only training uses, or that do not affect the answers.
IGNORED = frozenset(
    {
        "peft_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode", "lora_dropout",
        "runtime_config", "megatron_core", "qalora_group_size", "eva_config", "loftq_config", "lora_ga_config",
        "init_weights",
    }
)  # fmt: skip
READ = frozenset(
    {
        "r", "lora_alpha", "target_modules", "exclude_modules", "use_rslora", "modules_to_save", "layers_to_transform",
        "layers_pattern", "rank_pattern", "alpha_pattern", "task_type", "init_lora_weights", "bias", "ensure_weight_tying",
    }
)  # fmt: skip
REMEDIES = {
    "use_dora": "DoRA scales the whole weight; merge the adapter into its base and serve the whole checkpoint",
    "lora_bias": "train without it, or merge the adapter into its base and serve the whole checkpoint",
    "fan_in_fan_out": "no architecture here stores weights so; set it to false",
}
MERGE = "merge the adapter into its base and serve the whole checkpoint"
# Initializations that leave the base's weights unchanged; the other ones change them, too.
PLAIN_STARTS = (True, False, None, "gaussian", "orthogonal", "eva")
PAIR = re.compile(r"(.+)\.lora_([AB])\.weight")
LAYER = re.compile(r".*?\.[^.]*\.(\d+)\.")
MOST_RANK = 4096
MOST_ALPHA = 1e9
MOST_NAMES, MOST_EXPRESSIONS = 20_000, 256  # in one field; each is compared with every module


@dataclass(frozen=True, slots=True)
class LoraRules:
    """adapter_config.json of form LORA, BEFT or BITFIT."""

    source: str
    r: int
    alpha: float
    rslora: bool
    target_modules: Any  # a regular expression, "all-linear", or a list of names
    excluded: Any  # the same, or None
    saved: tuple[str, ...]
    layers: tuple[int, ...]  # empty: all
    pattern: tuple[str, ...]  # names of the lists of layers; empty: any
    ranks: dict[str, Any]
    alphas: dict[str, Any]
    tying: bool = False  # a change of the embedding or the head of a tied base changes both

    @classmethod
    def read(cls, fields: Fields, form: str, *, embeds: bool = False) -> LoraRules:
        """Read the rules of a form: LORA, BEFT (biases are added) or BITFIT (they replace). Raises CheckpointError.

        ``embeds``: the base is an embedder.
        """
        for key, value in fields.values.items():
            if key not in IGNORED and key not in READ and value not in (None, False, [], {}, ""):
                remedy = REMEDIES.get(key, MERGE)
                raise CheckpointError(f"{fields.source}: {named(key)} is {shown(value)}, which is not supported; {remedy}")
        tasks = ("CAUSAL_LM", "FEATURE_EXTRACTION") if embeds else ("CAUSAL_LM",)
        if fields.text("task_type", tasks[0]) not in tasks:
            why = "the base is an embedder" if embeds else "only an embedder has adapters of another kind"
            raise fields.wrong("task_type", f"{' or '.join(tasks)}: {why}")
        if fields.text("bias", "none") not in ("none", "all", "lora_only"):
            raise fields.wrong("bias", "none, all or lora_only")
        if (start := fields.values.get("init_lora_weights")) not in PLAIN_STARTS:
            raise CheckpointError(
                f"{fields.source}: init_lora_weights is {shown(start)}, which changes the base's weights, too; save the "
                "adapter with path_initial_model_for_weight_conversion, or merge it"
            )
        target = _names(fields, "target_modules")
        if target is None and form != "BITFIT":
            raise fields.wrong("target_modules", "a list of module names or a regular expression")
        saved, pattern = _names(fields, "modules_to_save") or [], _names(fields, "layers_pattern") or []
        return cls(
            source=fields.source,
            r=fields.integer("r", 8),
            alpha=fields.number("lora_alpha", 8.0),
            rslora=fields.flag("use_rslora"),
            target_modules=target,
            excluded=_names(fields, "exclude_modules"),
            saved=(saved,) if isinstance(saved, str) else tuple(saved),
            layers=_layers(fields),
            pattern=(pattern,) if isinstance(pattern, str) else tuple(pattern),
            ranks=_numbers(fields, "rank_pattern"),
            alphas=_numbers(fields, "alpha_pattern"),
            tying=fields.flag("ensure_weight_tying"),
        )

    def check_tying(self, changed: Iterable[str], tied: Collection[str]) -> None:
        """Refuse an adapter that would have to change both of two tied modules.

        ``changed`` are modules or tensors of the adapter.
        """
        both = next((name for name in changed if name in tied), "") if self.tying else ""
        if both:
            raise CheckpointError(
                f"{self.source}: ensure_weight_tying is true and the adapter changes {both}, whose weight the base uses "
                f"twice; {MERGE}"
            )

    def targets(self, module: str) -> bool:
        """Return whether a linear module is changed."""
        if self._matches(self.excluded, module) or any(f".{name}." in f".{module}." for name in self.saved):
            return False
        if self.target_modules == "all-linear":
            return "layers" in module  # all except the head
        if not self._matches(self.target_modules, module):
            return False
        return isinstance(self.target_modules, str) or not self.layers or self._layer(module) in self.layers

    def _matches(self, names: Any, module: str) -> bool:
        if isinstance(names, str):
            return matches(self.source, names, module)
        return bool(names) and any(module == name or module.endswith(f".{name}") for name in names)

    def _layer(self, module: str) -> int | None:
        for pattern in self.pattern:
            if found := re.match(rf"(?:^|.*?\.){re.escape(pattern)}\.(\d+)\.", module):
                return int(found[1])
        found = LAYER.match(module) if not self.pattern else None
        return int(found[1]) if found else None

    def rank(self, module: str) -> int:
        rank = self._of(self.ranks, module, self.r)
        if not isinstance(rank, int) or isinstance(rank, bool) or not 1 <= rank <= MOST_RANK:
            raise CheckpointError(f"{self.source}: the rank of {module} is {shown(rank)}, not 1 to {MOST_RANK}; correct it")
        return rank

    def scale(self, module: str) -> float:
        """Return alpha / r, or with rank-stabilized LoRA alpha / sqrt(r)."""
        alpha = self._of(self.alphas, module, self.alpha)
        if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not -MOST_ALPHA <= alpha <= MOST_ALPHA:
            raise CheckpointError(
                f"{self.source}: the alpha of {module} is {shown(alpha)}, not a number up to {MOST_ALPHA:g}; correct it"
            )
        rank = self.rank(module)
        return alpha / math.sqrt(rank) if self.rslora else alpha / rank

    def _of(self, patterns: dict[str, Any], module: str, default: Any) -> Any:
        for pattern, value in patterns.items():
            if matches(self.source, pattern, module, anywhere=True):
                return value
        return default

    @staticmethod
    def sort(tensors: dict[str, TensorRef], modules: Collection[str]) -> Sorted:
        """Sort an adapter's tensors by their purpose.

        ``tensors`` are by name without PEFT's prefix. ``modules`` are the linear ones, whose biases can be replaced.
        """
        halves: dict[str, dict[str, TensorRef]] = {}
        found = Sorted({}, {}, {}, {})
        for long, ref in tensors.items():
            name = long.replace(".base_layer.", ".")
            module, _, last = name.rpartition(".")
            if pair := PAIR.fullmatch(name):
                halves.setdefault(pair[1], {})[pair[2]] = ref
            elif "lora_" in name:
                raise CheckpointError(
                    f"{ref.path}: tensor {named(ref.name)} is not supported, only lora_A and lora_B of linear modules "
                    f"are; {MERGE}"
                )
            elif last == "beft_bias":
                found.shifts[module] = replace(ref, shape=ref.shape[1:]) if ref.shape[:1] == (1,) else ref
            elif last == "bias" and module in modules:
                found.replaced[module] = ref
            else:
                found.saved[name] = ref
        for module, both in halves.items():
            if len(both) != 2:
                raise CheckpointError(
                    f"{next(iter(both.values())).path} has lora_{next(iter(both))} of {named(module)} alone; "
                    "save the adapter again"
                )
            found.pairs[module] = both["A"], both["B"]
        return found


@dataclass(frozen=True, slots=True)
class Sorted:
    """Tensors of an adapter: LoRA's A and B, biases to add and to replace the base's, by module; other tensors by name."""

    pairs: dict[str, tuple[TensorRef, TensorRef]]
    shifts: dict[str, TensorRef]
    replaced: dict[str, TensorRef]
    saved: dict[str, TensorRef]


def _names(fields: Fields, key: str) -> str | list[str] | None:
    value = fields.values.get(key)
    if not value:
        return None
    if isinstance(value, str) or (isinstance(value, list) and all(isinstance(name, str) for name in value)):
        _check_count(fields, key, len(value) if isinstance(value, list) else 1)
        return value
    raise fields.wrong(key, "a name or a list of names")


def _layers(fields: Fields) -> tuple[int, ...]:
    value = fields.values.get("layers_to_transform")
    layers = [value] if isinstance(value, int) else value or []
    if not isinstance(layers, list) or not all(type(layer) is int and layer >= 0 for layer in layers):
        raise fields.wrong("layers_to_transform", "a layer or a list of layers")
    _check_count(fields, "layers_to_transform", len(layers))
    return tuple(layers)


def _numbers(fields: Fields, key: str) -> dict[str, Any]:
    found = fields.object(key)
    patterns = found.values if found is not None else {}
    _check_count(fields, key, len(patterns))
    if (many := sum(not is_plain(pattern) for pattern in patterns)) > MOST_EXPRESSIONS:
        raise CheckpointError(
            f"{fields.source}: {key} has {many} regular expressions, more than {MOST_EXPRESSIONS}; list the modules by name"
        )
    return patterns


def _check_count(fields: Fields, key: str, count: int) -> None:
    """Refuse a field with more entries than any model has modules."""
    if count > MOST_NAMES:
        raise CheckpointError(f"{fields.source}: {key} has {count} entries, more than {MOST_NAMES}; name fewer")
