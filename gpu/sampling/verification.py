"""Verification of drafts: the drawn tokens of a row up to the first that is not the draft at its place.

The drafts stand in the token table, so that each position is drawn with the tokens before it in view: rules, penalties and
noise are the same as without drafts. A draft that is equal to the drawn token stands, and the position behind it counts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...policies.plan.sweep_plan import SweepPlan


class DrawnPositions:
    """The positions of a plan's batch rows after which a token is drawn, row by row.

    ``batch``: the batch rows. ``verify``: the ones of them that hold drafts, of which every position counts; of the others
    it is the last one.
    """

    def __init__(self, plan: SweepPlan, batch: Sequence[int], verify: set[int]) -> None:
        counts = [plan.count[n] if n in verify else 1 for n in batch]
        count_N = np.asarray(counts, dtype=np.int64)
        self.first_N = np.cumsum(count_N) - count_N  # index of each row's first drawn token
        self.count_N = count_N
        skipped_N = np.asarray([plan.count[n] for n in batch], dtype=np.int64) - count_N
        within_T = np.arange(count_N.sum()) - np.repeat(self.first_N, count_N)
        self.place_T = within_T + np.repeat(skipped_N, count_N)  # position in the batch row
        self.batch_T = np.repeat(np.asarray(batch, dtype=np.int64), count_N)


def standing(tokens: Sequence[int], drafts: np.ndarray) -> int:
    """Return how many of a row's drawn tokens count: the drafts that stand, and the token behind them."""
    differs = np.flatnonzero(np.asarray(tokens[:-1]) != drafts)
    return int(differs[0]) + 1 if differs.size else len(tokens)
