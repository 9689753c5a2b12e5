"""Token rules of one row, as arrays that are made once, when the row is set.

Masks and biases only; ``gpu/sampling/sampler.py`` does penalties, and the order and arithmetic of the other steps. V is the
vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...policies.plan.sampling import TokenRules


@dataclass(frozen=True, slots=True)
class ListedTokens:
    """Rules as a list of L token ids, each once, and what is added to their logits: minus infinity forbids one.

    ``only``: no other token is allowed.
    """

    only: bool
    id_L: np.ndarray
    value_L: np.ndarray


class RowRules:
    """``TokenRules`` in the form that sampling uses (see the module)."""

    __slots__ = (
        *("_allowed_K", "_banned", "_barred", "_bias_B", "_biased_B", "_ends_E", "_first_F", "_min_tokens", "_no_repeat"),
        *("_phrases", "_words_W"),
    )

    def __init__(self, rules: TokenRules) -> None:
        self._allowed_K = np.unique(np.asarray(rules.allowed, dtype=np.int64)) if rules.allowed else None
        self._words_W = np.asarray([ids[0] for ids in (*rules.banned, *rules.barred) if len(ids) == 1], dtype=np.int64)
        self._banned = [_Phrase(ids) for ids in rules.banned if len(ids) > 1]
        self._barred = [_Phrase(ids) for ids in rules.barred if len(ids) > 1]
        self._phrases = [_Phrase(ids, bias) for ids, bias in rules.phrases]
        bias = dict(rules.bias)
        self._biased_B = np.asarray(list(bias), dtype=np.int64)
        self._bias_B = np.asarray(list(bias.values()), dtype=np.float64)
        self._min_tokens = rules.min_tokens
        self._ends_E = np.asarray(rules.ends, dtype=np.int64)
        self._first_F = np.asarray(rules.barred_first, dtype=np.int64)
        self._no_repeat = rules.no_repeat

    def apply(self, score_V: np.ndarray, known: np.ndarray, prompt_length: int) -> None:
        """Apply the rules in place; forbidden tokens get minus infinity.

        ``known`` is prompt and output so far; virtual tokens are negative. Scores of minus infinity are of tokens that a
        grammar forbids. If the rules leave no other token, only the allowed ones hold, because a sequence must continue
        with some token; if the grammar forbids all of these, it holds alone.
        """
        outside_V = np.isneginf(score_V)
        output = known[prompt_length:]
        score_V[self._biased_B] += self._bias_B
        barred_V = np.zeros(score_V.size, dtype=bool)
        if self._allowed_K is not None:
            barred_V[:] = True
            barred_V[self._allowed_K] = False
        barred_V[self._words_W] = True
        for phrase in self._banned:
            if phrase.follows(output):
                barred_V[phrase.last] = True
        if self._phrases or self._barred or self._no_repeat:
            self._apply_to_all(score_V, barred_V, known[known >= 0])
        if output.size < self._min_tokens:
            barred_V[self._ends_E] = True
        if not output.size:
            barred_V[self._first_F] = True
        if (barred_V | outside_V).all():
            alone = self._allowed_K is None or outside_V[self._allowed_K].all()
            barred_V[slice(None) if alone else self._allowed_K] = False
        score_V[barred_V] = -np.inf

    def listed(self, output: int, vocabulary: int) -> ListedTokens | None:
        """Return the rules as a list, for an output of this many tokens; None if they depend on which tokens these are.

        ``apply`` gives the same scores, without a grammar.
        """
        if self._banned or self._barred or self._phrases or self._no_repeat:
            return None
        barred = [self._words_W]
        if output < self._min_tokens:
            barred.append(self._ends_E)
        if not output:
            barred.append(self._first_F)
        barred_B = np.unique(np.concatenate(barred))
        bias = dict(zip(self._biased_B.tolist(), self._bias_B.tolist(), strict=True))
        if self._allowed_K is not None:
            left_K = np.setdiff1d(self._allowed_K, barred_B)
            id_L = left_K if left_K.size else self._allowed_K
            return ListedTokens(True, id_L, np.asarray([bias.get(id, 0.0) for id in id_L.tolist()], dtype=np.float64))
        if barred_B.size >= vocabulary:
            barred_B = barred_B[:0]
        added = bias | dict.fromkeys(barred_B.tolist(), -np.inf)
        return ListedTokens(
            False, np.asarray(list(added), dtype=np.int64), np.asarray(list(added.values()), dtype=np.float64)
        )

    def _apply_to_all(self, score_V: np.ndarray, barred_V: np.ndarray, known: np.ndarray) -> None:
        """Apply the rules that consider the prompt too, like the ones of generation_config.json in transformers."""
        for phrase in self._phrases:
            if phrase.follows(known):
                score_V[phrase.last] += phrase.bias
        for phrase in self._barred:
            if phrase.follows(known):
                barred_V[phrase.last] = True
        if self._no_repeat:
            barred_V[repeating(known, self._no_repeat)] = True


class _Phrase:
    """Token ids whose last one is affected if the others come just before it."""

    __slots__ = ("before", "bias", "last")

    def __init__(self, ids: Sequence[int], bias: float = 0.0) -> None:
        self.before = np.asarray(ids[:-1], dtype=np.int32)
        self.last = ids[-1]
        self.bias = bias

    def follows(self, tokens: np.ndarray) -> bool:
        """Return whether the phrase's last id would complete it after these."""
        size = self.before.size
        return size <= tokens.size and bool(np.array_equal(tokens[tokens.size - size :], self.before))


def repeating(tokens: np.ndarray, size: int) -> np.ndarray:
    """Return the ids that would end a sequence of ``size`` tokens which is there already."""
    count = tokens.size - size + 1  # number of existing sequences
    if count < 1:
        return tokens[:0]
    same = np.ones(count, dtype=bool)
    for i in range(size - 1):
        same &= tokens[i : i + count] == tokens[count + i]
    return tokens[size - 1 :][same]
