"""Adapters: a folder with adapter_config.json and safetensors, opened over a base checkpoint as a checkpoint of its own.

Modules are found by the names that the base's architecture gives its tensors. So a module with a fused output (Phi-3's
qkv_proj, GPT-NeoX's query_key_value) becomes a term of each role, with the rows of its weight. Anything that would change
the answers and is not supported is refused by field, value and remedy. Standard library only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from ..model.config import EmbeddingConfig, TensorRef
from ..model.deltas import DeltaConfig, LoraTerm
from ..model.fields import Fields, named, shown
from ..model.parts import Source
from ..model.registry import ARCHITECTURES
from . import bottleneck, virtual_tokens
from .bottleneck import read_bottlenecks
from .checkpoint import Checkpoint, DeltaPart, Parts, locate, rows_of
from .checkpoint_files import CheckpointFiles
from .embedder import pooled_over
from .generation import read_generation
from .lora_rules import LoraRules, Sorted
from .tensor_files import check_dtype, read_header
from .virtual_tokens import read_virtual_tokens

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PICKLE = "adapter_model.bin"
LONGEST_HEADER = 8 << 20  # bytes: about 60,000 tensors, which Python reads without holding others up for long
PREFIX = "base_model.model."
DEPTH = re.compile(r"\.(\d{1,9})\.")
LOW_RANK = ("LORA", "BEFT", "BITFIT")


@dataclass(frozen=True, slots=True)
class Role:
    """A product that a module computes, or a part of it, and its place in the chain."""

    place: int
    name: str
    source: Source


def is_adapter(source: str | Path) -> bool:
    """Return whether a folder holds an adapter. A hub id is not a folder: it counts as a whole checkpoint."""
    try:
        return (Path(source).expanduser() / CONFIG).is_file()
    except (OSError, RuntimeError, ValueError):
        return False


def trained_on(source: str | Path) -> str:
    """Return the path or hub id that an adapter names as its base; "" if it names none, or cannot be read.

    A path to a folder on this machine has its links resolved.
    """
    try:
        fields = Fields.read(Path(source).expanduser() / CONFIG)
        text = fields.text("base_model_name_or_path") or fields.text("model_name")  # the names that peft and AdapterHub use
        return os.path.realpath(text) if os.path.isabs(text) and os.path.isdir(text) else text
    except (CheckpointError, OSError, RuntimeError, ValueError):
        return ""  # opening the adapter will report the reason


def open_adapter(source: str | Path, base: Checkpoint) -> Checkpoint:
    """Open an adapter over ``base`` as a checkpoint of its own.

    Raises CheckpointError if it cannot be served, or was made for another base.
    """
    folder = locate(source)
    if base.deltas:
        raise CheckpointError(f"the base {base.source} is an adapter itself, which {folder} cannot change; name its base")
    fields = Fields.read(folder / CONFIG)
    form = fields.text("peft_type")
    if form in LOW_RANK:
        parts, deltas = _low_rank(folder, fields, form, base)
    elif form in virtual_tokens.FORMS and base.embeds:
        raise CheckpointError(
            f"{fields.source}: peft_type {form} puts virtual tokens before a text, which is not supported over an embedder; "
            "train a LoRA instead"
        )
    elif form in virtual_tokens.FORMS:
        tensors = _tensors(folder, WEIGHTS, PICKLE)
        parts, deltas = base.parts, read_virtual_tokens(folder / WEIGHTS, fields, form, tensors, base)
    elif not form and fields.object("config") is not None:
        tensors = _tensors(folder, bottleneck.WEIGHTS, bottleneck.PICKLE)
        parts, deltas = base.parts, read_bottlenecks(folder / bottleneck.WEIGHTS, fields, tensors, base)
    else:
        raise CheckpointError(
            f"{fields.source}: peft_type {shown(form)} is not supported (there are: "
            f"{', '.join((*LOW_RANK, *virtual_tokens.FORMS))}, and bottlenecks of the adapters library); merge it into its "
            "base and serve the whole checkpoint"
        )
    files = CheckpointFiles(folder, base.path)
    generation = read_generation(files, base.config)
    own: dict[str, Any] = {"known": base.known, "over": base, "tier": base.tier}
    own["pooled"] = pooled_over(files, base.config, embeds=base.embeds)
    return Checkpoint(base.path, base.config, generation, parts, base.chain, deltas, folder, **own)


def _low_rank(folder: Path, fields: Fields, form: str, base: Checkpoint) -> tuple[Parts, dict[int, DeltaPart]]:
    """Return the base's components, with saved modules in their places, and the deltas."""
    rules = LoraRules.read(fields, form, embeds=base.embeds)
    tensors = _named(folder, _tensors(folder, WEIGHTS, PICKLE))
    called = _called(base, tensors)
    modules, weights = _modules(base, called), _weights(base, called)
    found = rules.sort(tensors, modules.keys())
    for name in found.saved:
        if name not in weights:
            raise CheckpointError(
                f"{folder / WEIGHTS}: tensor {named(PREFIX + name)} belongs to no module of the base {base.label}; "
                "name the base that the adapter was trained on"
            )
    if base.config.tied:
        ends = ARCHITECTURES[base.config.architecture]
        tied = {called.get(name, name) for name in (ends.head, ends.embedding)}
        changed = (*found.pairs, *found.shifts, *found.replaced, *found.saved)
        rules.check_tying(changed, tied | {name.removesuffix(".weight") for name in tied})
    _check_base(folder, rules, base, modules, found)
    if form == "LORA":
        _check_targets(folder, rules, modules, set(found.pairs), "lora_A and lora_B")
    elif form == "BEFT":
        _check_targets(folder, rules, modules, set(found.shifts), "beft_bias")
    parts = _replace(base, found.saved, weights)
    deltas: dict[int, DeltaPart] = {}
    for module, (a, b) in found.pairs.items():
        rank, scale = rules.rank(module), rules.scale(module)
        for role in modules[module]:
            total, width = role.source.shape
            if rank > min(total, width):
                raise CheckpointError(
                    f"{fields.source}: the rank of {module} is {rank}, more than its {total} rows or its width {width}; "
                    "merge the adapter into its base and serve the whole checkpoint"
                )
            _check_shape(a, (rank, width), base, module)
            _check_shape(b, (total, rank), base, module)
            config, refs = deltas.setdefault(role.place, (DeltaConfig(), {}))
            term = LoraTerm(role=role.name, rank=rank, scale=scale)
            refs |= {f"{role.name}.a": a, f"{role.name}.b": rows_of(b, role.source)}
            deltas[role.place] = (replace(config, lora=(*config.lora, term)), refs)
    shifts = [(module, bias, False) for module, bias in found.shifts.items()]
    for module, bias, replaces in [*shifts, *((module, bias, True) for module, bias in found.replaced.items())]:
        for role in modules[module]:
            own = base.parts[role.place][1].get(f"{role.name}_bias")
            if replaces and own is None:
                raise CheckpointError(
                    f"{bias.path}: tensor {bias.name} replaces a bias that the base {base.label} does not have; name the "
                    "base that the adapter was trained on"
                )
            _check_shape(bias, role.source.shape[:1], base, module)
            config, refs = deltas.setdefault(role.place, (DeltaConfig(), {}))
            refs[f"{role.name}.bias"] = rows_of(bias, role.source)
            if replaces and own is not None:
                refs[f"{role.name}.replaced"] = own
            deltas[role.place] = (replace(config, biases=(*config.biases, role.name)), refs)
    if not deltas and not found.saved:
        raise CheckpointError(f"{folder / WEIGHTS} changes nothing ({len(tensors)} tensors); save the adapter again")
    return parts, deltas


