"""Length estimates: the expected number of tokens of an answer, from what is known of its request before it starts.

An estimate is made from ``Features`` by a ``LengthEstimator``: a history of served requests (``length_history.py``), a
trained regressor (``length_regression.py``), or an oracle. ``max_tokens`` bounds every estimate, and a length that the
request states is the estimate. The measures, and the correction of estimates that a sequence has outrun, are those of
"Block" (Da and Kalyvianaki 2025, length tagger). If the error of estimates is known, more can be said of a partial answer
(``corrected``). Every length is in tokens.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

TERMS = 1024  # number of terms, for each of which a model has a weight
STRUCTURE = TERMS // 2  # terms below this describe the request's structure, the others its tokens
ENDS = 16  # tokens of the prompt's head and of its tail that are used
STEPS = 4  # terms of prompt length for each doubling of it
MORE = 10  # tokens still expected of a sequence that has outrun its estimate
KNOWN = 0.01  # a smaller spread counts as none
FAR = 5.0  # standard deviations from which on a tail is replaced by its limit
HALF_ROOT = math.sqrt(0.5)
FEW, WINDOW = 16, 256  # answers before a spread is reported, and answers it is based on
LEAST = 1e-9  # least known spread: 0 means unknown
NOISE = (0.1, 5.0)  # bounds of the factor of deliberate errors, as in the paper's study of length error


@dataclass(frozen=True, slots=True)
class Features:
    """The input of an estimate. No token can be read from it: ``terms`` are hashes of few bits."""

    application: str
    prompt: int  # tokens
    max_tokens: int
    min_tokens: int = 0
    stated: bool = False  # its length is ``max_tokens``, since nothing else ends it
    terms: tuple[int, ...] = ()  # hashed n-grams of the prompt's ends and the sampling options, each below TERMS
    request: str = ""  # its id, for an oracle


@dataclass(frozen=True, slots=True)
class LengthSample:
    """The outcome of a request. ``whole``: it ended by itself; else a limit ended it, and ``length`` is a lower bound."""

    features: Features
    length: int
    whole: bool
    expected: int = 0  # estimate at its arrival; 0: none


class LengthEstimator(Protocol):
    """The interface for forecasts and gateways."""

    def estimate(self, features: Features) -> int:
        """Return the expected tokens of the answer, 1 to ``max_tokens``; 0 if nothing is known."""


class LengthLearner(LengthEstimator, Protocol):
    """A state machine: equal lessons in equal order make equal estimates."""

    def learn(self, lesson: LengthSample) -> None: ...

    def snapshot(self) -> dict[str, Any]:
        """Return plain data that shares nothing with it; "kind" names the class whose ``restore`` takes it."""


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
    """Return the features of a request.

    endless: no token and no text ends the answer. asked: its sampling and stop options, in words that are equal for equal
    options.
    """
    size = len(prompt)
    head = prompt[:ENDS]
    tail = prompt[-ENDS:]
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
    for ids, mark in ((front, 0), (back, zlib.crc32(b"tail"))):  # a mark of few bits would map one token to another
        found = (zlib.crc32(ids[at : at + 8], mark) for at in range(0, len(ids), 8))
        terms |= dict.fromkeys(STRUCTURE + _spread(value, TERMS - STRUCTURE) for value in found)
    stated = endless or min_tokens >= max_tokens
    return Features(application, size, max_tokens, min_tokens, stated, tuple(terms), request)


def _spread(value: int, below: int) -> int:
    """Map a CRC to a number below ``below`` by Fibonacci hashing: a CRC alone is linear, and near tokens would collide."""
    return (value * 0x9E3779B1 & 0xFFFFFFFF) * below >> 32


def bounded(tokens: float, features: Features) -> int:
    """Return a possible estimate: the stated length, or one between 1, ``min_tokens`` and ``max_tokens``."""
    return features.max_tokens if features.stated else min(max(1, features.min_tokens, round(tokens)), features.max_tokens)


def corrected(estimate: int, prompt_length: int, total_length: int, more: int = MORE, spread: float = 0.0) -> int:
    """Return the estimate for an answer with ``total_length - prompt_length`` tokens so far: always more than these.

    more: tokens expected of an answer that has outrun its estimate, as in the paper. spread: standard deviation of
    log(length / estimate), if known. Then the result is the mean of all lengths beyond those tokens, if lengths are
    log-normal around the estimate: an answer that is long already tends to be longer still.
    """
    generated = total_length - prompt_length
    if spread < KNOWN:
        return estimate if estimate > generated else generated + more
    mean = estimate * math.exp(spread * spread / 2)
    if generated > 0:
        beyond = math.log(generated / estimate) / spread  # standard deviations
        if beyond > FAR:
            mean = generated * (1 + spread / beyond)  # the limit of the quotient below
        else:
            mean *= math.erfc((beyond - spread) * HALF_ROOT) / math.erfc(beyond * HALF_ROOT)
    return max(round(mean), generated + 1)


class LengthSpread:
    """The error of estimates at a worker: the spread for ``corrected``, from answers that ended there.

    The last ones weigh most.
    """

    def __init__(self) -> None:
        self._open: dict[str, tuple[int, int]] = {}  # request -> (tokens of its prompt, expected tokens)
        self._count, self._square = 0, 0.0

    def begin(self, request: str, prompt_length: int, estimate: int) -> None:
        """Add a request. ``estimate`` 0: none."""
        if estimate:
            self._open[request] = (prompt_length, estimate)

    def end(self, request: str, total_length: int) -> None:
        """Learn from a complete answer."""
        prompt, estimate = self._open.pop(request, (0, 0))
        if estimate and total_length > prompt:
            self._count += 1
            self._square += (math.log((total_length - prompt) / estimate) ** 2 - self._square) / min(self._count, WINDOW)

    def leave(self, request: str) -> None:
        """Forget a request that is gone before its answer was complete."""
        self._open.pop(request, None)

    @property
    def value(self) -> float:
        """The spread; 0.0 until enough answers have ended, positive from then on."""
        return max(math.sqrt(self._square), LEAST) if self._count >= FEW else 0.0


def clipped(factor: float) -> float:
    """Return the bounded factor by which an estimate is made wrong on purpose."""
    lowest, highest = NOISE
    return max(lowest, min(factor, highest))


@dataclass(slots=True)
class Accuracy:
    """The accuracy of estimates, in the measures of the paper's section on its length tagger."""

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
        """Return the means over all estimates; zeros if there are none."""
        many = max(self.count, 1)
        return {
            "requests": self.count,
            "mean_error": self.error / many,
            "relative_error": self.relative / many,
            "acc_50": self.within_50 / many,
            "acc_100": self.within_100 / many,
        }
