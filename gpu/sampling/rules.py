"""``TokenRules`` in the form that a row's sampling uses: arrays made once, when the row is set.

Masks and biases only; penalties, order and arithmetic of the other steps are ``gpu/sampling/sampler.py``'s. V is the
vocabulary.
"""

from __future__ import annotations

import numpy as np

from blockwright.policies.plan.sampling import TokenRules


class RowRules:
    """See the module."""

    __slots__ = ("_allowed_K", "_bias_B", "_biased_B", "_ends_E", "_min_tokens", "_phrases", "_words_W")

    def __init__(self, rules: TokenRules) -> None:
        self._allowed_K = np.unique(np.asarray(rules.allowed, dtype=np.int64)) if rules.allowed else None
        self._words_W = np.asarray([ids[0] for ids in rules.banned if len(ids) == 1], dtype=np.int64)
        self._phrases = [(np.asarray(ids[:-1], dtype=np.int32), ids[-1]) for ids in rules.banned if len(ids) > 1]
        bias = dict(rules.bias)
        self._biased_B = np.asarray(list(bias), dtype=np.int64)
        self._bias_B = np.asarray(list(bias.values()), dtype=np.float64)
        self._min_tokens = rules.min_tokens
        self._ends_E = np.asarray(rules.ends, dtype=np.int64)

    def apply(self, score_V: np.ndarray, output: np.ndarray) -> None:
        """In place; what may not come gets minus infinity. ``output``: the tokens generated so far.

        Of rules that together leave no token only the allowed ones hold: a sequence must go on with something.
        """
        score_V[self._biased_B] += self._bias_B
        barred_V = np.zeros(score_V.size, dtype=bool)
        if self._allowed_K is not None:
            barred_V[:] = True
            barred_V[self._allowed_K] = False
        barred_V[self._words_W] = True
        for before, last in self._phrases:
            if before.size <= output.size and np.array_equal(output[output.size - before.size :], before):
                barred_V[last] = True
        if output.size < self._min_tokens:
            barred_V[self._ends_E] = True
        if barred_V.all():
            barred_V[slice(None) if self._allowed_K is None else self._allowed_K] = False
        score_V[barred_V] = -np.inf
