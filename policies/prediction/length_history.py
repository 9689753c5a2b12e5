"""Estimates of answer lengths from the history of an application and of prompts of the same length class.

Three levels: all requests, the application's, and the application's with prompts of about as many tokens (a power of two).
Each keeps a decayed mean of log(1 + length); one that has seen few requests leans on the level above it.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any

from .lengths import Features, LengthSample, bounded

Level = tuple[str, int]  # (application, bits of the prompt's length); ("", -1): all, (application, -1): all of it
DECAY = 0.995  # decay of a lesson's weight by each later one of its level: about the last 200 count
PRIOR = 3.0  # weight of the level above, in lessons
MOST_LEVELS = 2048  # limit of levels; beyond it, the one idle for longest is forgotten
ALL: Level = ("", -1)


class LengthHistory:
    """The history of served requests (see the module)."""

    def __init__(self) -> None:
        self._levels: OrderedDict[Level, tuple[float, float]] = OrderedDict()  # level -> (weight, mean of log(1 + length))

    def estimate(self, features: Features) -> int:
        """Return the estimate, see ``LengthEstimator``."""
        value = self._value(features)
        return 0 if value is None and not features.stated else bounded(math.expm1(value or 0.0), features)

    def learn(self, lesson: LengthSample) -> None:
        """Learn from an answer. One that a limit ended tells something only if it is longer than expected."""
        target = math.log1p(lesson.length)
        if not lesson.whole and (self._value(lesson.features) or 0.0) >= target:
            return
        for level in _levels(lesson.features):
            weight, mean = self._levels.get(level, (0.0, 0.0))
            weight = weight * DECAY + 1.0
            self._levels[level] = (weight, mean + (target - mean) / weight)
            self._levels.move_to_end(level)
        while len(self._levels) > MOST_LEVELS:
            self._levels.popitem(last=False)

    def snapshot(self) -> dict[str, Any]:
        """Return plain data, see ``LengthLearner``."""
        return {"kind": "history", "levels": [[*level, *cell] for level, cell in self._levels.items()]}

    @classmethod
    def restore(cls, snapshot: dict[str, Any]) -> LengthHistory:
        """Return the history of a snapshot. Raises ValueError with what is wrong with it."""
        made, levels = cls(), snapshot.get("levels")
        if not isinstance(levels, list) or len(levels) > MOST_LEVELS:
            raise ValueError(f"levels is no list of at most {MOST_LEVELS}")
        for number, level in enumerate(levels):
            match level:
                case [str(application), int(bits), float(weight), float(mean)] if 0 < weight < 1e9 and 0 <= mean < 50:
                    made._levels[application, bits] = (weight, mean)
                case _:
                    raise ValueError(f"levels[{number}] is {level!r:.80}, not application, bits, weight and mean")
        return made

    def _value(self, features: Features) -> float | None:
        """Return the expected log(1 + length) before bounds; None before any lesson."""
        value: float | None = None
        for level in _levels(features):
            if (cell := self._levels.get(level)) is not None:
                weight, mean = cell
                value = mean if value is None else (weight * mean + PRIOR * value) / (weight + PRIOR)
        return value


def _levels(features: Features) -> tuple[Level, Level, Level]:
    return ALL, (features.application, -1), (features.application, features.prompt.bit_length())