def _tensors(folder: Path, weights: str, pickle: str) -> dict[str, TensorRef]:
    """Read the tensors of the file ``weights``."""
    if not (folder / weights).is_file():
        if (folder / pickle).is_file():
            raise CheckpointError(
                f"{folder / pickle} is a pickle, which is never loaded; load it with the library that made it and save it "
                "as safetensors"
            )
        raise CheckpointError(f"{folder} has {CONFIG} but no {weights}; save the adapter again as safetensors")
    found = read_header(folder / weights, LONGEST_HEADER)
    for ref in found.values():
        check_dtype(ref)
    return found


def _named(folder: Path, found: dict[str, TensorRef]) -> dict[str, TensorRef]:
    """Return the tensors by their names without PEFT's prefix."""
    for name in found:
        if not name.startswith(PREFIX):
            raise CheckpointError(
                f"{folder / WEIGHTS}: tensor {named(name)} does not begin with {PREFIX}; save the adapter with peft"
            )
    return {name.removeprefix(PREFIX): ref for name, ref in found.items()}


def _called(base: Checkpoint, tensors: Iterable[str]) -> dict[str, str]:
    """Return the base's tensors that peft names differently, with peft's names.

    Adapters that were trained with earlier releases of transformers, where the module had the name used in the files, have
    that name in their tensors. Adapters of a model without its head lack the first part of the names.
    """
    architecture = ARCHITECTURES[base.config.architecture]
    before = architecture.embedding.partition(".")[0] + "."
    if base.embeds and not any(name.startswith(before) for name in tensors):
        return {source.name: source.name.removeprefix(before) for _, roles in base.chain for source in roles.values()}
    if not architecture.head_module or any(name.startswith(architecture.head.removesuffix("weight")) for name in tensors):
        return {}
    return {architecture.head: f"{architecture.head_module}.weight"}


