"""Estimates of answer lengths by a trained linear model of log(1 + length) over hashed features of the request.

It has one weight for each term of ``Features``. It is trained, and goes on learning while it serves, by AdaGrad (Duchi,
Hazan, Singer 2011) on the Huber loss with a ridge penalty on the weights that a lesson touches: a lesson costs as much as
it has terms. The paper's tagger is a language model of 125 M parameters with a scalar head; this one is a list of numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from .lengths import TERMS, Features, LengthSample, bounded

RATE = 0.1  # AdaGrad's learning rate
RIDGE = 1e-4  # fraction of a weight, in each of its gradients
HUBER = 0.5  # of log(1 + length): beyond it, an error counts linearly
MOST = math.log1p(1 << 24)  # of log(1 + length)
FLOOR = 1.0  # initial value of AdaGrad's sums: the first lesson must not dominate


class LengthRegression:
    """The model (see the module). weights, squares: TERMS numbers each. lessons: number learned."""

    def __init__(self, weights: list[float], squares: list[float], lessons: int = 0) -> None:
        self._weights = weights
        self._squares = squares
        self.lessons = lessons

    @classmethod
    def untrained(cls) -> LengthRegression:
        return cls([0.0] * TERMS, [FLOOR] * TERMS)

    def estimate(self, features: Features) -> int:
        """Return the estimate, see ``LengthEstimator``."""
        if not self.lessons and not features.stated:
            return 0
        return bounded(math.expm1(min(self._value(features), MOST)), features)

    def learn(self, lesson: LengthSample) -> None:
        """Learn from an answer. One that a limit ended tells something only if it is longer than expected."""
        weights = self._weights
        squares = self._squares
        terms = lesson.features.terms
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
        """Return plain data, see ``LengthLearner``."""
        return {
            "kind": "trained",
            "lessons": self.lessons,
            "weights": [round(value, 6) for value in self._weights],
            "squares": [round(value, 6) for value in self._squares],
        }

    @classmethod
    def restore(cls, snapshot: dict[str, Any]) -> LengthRegression:
        """Return the model of a snapshot. Raises ValueError with what is wrong with it."""
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
        """Return the expected log(1 + length) before bounds."""
        weights = self._weights
        return sum([weights[term] for term in features.terms])


def _least(name: str) -> str:
    return f" of at least {FLOOR:g}" if name == "squares" else ""


def trained(lessons: Sequence[LengthSample], orders: Iterable[Sequence[int]]) -> LengthRegression:
    """Return a new model that has learned every lesson once for each of the orders."""
    made = LengthRegression.untrained()
    for index in chain.from_iterable(orders):
        made.learn(lessons[index])
    return made
