"""The siblings of the demo checkpoint: two fine-tunes that are near each other, and a wider model, for adaptive chains.

All three do the tasks of the checkpoint and three more: ``support`` and ``sales`` were trained on them in other shares, so
that blocks of one may answer for the other's. ``examples/train_demo.py --siblings`` trains them. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from .family import TASKS as FAMILY_TASKS
from .tasks import HELD_OUT, TASKS, Example, Task, examination

SUPPORT, SALES = "support", "sales"
WIDE = "wide"
LEARNED = ("shout", "mirror", "dates")  # tasks of the family that the checkpoint cannot do
SHARES: Mapping[str, tuple[int, ...]] = {SUPPORT: (10, 6, 4), SALES: (4, 6, 10), WIDE: (4, 4, 4)}  # of ``LEARNED``


def mix(name: str) -> dict[str, Task]:
    """Return the tasks that a sibling was trained on, with their weights."""
    learned = {task: replace(FAMILY_TASKS[task], weight=n) for task, n in zip(LEARNED, SHARES[name], strict=True)}
    return {**TASKS, **learned}


def questions(seed: int, count: int) -> list[Example]:
    """Return ``count`` distinct held-out prompts of each learned task, determined by the seed."""
    return examination(seed, count, (HELD_OUT,), {name: FAMILY_TASKS[name] for name in LEARNED})


def present(folder: Path) -> dict[str, Path]:
    """Return the siblings whose folders exist, by name."""
    return {name: folder / name for name in SHARES if (folder / name).is_dir()}
