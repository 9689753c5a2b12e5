"""Estimates of answer lengths from the history of an application and of prompts of the same length class.

Three levels: all requests, those of an application, those of an application whose prompts have about as many tokens (a power
of two). Each keeps a decayed mean of log(1 + length); one that has seen few requests leans on the level above it.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any

from .lengths import Features, Lesson, bounded

Level = tuple[str, int]  # application and bits of the prompt's length; ("", -1): all, (application, -1): all of it
DECAY = 0.995  # weight of a lesson for each one that follows in its level: the last 200 count
PRIOR = 3.0  # lessons that the level above weighs
MOST_LEVELS = 2048  # beyond, the one that has learned nothing for longest is forgotten
ALL: Level = ("", -1)


class LengthHistory:
    """See the module."""

    def __init__(self) -> None:
        self._levels: OrderedDict[Level, tuple[float, float]] = OrderedDict()  # weight, mean of log(1 + length)

    def estimate(self, features: Features) -> int:
        """See ``LengthEstimator``."""
        value = self._value(features)
        return 0 if value is None and not features.stated else bounded(math.expm1(value or 0.0), features)

    def learn(self, lesson: Lesson) -> None:
        """An answer that a limit ended tells something only where it is longer than what was thought."""
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
        """See ``LengthLearner``."""
        return {"kind": "history", "levels": [[*level, *cell] for level, cell in self._levels.items()]}

    @classmethod
    def restore(cls, snapshot: dict[str, Any]) -> LengthHistory:
        """Raises ValueError: what is wrong with a snapshot."""
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
        """Expected log(1 + length), whatever bounds it; None before any lesson."""
        value: float | None = None
        for level in _levels(features):
            if (cell := self._levels.get(level)) is not None:
                weight, mean = cell
                value = mean if value is None else (weight * mean + PRIOR * value) / (weight + PRIOR)
        return value


def _levels(features: Features) -> tuple[Level, Level, Level]:
    return ALL, (features.application, -1), (features.application, features.prompt.bit_length())
