"""The output of the tagger's commands: the figures of estimators, a row for each."""

from __future__ import annotations

from collections.abc import Mapping

from .output import FittedTable
from .tables import share


def figures_table(figures: Mapping[str, Mapping[str, float]]) -> FittedTable:
    """Return the figures on the held-out requests by estimator.

    Errors are in tokens. ACC-50: the share with an error of at most 50.
    """
    rows = [
        (name, f"{one['requests']:,}", f"{one['mean_error']:.1f}", *(share(one[of]) for of in PARTS))
        for name, one in figures.items()
    ]
    return FittedTable(("ESTIMATOR", "HELD OUT", "MEAN ERROR", "RELATIVE ERROR", "ACC-50", "ACC-100"), rows, numbers=5)


PARTS = ("relative_error", "acc_50", "acc_100")
