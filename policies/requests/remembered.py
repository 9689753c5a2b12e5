"""The tokens of answers that were cut off: a client that asks for the rest has them computed once.

An answer is found by what it follows from: a client that finds it could compute it. It is kept for a short time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from ..plan.sampling import SamplingParams

MOST_TOKENS = 1 << 20  # of all remembered answers together; the oldest are forgotten first


@dataclass(frozen=True, slots=True)
class AnswerKey:
    """The identity of an answer. ``digest``: of its model, prompt, sampling and ends. ``seed``: a quick test for others."""

    digest: bytes
    seed: int


@dataclass(frozen=True, slots=True)
class KnownAnswer:
    """The beginning of an answer that a worker remembers, but for its last token, which is drawn again."""

    home: str = ""  # the worker; "": none remembers the answer
    tokens: list[int] = field(default_factory=list)


def longest(answers: Mapping[str, list[int]]) -> KnownAnswer:
    """Return the longest beginning. ``answers``: tokens by the worker that remembers them."""
    home = max(answers, key=lambda worker: len(answers[worker]), default="")
    tokens = answers.get(home, [])[:-1]
    return KnownAnswer(home, tokens) if tokens else KnownAnswer()


def answer_key(
    application: str, prompt: Sequence[int], sampling: SamplingParams, ends: Sequence[int], salt: bytes
) -> AnswerKey:
    """Return the key of an answer. ``prompt``: without virtual tokens. ``ends``: the tokens that end the answer."""
    grammar = sampling.grammar
    plain = replace(sampling, grammar=None, logprobs=-1, prompt_logprobs=-1)
    parts = (application, list(prompt), plain, grammar and (grammar.key, grammar.to_the_end), sorted(ends), salt)
    return AnswerKey(blake2b(repr(parts).encode(), digest_size=16).digest(), sampling.seed)


class RememberedAnswers:
    """The answers that one worker remembers, each for ``window`` seconds."""

    def __init__(self, window: float) -> None:
        self.window = window
        self._answers: OrderedDict[bytes, tuple[list[int], float]] = OrderedDict()  # the oldest first, with its end
        self._tokens = 0

    def add(self, key: AnswerKey, tokens: list[int], now: float) -> None:
        """Remember an answer: the longest known beginning of it."""
        self._forget(now)
        if self.window <= 0 or not tokens:
            return
        kept = max(self._take(key.digest), tokens, key=len)
        self._answers[key.digest] = kept, now + self.window
        self._tokens += len(kept)
        while self._tokens > MOST_TOKENS:
            self._take(next(iter(self._answers)))

    def find(self, key: AnswerKey, now: float) -> list[int]:
        """Return the tokens of an answer, or none."""
        self._forget(now)
        return self._answers.get(key.digest, ([], 0.0))[0]

    def _take(self, digest: bytes) -> list[int]:
        tokens, _ = self._answers.pop(digest, ([], 0.0))
        self._tokens -= len(tokens)
        return tokens

    def _forget(self, now: float) -> None:
        while self._answers and next(iter(self._answers.values()))[1] <= now:
            self._take(next(iter(self._answers)))
