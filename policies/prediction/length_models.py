"""Length estimators by the kind named in their snapshots, and a comparison of the kinds on unseen lessons."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .length_history import LengthHistory
from .length_regression import LengthRegression, trained
from .lengths import Accuracy, Features, LengthLearner, LengthSample, bounded

KINDS: dict[str, Callable[[dict[str, Any]], LengthLearner]] = {
    "history": LengthHistory.restore,
    "trained": LengthRegression.restore,
}


def restored(snapshot: dict[str, Any]) -> LengthLearner:
    """Return the estimator of a snapshot. Raises ValueError with what is wrong with it."""
    kind = snapshot.get("kind")
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r:.40}, not one of {', '.join(KINDS)}")
    return KINDS[kind](snapshot)


def compared(
    lessons: Sequence[LengthSample], unseen: Sequence[LengthSample], orders: Iterable[Sequence[int]]
) -> tuple[LengthRegression, dict[str, dict[str, float]]]:
    """Return a model trained on ``lessons`` (see ``trained``), and figures on ``unseen`` for three estimators.

    The others are a constant (the median) and the history. After the measurement, the model learns the unseen lessons too,
    as it would while serving.
    """
    constant = statistics.median(lesson.length for lesson in lessons)
    history, model = LengthHistory(), trained(lessons, orders)
    for lesson in lessons:
        history.learn(lesson)
    estimates: dict[str, Callable[[Features], int]] = {
        "constant": lambda features: bounded(constant, features),
        "history": history.estimate,
        "trained": model.estimate,
    }
    figures = {}
    for name, estimate in estimates.items():
        seen = Accuracy()
        for lesson in unseen:
            seen.add(estimate(lesson.features), lesson.length)
        figures[name] = seen.figures()
    for lesson in unseen:
        model.learn(lesson)
    return model, figures
