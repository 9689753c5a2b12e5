"""Length estimates: how many tokens an answer will have, from what is known of its request before it starts.

``Features`` are what an estimate is made from, ``LengthEstimator`` is what makes it: a history of served requests
(``length_history.py``), a trained regressor (``length_regression.py``), an oracle. ``max_tokens`` bounds every estimate, and
a length that the request states is the estimate. Measures, and the correction of estimates that a sequence has outrun, are
those of "Block" (Da and Kalyvianaki 2025, length tagger); where it is known how wrong estimates are, more is known of an
answer that has come so far (``corrected``). Unit of every length: tokens.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

TERMS = 1024  # terms are numbered below this: what a model has weights for
STRUCTURE = TERMS // 2  # terms below this say how the request is built, the others which tokens it has
ENDS = 16  # tokens of the prompt's head and of its tail that are looked at
STEPS = 4  # terms of prompt length for each doubling of it
MORE = 10  # tokens that a sequence which has outrun its estimate is expected to make still
KNOWN = 0.01  # a spread below this is none
FAR = 5.0  # standard deviations from which on a tail is its limit
HALF_ROOT = math.sqrt(0.5)
FEW, WINDOW = 16, 256  # answers before a spread is told, and that it is told of
LEAST = 1e-9  # of a spread that is known: 0 is one that is not
NOISE = (0.1, 5.0)  # bounds of a factor by which an estimate is made wrong, as in the paper's study of length error


@dataclass(frozen=True, slots=True)
class Features:
    """What an estimate is made from. No token can be read from it: ``terms`` are hashes of few bits."""

    application: str
    prompt: int  # tokens
    max_tokens: int
    min_tokens: int = 0
    stated: bool = False  # its length is ``max_tokens``: nothing else ends it
    terms: tuple[int, ...] = ()  # hashed n-grams of the prompt's ends and how it is asked, each below TERMS
    request: str = ""  # its id, by which an oracle knows it


@dataclass(frozen=True, slots=True)
class Lesson:
    """What became of a request. ``whole``: it ended by itself; else a limit ended it, and ``length`` bounds from below."""

    features: Features
    length: int
    whole: bool
    expected: int = 0  # what was estimated when it came; 0: nothing


class LengthEstimator(Protocol):
    """What forecasts and gateways ask."""

    def estimate(self, features: Features) -> int:
        """Expected tokens of the answer, 1 to ``max_tokens``; 0 where nothing is known."""


class LengthLearner(LengthEstimator, Protocol):
    """A state machine: equal lessons in equal order make equal estimates."""

    def learn(self, lesson: Lesson) -> None: ...

    def snapshot(self) -> dict[str, Any]:
        """Plain data that shares nothing with it; "kind" says whose ``restore`` takes it."""


def features_of(
    application: str,
    prompt: Sequence[int],
    max_tokens: int,
    *,
    min_tokens: int = 0,
    endless: bool = False,
    asked: str = "",
    request: str = "",
) -> Features:
    """``endless``: no token and no text ends the answer. ``asked``: how it is sampled and what ends it, in words that are
    equal for equal wishes."""
    size, head, tail = len(prompt), prompt[:ENDS], prompt[-ENDS:]
    front = struct.pack(f"<{len(head)}Q", *head)
    back = struct.pack(f"<{len(tail)}Q", *tail)
    coarse, fine = size.bit_length(), round(STEPS * math.log2(1 + size))
    here = zlib.crc32(application.encode())
    words = [
        "",
        f"{here}",
        f"coarse {coarse}",
        f"fine {fine}",
        f"{here} {fine}",
        asked,
        f"{here} most {max_tokens.bit_length()}",
    ]
    for count in (1, 2, 4, 8):
        if count <= len(head):
            start = zlib.crc32(front[: 8 * count])
            words += [f"head {start}", f"head {start} {fine}"]
        if count <= len(tail):
            words.append(f"tail {zlib.crc32(back[-8 * count :])}")
    terms = dict.fromkeys(_spread(zlib.crc32(word.encode()), STRUCTURE) for word in words)
    for ids, mark in ((front, 0), (back, zlib.crc32(b"tail"))):  # a mark of few bits would make one token another
        found = (zlib.crc32(ids[at : at + 8], mark) for at in range(0, len(ids), 8))
        terms |= dict.fromkeys(STRUCTURE + _spread(value, TERMS - STRUCTURE) for value in found)
    stated = endless or min_tokens >= max_tokens
    return Features(application, size, max_tokens, min_tokens, stated, tuple(terms), request)


def _spread(value: int, below: int) -> int:
    """A CRC as a number below ``below``, by Fibonacci hashing: a CRC alone is linear, and near tokens would collide."""
    return (value * 0x9E3779B1 & 0xFFFFFFFF) * below >> 32


def bounded(tokens: float, features: Features) -> int:
    """An estimate that can be: the stated length, or what lies between 1, ``min_tokens`` and ``max_tokens``."""
    return features.max_tokens if features.stated else min(max(1, features.min_tokens, round(tokens)), features.max_tokens)


def corrected(estimate: int, prompt_length: int, total_length: int, more: int = MORE, spread: float = 0.0) -> int:
    """The estimate of an answer of which ``total_length - prompt_length`` tokens are there: more than these, always.

    more: tokens that are expected of an answer which has outrun its estimate, as in the paper. spread: standard deviation of
    log(length / estimate), where it is known; then it is the mean of all lengths beyond those tokens, if they are
    log-normal around the estimate: an answer that is long already tends to be longer still.
    """
    generated = total_length - prompt_length
    if spread < KNOWN:
        return estimate if estimate > generated else generated + more
    mean = estimate * math.exp(spread * spread / 2)
    if generated > 0:
        beyond = math.log(generated / estimate) / spread  # standard deviations
        if beyond > FAR:
            mean = generated * (1 + spread / beyond)  # what the quotient below tends to
        else:
            mean *= math.erfc((beyond - spread) * HALF_ROOT) / math.erfc(beyond * HALF_ROOT)
    return max(round(mean), generated + 1)


class LengthSpread:
    """How wrong estimates are at a worker: the spread of ``corrected``, from answers that have ended there; the last ones
    weigh most."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[int, int]] = {}  # request -> tokens of its prompt, and those that are expected
        self._count, self._square = 0, 0.0

    def begin(self, request: str, prompt_length: int, estimate: int) -> None:
        """``estimate`` 0: there is none."""
        if estimate:
            self._open[request] = (prompt_length, estimate)

    def end(self, request: str, total_length: int) -> None:
        """Its answer is whole."""
        prompt, estimate = self._open.pop(request, (0, 0))
        if estimate and total_length > prompt:
            self._count += 1
            self._square += (math.log((total_length - prompt) / estimate) ** 2 - self._square) / min(self._count, WINDOW)

    def leave(self, request: str) -> None:
        """It is gone before its answer was whole."""
        self._open.pop(request, None)

    @property
    def value(self) -> float:
        """0.0 until enough have ended, more from then on."""
        return max(math.sqrt(self._square), LEAST) if self._count >= FEW else 0.0


