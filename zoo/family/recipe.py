"""Recipe of a training run: exits, steps, rates and weights, checked against the model. Reads no file and no tensor."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...gpu.errors import CheckpointError
from ...gpu.weights.exits import check_exits
from ...policies.nearest import suggestion

OPTIMIZERS = ("adamw", "muon")
_RANGES: dict[str, tuple[float, float]] = {
    "batch": (1, 1 << 16),
    "rate": (0.0, 1.0),
    "lambda": (0.0, 100.0),
    "kl": (0.0, 100.0),
    "tau": (0.01, 100.0),
    "decay": (0.0, 1.0),
    "clip": (1e-6, 1e6),
    "even": (0.0, 1.0),
    "rank": (0, 4096),
    "keep": (1, 1 << 30),
    "threads": (0, 4096),
    "seed": (0, (1 << 31) - 1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Settings of a run.

    exits: layers of the lower tiers, ascending. Without any, the whole model is fine-tuned.
    steps: optimizer steps in all; each stage adds the next lower tier and has an equal share.
    lambda_: weight of a lower tier's loss. kl: weight of the divergence from the top tier, at temperature ``tau``.
    even: an answer counts by its number of tokens to the power of 1 - even, so 1 makes all answers count alike.
    at_once: train all tiers from the first step. rank: train low-rank terms of the layers and the heads only; 0: everything.
    keep: steps between two saved states. threads: of the processor; 0: all cores. Other numbers round otherwise.
    """

    exits: tuple[int, ...]
    steps: int
    batch: int = 32
    rate: float = 2e-5
    optimizer: str = "adamw"
    lambda_: float = 1.0
    kl: float = 0.0
    tau: float = 2.0
    decay: float = 0.1
    clip: float = 1.0
    even: float = 0.5
    at_once: bool = False
    rank: int = 0
    keep: int = 100
    threads: int = 0
    seed: int = 0

    @property
    def stages(self) -> tuple[tuple[int, ...], ...]:
        """The exits that each stage trains: the highest first, then with each lower one."""
        descending = self.exits[::-1]
        if self.at_once or not descending:
            return (descending,)
        return tuple(descending[: i + 1] for i in range(len(descending)))

    def stage_of(self, step: int) -> tuple[int, int, int]:
        """Return the stage of a step, the step within it, and the number of its steps."""
        count = len(self.stages)
        borders = [self.steps * i // count for i in range(count + 1)]
        stage = next(i for i in range(count) if step < borders[i + 1])
        return stage, step - borders[stage], borders[stage + 1] - borders[stage]

    def rate_at(self, step: int) -> float:
        """Return the rate of a step: in each stage a short rise, then half a period of a cosine."""
        _, within, steps = self.stage_of(step)
        rise = min(1.0, (within + 1) / max(1, steps // 20))
        return self.rate * rise * 0.5 * (1 + math.cos(math.pi * within / steps))


def make_recipe(exits: Sequence[int], steps: int, layers: int, settings: Mapping[str, str]) -> Recipe:
    """Return the recipe for a model with this many layers. ``settings`` are texts by name. Raises CheckpointError."""
    if exits:
        check_exits(exits, layers, "--exits")
    recipe = Recipe(exits=tuple(exits), steps=steps, **_converted(settings))
    stages = len(recipe.stages)
    if not stages <= steps <= 1 << 30:
        each = " (one for each tier that is added)" if stages > 1 else ""
        raise CheckpointError(f"--steps is {steps}; give {stages} or more{each}")
    return recipe


def _converted(settings: Mapping[str, str]) -> dict[str, Any]:
    defaults = {field.name.rstrip("_"): field.default for field in dataclasses.fields(Recipe)}
    known = sorted(defaults.keys() - {"exits", "steps"})
    found: dict[str, Any] = {}
    for name, text in settings.items():
        if name not in known:
            raise CheckpointError(f"there is no setting {name!r} of a training run; {suggestion(name, known)}")
        found["lambda_" if name == "lambda" else name] = _value(name, text, defaults[name])
    return found


def _value(name: str, text: str, default: object) -> float | int | str | bool:
    if name == "optimizer":
        if text not in OPTIMIZERS:
            raise CheckpointError(f"optimizer is {text!r}; {suggestion(text, OPTIMIZERS)}")
        return text
    if isinstance(default, bool):
        if text not in ("true", "false"):
            raise CheckpointError(f"{name} is {text!r}; give true or false")
        return text == "true"
    low, high = _RANGES[name]
    whole = isinstance(default, int)
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise CheckpointError(f"{name} is {text!r}; give {'an integer' if whole else 'a number'} from {low:g} to {high:g}")
    return value
