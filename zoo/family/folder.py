"""Writing of a trained family: the folder of the checkpoint that it began from, with new weights and a list of exits."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from ...gpu.errors import CheckpointError
from ...gpu.regular_file import read_regular
from ...gpu.weights.checkpoint import Checkpoint
from ...gpu.weights.checkpoint_files import LONGEST_TEXT
from ...gpu.weights.exits import VERSION, WEIGHTS
from ...gpu.weights.export import TEXTS
from ...gpu.weights.tensor_files import SINGLE
from ...gpu.whole_file import write_whole
from ...policies.model.confidence import Threshold
from ...policies.model.tiers import EXITS_FILE
from .network import head_name
from .training import Training

REPORT = "report.json"


def check_out(out: Path) -> None:
    """Check that a folder can be made. Raises CheckpointError."""
    if os.path.lexists(out):
        raise CheckpointError(f"{out} is there already; name a folder that is not")


def write_family(training: Training, source: Checkpoint, out: Path, report: dict[str, Any]) -> None:
    """Write the trained family into the new folder ``out``, which appears when it is complete. Raises OSError."""
    check_out(out)
    network, exits = training.network, training.recipe.exits
    stored = {name: one.detach().to(network.dtypes[name]).contiguous() for name, one in training.weights().items()}
    heads = {name: stored[name] for layers in exits for name in network.heads_of(layers)}
    unused = {name for layers in network.exits for name in network.heads_of(layers)}
    beside = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    beside.mkdir(parents=True)
    try:
        for name in TEXTS:
            if (source.path / name).is_file():
                (beside / name).write_bytes(read_regular(source.path / name, LONGEST_TEXT))
        save_file({name: one for name, one in stored.items() if name not in unused}, beside / SINGLE, {"format": "pt"})
        if exits:
            save_file(heads, beside / WEIGHTS, {"format": "pt"})
            entries = [{"layers": layers, "head": head_name(layers)} for layers in exits]
            _write_json(beside / EXITS_FILE, {"version": VERSION, "exits": entries})
        _write_json(beside / REPORT, report)
        os.replace(beside, out)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise


def write_threshold(folder: Path, layers: int, rule: Threshold) -> None:
    """Put the rule for ``auto`` of one exit into a folder's list of exits, in place of all earlier ones. Raises OSError."""
    path = folder / EXITS_FILE
    values = json.loads(read_regular(path, LONGEST_TEXT))
    for entry in values["exits"]:
        entry.pop("auto", None)
        if entry["layers"] == layers:
            entry["auto"] = {"theta": rule.theta, "measure": rule.measure, "tokens": rule.tokens}
    write_whole(path, (json.dumps(values, indent=1) + "\n").encode())


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
