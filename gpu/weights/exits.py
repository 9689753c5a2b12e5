"""Exits of a checkpoint: the layers after which a tier leaves the chain, and the head of each.

A folder with exits is an ordinary checkpoint, the top tier, with two more files. ``exits.json`` lists the exits, lowest
first. A head is ``shared``, the top's own norm and projection, or the name of tensors in ``exits.safetensors``:
``NAME.norm.weight``, ``NAME.head.weight``, and ``NAME.norm.bias`` if the top's norm has a bias. docs/families.md has the
whole form. Reads JSON and headers only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ...policies.model.confidence import ALWAYS, FIRST_TOKENS, LONGEST, MEASURES, NEVER, Threshold
from ...policies.model.tiers import EXITS_FILE
from ..errors import CheckpointError
from ..model.config import HeadConfig, TensorRef, tensor_shapes
from ..model.fields import Fields, named, parse, shown
from ..regular_file import read_regular
from .tensor_files import check_dtype, read_header

WEIGHTS = "exits.safetensors"
SHARED = "shared"
VERSION = 1
LONGEST_FILE = 1 << 20  # bytes of exits.json
SUFFIXES = {"norm": "norm.weight", "norm_bias": "norm.bias", "weight": "head.weight"}  # of a head's tensors, by role
_KEYS = ("layers", "head", "auto")
_AUTO_KEYS = ("theta", "measure", "tokens")

T = TypeVar("T")
Heads = dict[int, dict[str, TensorRef]]  # layers of an exit -> its head's tensors by role


def read_exits(folder: Path, layers: int, head: HeadConfig, top: Mapping[str, TensorRef]) -> Heads:
    """Return the exits of a folder, none if it has no exits.json. ``layers``, ``head``, ``top``: the whole model's.

    Raises CheckpointError.
    """
    path = folder / EXITS_FILE
    if not os.path.lexists(path):
        return {}
    names = {count: name for count, name, _ in _listed(path, layers)}
    stored = _tensors(folder / WEIGHTS, head, names.values())
    return {count: dict(top) if name == SHARED else stored[name] for count, name in names.items()}


def read_thresholds(folder: Path, layers: int) -> dict[int, Threshold]:
    """Return the rules for ``auto`` of a folder's exits that have one, by layers. Raises CheckpointError."""
    path = folder / EXITS_FILE
    if not os.path.lexists(path):
        return {}
    return {count: rule for count, _, rule in _listed(path, layers) if rule is not None}


def shared_heads(layers: Sequence[int], top: Mapping[str, TensorRef], total: int, source: str) -> Heads:
    """Return exits that use the top's head. ``source`` says in an error which field gave them. Raises CheckpointError."""
    check_exits(layers, total, source)
    return {count: dict(top) for count in layers}


def check_exits(layers: Sequence[int], total: int, source: str) -> None:
    """Check the layers of all exits of a model with ``total`` layers. Raises CheckpointError."""
    if not layers:
        raise CheckpointError(f"{source} is empty; name layers from 1 to {total - 1}, or leave it out")
    for i, count in enumerate(layers):
        where = f"{source}: exit {i + 1}" if len(layers) > 1 else f"{source}: the exit"
        if count == total:
            raise CheckpointError(
                f"{where} is after {_layers(count)}, which are all of the model: that is the top tier already; leave it out"
            )
        if not 1 <= count < total:
            raise CheckpointError(f"{where} is after {_layers(count)}, but the model has {total}; give 1 to {total - 1}")
        if i and count == layers[i - 1]:
            raise CheckpointError(f"{where} is after {_layers(count)} like the one before it; leave one of them out")
        if i and count < layers[i - 1]:
            raise CheckpointError(
                f"{where} is after {_layers(count)}, but follows one after {layers[i - 1]}; sort the exits"
            )


def below(items: Sequence[T], layers: int, total: int) -> Sequence[T]:
    """Return the items of the embedding and the first layers, of one item for each component of ``total`` layers."""
    return items[: 1 + layers * ((len(items) - 2) // total)]


def _layers(count: int) -> str:
    return f"{count} layer{'s' * (count != 1)}"


def _listed(path: Path, total: int) -> list[tuple[int, str, Threshold | None]]:
    """Return layers, name of the head and rule for ``auto`` of each exit that the file lists."""
    fields = Fields(path, _object(path))
    if (version := fields.integer("version", VERSION)) != VERSION:
        raise CheckpointError(f"{path} is of version {version}, this program reads {VERSION}; use a later release")
    if unknown := sorted(fields.values.keys() - {"version", "exits"}):
        raise CheckpointError(f"{path}: there is no field {named(unknown[0])}; the fields are version and exits")
    entries = fields.values.get("exits")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise fields.wrong("exits", "a list of objects with layers and head")
    found = [_entry(path, i, entry) for i, entry in enumerate(entries, 1)]
    check_exits([count for count, _, _ in found], total, f"{path}: exits")
    return found


def _object(path: Path) -> dict[str, Any]:
    try:
        values = parse(read_regular(path, LONGEST_FILE), unique=True)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}); check the file and its permissions") from None
    except ValueError as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path} is not valid JSON ({error}); write it again as docs/families.md shows") from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} holds a JSON {type(values).__name__}, not an object; see docs/families.md")
    return values


