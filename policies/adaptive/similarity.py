"""Similarity of the answers that variants gave: a part of them is read once more by the listed chain, in idle time.

The listed chain scores an answer as a prompt. For each token that a variant gave, it tells the log-probability and the rank
that this token has there, after the same tokens. ``agreed`` is the share of tokens that the listed chain would have chosen
greedily: what BlockLLM reports as the similarity of outputs, 0.88 (section 8). Its measure is the cosine of two vocabulary
distributions; these are as long as the vocabulary and leave no worker, so the choice is compared and not the distribution.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

MOST_WAITING = 64  # answers that wait to be scored; beyond them the oldest is dropped
PATIENCE = 10.0  # seconds in which a scoring must be over, or another answer has its turn
OWNER = ":similarity"  # the key of requests that score: no client's, since names of keys begin with a letter or a digit
TRIES = 8  # times that an answer is tried, before it is dropped


@dataclass(frozen=True, slots=True)
class Similarity:
    """The similarity of answers to those of the listed chain.

    tokens: compared. agreed: of these, the ones that the listed chain would have chosen greedily. logprob: the sum of their
    log-probabilities there.
    """

    answers: int = 0
    tokens: int = 0
    agreed: int = 0
    logprob: float = 0.0

    def plus(self, other: Similarity) -> Similarity:
        answers, tokens = self.answers + other.answers, self.tokens + other.tokens
        return Similarity(answers, tokens, self.agreed + other.agreed, self.logprob + other.logprob)

    def view(self) -> dict[str, float]:
        """Return what people see: counts, the share that agrees, and the mean log-probability."""
        of = max(self.tokens, 1)
        return {
            "answers": self.answers, "tokens": self.tokens, "agreed": self.agreed / of, "logprob": self.logprob / of,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class ServedAnswer:
    """An answer that variants gave.

    model: the model that was asked for. listed: its application. variant: the last variant that gave tokens. tokens: prompt
    and answer. spans: places of the variants' tokens among them, first and end.
    """

    request: str
    model: str
    listed: str
    variant: str
    tokens: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    salt: bytes = b""
    tried: int = 0


def is_scored(request: str, share: float) -> bool:
    """Return whether the answers to a request are among the ``share`` that is scored: the same for an id, always."""
    number = int.from_bytes(blake2b(request.encode(), digest_size=8).digest(), "big")
    return number < share * (1 << 64)


def varied_spans(
    variants: Container[str], chains: Sequence[tuple[int, str]], begins: int, end: int
) -> list[tuple[int, int]]:
    """Return the places of tokens from variants.

    chains: (tokens of the answer before it, application) for each chain in order. begins, end: places of the answer's first
    token and behind its last one.
    """
    bounds = [begins + position for position, _ in chains] + [end]
    spans = [(first, last) for (_, name), first, last in zip(chains, bounds, bounds[1:], strict=False) if name in variants]
    return [(first, last) for first, last in spans if first < last]


def compared(answer: ServedAnswer, scores: Sequence[tuple[float, int]]) -> Similarity:
    """Return the similarity of an answer.

    scores: the log-probability and the rank of each token but the first. An answer as long as the context lacks its last
    token.
    """
    own = [scores[place - 1] for first, end in answer.spans for place in range(first, min(end, len(scores) + 1))]
    return Similarity(1, len(own), sum(rank == 1 for _, rank in own), sum(logprob for logprob, _ in own))


def idle_home(routes: Sequence[tuple[str, tuple[str, ...]]], busy: Container[str]) -> str:
    """Return the home of the first route whose workers are all idle; empty: there is none.

    routes: (home, workers). busy: workers with a request.
    """
    return next((home for home, workers in sorted(routes) if not any(worker in busy for worker in workers)), "")


class AnswersToScore:
    """The answers of one gateway that are to be scored, and what scoring has found. ``share``: of answers; 0: none.

    One answer is scored at a time. It gives way as soon as a request runs on its workers, and is tried again.
    """

    def __init__(self, share: float = 0.0) -> None:
        self.share = share
        self.found: dict[tuple[str, str], Similarity] = {}  # by model and variant
        self.current: ServedAnswer | None = None
        self.since = 0.0  # when its turn began
        self.home = ""  # the worker that is to score it
        self._waiting: OrderedDict[str, ServedAnswer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, answer: ServedAnswer) -> None:
        """Take an answer that has ended; without room the oldest one is dropped."""
        self._waiting[answer.request] = answer
        if len(self._waiting) > MOST_WAITING:
            self._waiting.popitem(last=False)

    def first(self, homes: Mapping[str, str], now: float) -> ServedAnswer | None:
        """Begin with the first answer whose listed chain has an idle home; None: there is none, or one is being scored.

        homes: application -> idle home, or empty.
        """
        if self.current is not None:
            return None
        found = next((one for one in self._waiting.values() if homes.get(one.listed)), None)
        if found is not None:
            del self._waiting[found.request]
            self.current, self.since = found, now
            self.home = homes[found.listed]
        return found

    def listed(self) -> dict[str, str]:
        """Return the applications that are to score answers, with the models that were asked for."""
        return {one.listed: one.model for one in self._waiting.values()}

    def is_late(self, now: float) -> bool:
        """Return whether the answer that is being scored takes too long, as when its worker gives no credit."""
        return self.current is not None and now - self.since > PATIENCE

    def end(self, found: Similarity | None) -> ServedAnswer | None:
        """End the turn of an answer; return it. found: None: it gave way or failed, and is tried again."""
        answer, self.current = self.current, None
        if answer is None:
            return None
        if found is not None:
            key = answer.model, answer.variant
            self.found[key] = self.found.get(key, Similarity()).plus(found)
        elif answer.tried + 1 < TRIES:
            again = replace(answer, tried=answer.tried + 1)
            self._waiting[answer.request] = again
        return answer
