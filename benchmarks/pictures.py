"""Generator of the SVG files in ``docs/pictures``: two diagrams, a simulated run and the errors of a profile.

    python benchmarks/pictures.py

The diagrams are drawn here. The others come from ``blockwright simulate --svg`` and ``blockwright profile``, with
``examples/simulate/twelve.toml`` and the stored ``docs/pictures/profile.json``. tests/benchmarks/test_pictures.py compares.
"""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

from blockwright.api.commands.cli import main
from blockwright.api.commands.profile import picture
from blockwright.api.drawing.svg import Drawing

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "pictures"
RUN = ("instances.0.count=4", "workload.rate=14", "workload.count=500")  # more than four instances serve at once


def chains() -> str:
    """Return the diagram of three models and the blocks that a worker holds for them."""
    drawing = Drawing(
        720,
        244,
        "Models as chains of shared blocks",
        "Three models as chains of three blocks. A worker holds each distinct block once: the lower layers and the head of "
        "all models, the upper layers of base and adapter, those of the fine-tune, and the adapter's small matrices.",
    )
    drawing.text(20, 30, "Three models, as their files have them", "bold")
    drawing.text(452, 30, "What a worker holds", "bold")
    models = {"base": "red", "dates, an adapter": "red", "shout, a fine-tune": "violet"}
    for number, (name, upper) in enumerate(models.items()):
        y = 56 + 52 * number
        drawing.text(20, y + 16, name)
        drawing.block(152, y, 90, 24, "blue", "lower layers")
        drawing.block(244, y, 90, 24, upper, "upper layers")
        drawing.block(336, y, 44, 24, "green", "head")
        for x in (152, 244) if number == 1 else ():
            drawing.rectangle(x, y - 7, 12, 5, "orange", radius=1)
    drawing.arrow((392, 120), (440, 120))
    held = [
        ("blue", "lower layers", "for all 3 models"),
        ("red", "upper layers", "for base and dates"),
        ("violet", "upper layers", "for shout"),
        ("green", "head", "for all 3 models"),
    ]
    for number, (kind, label, users) in enumerate(held):
        y = 48 + 40 * number
        drawing.block(452, y, 112, 24, kind, label)
        drawing.text(576, y + 16, users, "small quiet")
    drawing.rectangle(452, 213, 12, 5, "orange", radius=1)
    drawing.text(472, 219, "low-rank matrices of dates", "small quiet")
    drawing.text(20, 219, "Equal tensors are found by content. Equal colors are one block.", "small quiet")
    return drawing.svg()


Part = tuple[int, str, str]  # width, kind and label of a part of a worker's memory
LOWER, UPPER = (74, "blue", "layers 0-5"), (74, "red", "layers 6-11")
FULL: Part = (72, "orange", "KV, full")


def drop() -> str:
    """Return the diagram of a drop and a restore in three frames."""
    drawing = Drawing(
        784,
        228,
        "A drop and a restore of parameters",
        "Two workers hold layers 0 to 11 and their KV memory is full. After the drop each holds half of the layers, the "
        "memory of the other half is KV, and requests pass through both. After the burst the layers come back.",
    )
    used: tuple[Part, Part] = (36, "orange", "KV"), (34, "free", "free")
    both: tuple[Part, ...] = (LOWER, UPPER, FULL)
    frames: list[tuple[str, str, tuple[Part, ...], tuple[Part, ...]]] = [
        ("1  Before: two replicas", "Each has all layers. KV memory is full.", both, both),
        (
            "2  Drop: one pipeline",
            "Each keeps half of the layers.",
            (LOWER, (74, "orange", "more KV"), (72, "orange", "KV")),
            ((74, "orange", "more KV"), UPPER, (72, "orange", "KV")),
        ),
        ("3  Restore: two replicas", "The layers come back over the link.", (LOWER, UPPER, *used), (LOWER, UPPER, *used)),
    ]
    for number, (title, says, *workers) in enumerate(frames):
        left = 20 + 256 * number
        drawing.text(left, 30, title, "bold")
        for worker, parts in enumerate(workers):
            top = 66 + 74 * worker
            drawing.text(left, top - 6, f"worker w{worker}", "small quiet")
            drawing.rectangle(left, top, sum(width + 2 for width, *_ in parts) + 2, 34, "frame")
            x = left + 2
            for width, kind, label in parts:
                drawing.block(x, top + 2, width, 30, kind, label)
                x += width + 2
        drawing.text(left, 206, says, "small quiet")
    drawing.arrow((276 + 38, 102), (276 + 100, 138))
    drawing.arrow((532 + 114, 102), (532 + 114, 138), "line dash", both=True)
    return drawing.svg()


def course() -> str:
    """Return the chart of a simulated run."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        path = Path(folder) / "course.svg"
        changes = [word for change in RUN for word in ("--set", change)]
        if main(["simulate", str(ROOT / "examples" / "simulate" / "twelve.toml"), *changes, "--svg", str(path)]):
            raise RuntimeError("the simulation failed; run the command to see why")
        return path.read_text()


def profile() -> str:
    """Return the scatter of the stored profile."""
    return picture(json.loads((FOLDER / "profile.json").read_text()))


PICTURES: dict[str, Callable[[], str]] = {
    "chains.svg": chains,
    "course.svg": course,
    "drop.svg": drop,
    "profile.svg": profile,
}


if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw())