def _entry(path: Path, number: int, entry: dict[str, Any]) -> tuple[int, str, Threshold | None]:
    fields = Fields(f"{path}: exit {number}", entry)
    if unknown := sorted(entry.keys() - {*_KEYS}):
        raise CheckpointError(
            f"{fields.source}: there is no field {named(unknown[0])}; the fields are layers, head and auto"
        )
    name = fields.text("head", SHARED)
    if not name or not name.isprintable() or len(name) > 200:
        raise fields.wrong("head", f'the name of a head of at most 200 characters, or "{SHARED}"')
    rule = entry.get("auto")
    if rule is not None and not isinstance(rule, dict):
        raise fields.wrong("auto", "an object with theta, measure and tokens, or leave it out")
    return fields.integer("layers"), name, None if rule is None else _rule(f"{fields.source}: auto", rule)


def _rule(source: str, values: dict[str, Any]) -> Threshold:
    fields = Fields(source, values)
    if unknown := sorted(values.keys() - {*_AUTO_KEYS}):
        raise CheckpointError(f"{source}: there is no field {named(unknown[0])}; the fields are {', '.join(_AUTO_KEYS)}")
    theta = values.get("theta")
    if isinstance(theta, bool) or not isinstance(theta, int | float) or not NEVER <= theta <= ALWAYS:
        raise fields.wrong("theta", f"a number from {NEVER:g} to {ALWAYS:g}; blockwright family report finds one")
    measure, tokens = fields.text("measure", "mean"), fields.integer("tokens", FIRST_TOKENS)
    if measure not in MEASURES:
        raise fields.wrong("measure", f"one of {', '.join(MEASURES)}")
    if not 1 <= tokens <= LONGEST:
        raise fields.wrong("tokens", f"a number from 1 to {LONGEST}")
    return Threshold(theta=float(theta), measure=measure, tokens=tokens)


def _tensors(path: Path, head: HeadConfig, names: Any) -> dict[str, dict[str, TensorRef]]:
    """Return the tensors of each head by role. Raises CheckpointError unless the file holds exactly them."""
    wanted = dict.fromkeys(name for name in names if name != SHARED)
    if not wanted:
        if os.path.lexists(path):
            raise CheckpointError(f"{path} is there, but {EXITS_FILE} names no head in it; remove it, or name its heads")
        return {}
    if not os.path.lexists(path):
        raise CheckpointError(
            f"{path.parent} has no {path.name}, but {EXITS_FILE} names the head {shown(next(iter(wanted)))} in it; "
            f'copy the file there, or write "{SHARED}" for the head'
        )
    there = read_header(path)
    end, size = max((ref.offset + ref.nbytes for ref in there.values()), default=0), path.stat().st_size
    if size > end:
        raise CheckpointError(f"{path} is too large: {size} bytes where its header says {end}; copy it again")
    found = {
        name: {role: _tensor(path, f"{name}.{SUFFIXES[role]}", shape, there) for role, shape in tensor_shapes(head).items()}
        for name in wanted
    }
    used = {ref.name for refs in found.values() for ref in refs.values()}
    if strange := sorted(there.keys() - used):
        raise CheckpointError(
            f"{path}: tensor {named(strange[0])} belongs to no head of {EXITS_FILE}; name its head there, or remove it"
        )
    return found


def _tensor(path: Path, name: str, shape: tuple[int, ...], there: Mapping[str, TensorRef]) -> TensorRef:
    ref = there.get(name)
    if ref is None:
        few = ", ".join(sorted(there)[:4]) or "none"
        raise CheckpointError(f"{path} lacks tensor {named(name)} (there are: {few}); save the head with it")
    check_dtype(ref)
    if ref.shape != shape:
        raise CheckpointError(
            f"{path}: tensor {named(name)} has shape {list(ref.shape)} where the model asks for {list(shape)}; "
            "save a head that was made for this model"
        )
    return ref