def _modules(base: Checkpoint, called: Mapping[str, str]) -> dict[str, list[Role]]:
    """Return the linear modules of a model by name, with the roles of each."""
    found: dict[str, list[Role]] = {}
    for place, (config, roles) in enumerate(base.chain):
        for name, source in roles.items():
            if len(source.shape) == 2 and not isinstance(config, EmbeddingConfig):
                module = called.get(source.name, source.name).removesuffix(".weight")
                found.setdefault(module, []).append(Role(place, name, source))
    return found


def _weights(base: Checkpoint, called: Mapping[str, str]) -> dict[str, list[Role]]:
    """Return all tensors of a model by name, with the roles of each."""
    found: dict[str, list[Role]] = {}
    for place, (_, roles) in enumerate(base.chain):
        for name, source in roles.items():
            found.setdefault(called.get(source.name, source.name), []).append(Role(place, name, source))
    return found


def _replace(base: Checkpoint, saved: dict[str, TensorRef], weights: dict[str, list[Role]]) -> Parts:
    """Return the base's components with the tensors of saved modules in place of its own."""
    parts = [(config, dict(refs)) for config, refs in base.parts]
    for name, ref in saved.items():
        for role in weights[name]:
            _check_shape(ref, role.source.shape, base, name)
            parts[role.place][1][role.name] = rows_of(ref, role.source)
    return parts


def _check_base(folder: Path, rules: LoraRules, base: Checkpoint, modules: dict[str, list[Role]], found: Sorted) -> None:
    """Compare layers and widths first, so that a wrong base is reported as such, not tensor by tensor."""
    names = {*found.pairs, *found.shifts, *found.replaced}
    depths, there = _depths(names), _depths(modules)
    missing = _depths(module for module in modules if names and rules.targets(module) and module not in names)
    if depths and there and (max(depths) > max(there) or (missing and min(missing) > max(depths))):
        raise CheckpointError(
            f"{folder} was made for another base: it has {max(depths) + 1} layers, {Path(base.label).name} has "
            f"{max(there) + 1}; name the base that the adapter was trained on"
        )
    for module, (a, b) in found.pairs.items():
        for role in modules.get(module, ()):
            total, width = role.source.shape
            _check_shape(a, (*a.shape[:1], width), base, module)
            _check_shape(b, (total, *b.shape[1:]), base, module)


def _depths(names: Iterable[str]) -> set[int]:
    """Return the layer numbers in the names of modules."""
    return {int(match[1]) for name in names if (match := DEPTH.search(name))}


def _check_targets(folder: Path, rules: LoraRules, modules: dict[str, list[Role]], found: set[str], what: str) -> None:
    """Check that the tensors match the modules that adapter_config.json names, no fewer and no more."""
    outside = sorted(found - modules.keys())
    if outside:
        there = ", ".join(sorted({name.rpartition(".")[2] for name in modules}))
        raise CheckpointError(
            f"{folder / WEIGHTS}: module {named(outside[0])} is not a linear module of the base (it has: {there}); "
            "name the base that the adapter was trained on, or train it without that module"
        )
    wanted = {module for module in modules if rules.targets(module)}
    if missing := sorted(wanted - found):
        raise CheckpointError(
            f"{folder / WEIGHTS} lacks {what} of {missing[0]}, which target_modules "
            f"{shown(rules.target_modules)} names; save the adapter again"
        )
    if more := sorted(found - wanted):
        raise CheckpointError(
            f"{folder / WEIGHTS}: module {named(more[0])} is not among target_modules {shown(rules.target_modules)}; "
            "use the adapter_config.json that was saved with the weights"
        )


def _check_shape(ref: TensorRef, wanted: tuple[int, ...], base: Checkpoint, module: str) -> None:
    if ref.shape != wanted:
        raise CheckpointError(
            f"{ref.path}: tensor {ref.name} has shape {list(ref.shape)} where {module} of the base {base.label} and the "
            f"rank ask for {list(wanted)}; name the base that the adapter was trained on, or correct the rank"
        )
