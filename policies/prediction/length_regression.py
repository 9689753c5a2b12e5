"""Estimates of answer lengths by a trained linear model of log(1 + length) over hashed features of the request.

One weight for each term of ``Features``. It is trained, and goes on learning while it serves, by AdaGrad (Duchi, Hazan,
Singer 2011) on the Huber loss with a ridge penalty on the weights that a lesson touches: a lesson costs what it has terms.
The paper's tagger is a language model of 125 M parameters with a scalar head; this one is a list of numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from .lengths import TERMS, Features, Lesson, bounded

RATE = 0.1  # of AdaGrad
RIDGE = 1e-4  # of a weight's own size, in each gradient that it gets
HUBER = 0.5  # of log(1 + length): beyond, an error counts linearly
MOST = math.log1p(1 << 24)  # of log(1 + length)
FLOOR = 1.0  # what AdaGrad's sums begin with: the first lesson must not decide


class LengthRegression:
    """See the module. ``weights``, ``squares``: TERMS numbers each; ``lessons``: learned in all."""

    def __init__(self, weights: list[float], squares: list[float], lessons: int = 0) -> None:
        self._weights, self._squares, self.lessons = weights, squares, lessons

    @classmethod
    def untrained(cls) -> LengthRegression:
        return cls([0.0] * TERMS, [FLOOR] * TERMS)

    def estimate(self, features: Features) -> int:
        """See ``LengthEstimator``."""
        if not self.lessons and not features.stated:
            return 0
        return bounded(math.expm1(min(self._value(features), MOST)), features)

    def learn(self, lesson: Lesson) -> None:
        """An answer that a limit ended tells something only where it is longer than what was thought."""
        weights, squares, terms = self._weights, self._squares, lesson.features.terms
        wrong = self._value(lesson.features) - math.log1p(lesson.length)
        if not lesson.whole and wrong >= 0:
            return
        slope = max(-HUBER, min(wrong, HUBER))
        self.lessons += 1
        for term in terms:
            gradient = slope + RIDGE * weights[term]
            squares[term] += gradient * gradient
            weights[term] -= RATE * gradient / math.sqrt(squares[term])

    def snapshot(self) -> dict[str, Any]:
        """See ``LengthLearner``."""
        return {
            "kind": "trained",
            "lessons": self.lessons,
            "weights": [round(value, 6) for value in self._weights],
            "squares": [round(value, 6) for value in self._squares],
        }

    @classmethod
    def restore(cls, snapshot: dict[str, Any]) -> LengthRegression:
        """Raises ValueError: what is wrong with a snapshot."""
        lists: list[list[float]] = []
        for name in ("weights", "squares"):
            values = snapshot.get(name)
            if not isinstance(values, list) or len(values) != TERMS:
                found = f"has {len(values)}" if isinstance(values, list) else f"is {values!r:.40}"
                raise ValueError(f"{name} {found}, not {TERMS} numbers")
            for number, value in enumerate(values):
                if not isinstance(value, int | float) or not math.isfinite(value) or (name == "squares" and value < FLOOR):
                    raise ValueError(f"{name}[{number}] is {value!r:.40}, not a finite number{_least(name)}")
            lists.append([float(value) for value in values])
        lessons = snapshot.get("lessons")
        if not isinstance(lessons, int) or lessons < 0:
            raise ValueError(f"lessons is {lessons!r:.40}, not a count")
        weights, squares = lists
        return cls(weights, squares, lessons)

    def _value(self, features: Features) -> float:
        """Expected log(1 + length), whatever bounds it."""
        weights = self._weights
        return sum([weights[term] for term in features.terms])


def _least(name: str) -> str:
    return f" of at least {FLOOR:g}" if name == "squares" else ""


def trained(lessons: Sequence[Lesson], orders: Iterable[Sequence[int]]) -> LengthRegression:
    """A new model that has learned every lesson once for each order of them."""
    made = LengthRegression.untrained()
    for index in chain.from_iterable(orders):
        made.learn(lessons[index])
    return made