def clipped(factor: float) -> float:
    """By which an estimate is made wrong on purpose."""
    least, most = NOISE
    return max(least, min(factor, most))


@dataclass(frozen=True, slots=True)
class Oracle:
    """Knows the length of each request by its id, and learns nothing; for tests and simulations.

    factors: by which it is wrong, by request, clipped to ``NOISE``. Others are told as they are.
    """

    lengths: Mapping[str, int]
    factors: Mapping[str, float]

    def estimate(self, features: Features) -> int:
        """See ``LengthEstimator``. Raises KeyError for a request that it does not know."""
        factor = clipped(self.factors.get(features.request, 1.0))
        return bounded(self.lengths[features.request] * factor, features)


@dataclass(slots=True)
class Accuracy:
    """How good estimates were, in the measures of the paper's section on its length tagger."""

    count: int = 0
    error: int = 0  # sum of |estimate - length|
    relative: float = 0.0  # sum of |estimate - length| / length
    within_50: int = 0
    within_100: int = 0

    def add(self, estimate: int, length: int) -> None:
        wrong = abs(estimate - length)
        self.count += 1
        self.error += wrong
        self.relative += wrong / max(length, 1)
        self.within_50 += wrong <= 50
        self.within_100 += wrong <= 100

    def figures(self) -> dict[str, float]:
        """Means over all estimates; zeros where there were none."""
        many = max(self.count, 1)
        return {
            "requests": self.count,
            "mean_error": self.error / many,
            "relative_error": self.relative / many,
            "acc_50": self.within_50 / many,
            "acc_100": self.within_100 / many,
        }
