"""The stored state of an unfinished run: one file, written whole, with the run's description in its header.

A run that was ended at any point goes on from its last file and ends with the same weights, bit for bit.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save

from ...gpu.errors import CheckpointError
from ...gpu.model.fields import shown
from ...gpu.regular_file import read_regular
from ...gpu.weights.checkpoint import Checkpoint
from ...gpu.whole_file import write_whole
from .examples import TrainingExample
from .optimizer import Weights
from .training import Training

LARGEST = 1 << 44  # bytes; a limit against devices, not for models


def run_path(out: Path) -> Path:
    """Return the path of the state of the run that makes folder ``out``."""
    return out.with_name(f"{out.name}.run")


def save_run(path: Path, training: Training, description: dict[str, Any]) -> None:
    """Write the state of a run in place of the earlier one. Raises OSError."""
    values = {"description": json.dumps(description, sort_keys=True), "step": str(training.step)}
    values["losses"] = json.dumps(training.means)
    write_whole(path, save({name: one.contiguous() for name, one in training.state().items()}, values))


def resume(path: Path, training: Training, description: dict[str, Any]) -> bool:
    """Continue from the state in a file; return False if there is none. Raises CheckpointError if it is another run's."""
    if not os.path.lexists(path):
        return False
    try:
        raw = read_regular(path, LARGEST)
        length = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8 : 8 + length])["__metadata__"]
        there, step = json.loads(header["description"]), int(header["step"])
        means = {int(layers): float(loss) for layers, loss in json.loads(header.get("losses", "{}")).items()}
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{path} cannot be read as the state of a run ({error}); remove it to begin again") from None
    _check_same(path, there, description)
    state: Weights = load(raw)
    if state.keys() != training.state().keys():
        raise CheckpointError(f"{path} has the tensors of another run; remove it to begin again")
    training.restore(step, state)
    training.means = means
    return True


def _check_same(path: Path, there: dict[str, Any], wanted: dict[str, Any]) -> None:
    remedy = "go on with that one, remove the file, or name another folder"
    for name in ("checkpoint", "data"):
        if there.get(name) != wanted[name]:
            raise CheckpointError(f"{path} belongs to a run with another {name}; {remedy}")
    recipe = there.get("recipe", {})
    for name, value in wanted["recipe"].items():
        if recipe.get(name) != value:
            raise CheckpointError(
                f"{path} belongs to a run with {name} {shown(recipe.get(name))}, not {shown(value)}; {remedy}"
            )


def finite(training: Training) -> None:
    """Check that training has not diverged. Raises CheckpointError."""
    bad = next((name for name, one in training.parameters.items() if not bool(torch.isfinite(one).all())), "")
    if bad:
        raise CheckpointError(
            f"after step {training.step} tensor {bad} has values that are NaN or infinite; train with a lower rate than "
            f"{training.recipe.rate:g}"
        )


def describe(
    checkpoint: Checkpoint, training: Training, examples: Sequence[TrainingExample], threads: int
) -> dict[str, Any]:
    """Return everything that the weights of a run follow from: files, examples, recipe, threads and type of products."""
    files = hashlib.blake2b(digest_size=16)
    for ref, hash in checkpoint.hashes().items():
        files.update(f"{ref.name}\0".encode() + hash)
    data = hashlib.blake2b(repr([(one.prompt, one.answer) for one in examples]).encode(), digest_size=16)
    fields = {name.rstrip("_"): value for name, value in dataclasses.asdict(training.recipe).items()}
    recipe = {name: [*value] if name == "exits" else value for name, value in fields.items() if name != "keep"}
    recipe |= {"threads": threads, "bfloat16": training.bfloat16}
    return {"checkpoint": files.hexdigest(), "data": data.hexdigest(), "recipe": recipe}
