"""Confidence of a lower tier in its answer, and the threshold below which a request goes up to the top tier.

A confidence lies between 0 and 1; more is surer. It follows from the probabilities that the model gives the most likely
tokens at the first positions of an answer. Thresholds are chosen on prompts whose right answers are known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

FIRST_TOKENS = 16  # tokens of an answer that are looked at
LONGEST = 256  # tokens that a threshold may ask for
NEVER, ALWAYS = 0.0, 2.0  # thresholds with which no request goes up, and every request
# Number of the most likely tokens of a position that each measure needs.
MEASURES = {"mean": 1, "least": 1, "margin": 2, "entropy": 5}


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """A rule of an exit for ``auto``: a request whose confidence is below ``theta`` goes up."""

    theta: float
    measure: str = "mean"
    tokens: int = FIRST_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class GradedAnswer:
    """An answered prompt: the lower tier's confidence, and for both tiers whether the answer was right, and its tokens."""

    confidence: float
    right_low: bool
    right_top: bool
    tokens_low: int = 1
    tokens_top: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TierChoice:
    """A result of sending some prompts up: shares of all prompts, and generated tokens times layers against the top's."""

    right: float
    up: float
    work: float


def confidence(measure: str, likely: Sequence[Sequence[float]]) -> float:
    """Return the confidence in an answer.

    ``likely`` has one entry for each of its first tokens: the log-probabilities of the most likely tokens there, highest
    first, at least as many as ``MEASURES`` says. An empty answer is sure.
    """
    if not likely:
        return 1.0
    needed = MEASURES[measure]
    places = [[math.exp(value) for value in values[:needed]] for values in likely]
    if measure == "least":
        return min(place[0] for place in places)
    if measure == "margin":
        return sum(place[0] - place[1] for place in places) / len(places)
    if measure == "entropy":
        return 1.0 - sum(_entropy(place) for place in places) / len(places)
    return sum(place[0] for place in places) / len(places)


def _entropy(place: Sequence[float]) -> float:
    """Return the entropy of a position between 0 and 1. What is not listed counts as one more token."""
    rest = max(0.0, 1.0 - sum(place))
    return -sum(p * math.log(p) for p in (*place, rest) if p > 0.0) / math.log(len(place) + 1)


def goes_up(sure: float, theta: float) -> bool:
    """Return True if a request with this confidence goes up."""
    return sure < theta


def choose(samples: Sequence[GradedAnswer], loss: float) -> float:
    """Return the least threshold that loses at most ``loss`` points of right answers against the top tier.

    Every threshold above it loses no more than that either, so chance does not pick it alone.
    """
    ordered = sorted(samples, key=lambda one: -one.confidence)
    lost = 0
    theta = ALWAYS
    i = 0
    while i < len(ordered):
        now = ordered[i].confidence
        while i < len(ordered) and ordered[i].confidence == now:
            lost += ordered[i].right_top - ordered[i].right_low
            i += 1
        if 100 * lost > loss * len(ordered):
            return theta
        theta = now
    return NEVER


def judge(samples: Sequence[GradedAnswer], theta: float, layers: int, total: int, tokens: int = FIRST_TOKENS) -> TierChoice:
    """Return the result of a threshold for a tier of ``layers`` of ``total`` layers.

    A request that goes up has generated its first ``tokens`` tokens twice.
    """
    ups = [goes_up(one.confidence, theta) for one in samples]
    return _outcome(samples, ups, layers, total, tokens)


def oracle(samples: Sequence[GradedAnswer], layers: int, total: int) -> TierChoice:
    """Return the result of knowing which answers of the lower tier are wrong where the top's are right."""
    return _outcome(samples, [one.right_top and not one.right_low for one in samples], layers, total, 0)


def _outcome(samples: Sequence[GradedAnswer], ups: Sequence[bool], layers: int, total: int, tokens: int) -> TierChoice:
    right = 0
    work = 0
    whole = 0
    for one, up in zip(samples, ups, strict=True):
        right += one.right_top if up else one.right_low
        wasted = min(tokens, one.tokens_low) * layers
        work += wasted + one.tokens_top * total if up else one.tokens_low * layers
        whole += one.tokens_top * total
    return TierChoice(right=right / len(samples), up=sum(ups) / len(samples), work=work / whole)
