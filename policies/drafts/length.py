"""The number of drafts in a round: the one with which the sweep yields most tokens a second.

A sweep that verifies g drafts of a row has g positions more, and yields the tokens of its other rows and the mean of a
round. Both the cost model and the acceptance are estimates, so nothing is drafted for a gain of less than ``LEAST_GAIN``.
"""

from __future__ import annotations

from collections.abc import Callable

from .acceptance import UNIT, Acceptance

LEAST_GAIN = 16  # divisor: a gain of less than a 16th is left
FIRST_PAUSE = 16  # tokens that are drawn one by one after the policy has said 0, before a round tries again
LONGEST_PAUSE = 256
MISSED = 8  # the longest pause in tokens after nothing was found to draft


Cost = Callable[[int], int]  # nanoseconds of a sweep by the number of its drafts


def best_length(acceptance: Acceptance, limit: int, others: int, cost: Cost) -> int:
    """Return how many drafts, at most ``limit``, make the sweep yield most tokens a second; 0: none gain enough.

    ``others``: tokens that the sweep draws for other rows. ``cost(g)``: nanoseconds of the sweep with ``g`` drafts.
    """
    alone = best_cost = max(1, cost(0))
    best = 0
    best_yield = (others + 1) * UNIT
    means = acceptance.expected(limit)
    for drafts in range(1, limit + 1):
        tokens, time = others * UNIT + means[drafts], max(1, cost(drafts))
        gains = tokens * alone * LEAST_GAIN > (others + 1) * UNIT * time * (LEAST_GAIN + 1)
        if gains and tokens * best_cost > best_yield * time:
            best = drafts
            best_yield = tokens
            best_cost = time
    return best
