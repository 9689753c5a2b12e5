"""Scoring of variants' answers at a gateway: sends what ``policies/requests/book/scoring.py`` asks for, reads the scores.

A scoring is a stream of the gateway's own that no client reads. It is cancelled before a client's request is sent.
"""

from __future__ import annotations

from collections.abc import Callable

from ...policies.adaptive.similarity import ServedAnswer
from ...policies.requests.book.parts import BookParts
from ...policies.requests.book.scoring import gives_way, next_scoring, take_scores
from ...policies.requests.refusal import RequestRefused
from ...policies.sweep.events import PromptScored, TokensEmitted
from .port import Generation, StreamNews
from .stream import Offers, RequestStream


class ScoredStream(RequestStream):
    """The stream of the request that scores an answer. It passes the scores on, and keeps nothing."""

    def __init__(self, request: str, end: Callable[[str, bool], None], parts: BookParts) -> None:
        super().__init__(request, end, Offers())
        self._parts = parts
        self._answer: ServedAnswer | None = parts.scoring.current

    def put(self, news: StreamNews) -> None:
        if isinstance(news, PromptScored) and self._is_current():
            take_scores(self._parts, news)
        elif isinstance(news, TokensEmitted) and news.finish:
            self.close()  # without scores

    def fail(self, error: RequestRefused) -> None:
        self.close()

    def close(self) -> None:
        if self._is_current():
            self._parts.scoring.end(None)

    def _is_current(self) -> bool:
        return self._answer is not None and self._parts.scoring.current is self._answer


class AnswerScoring:
    """The scoring of one gateway's answers, one after the other (see the module). begin: sends a request."""

    def __init__(
        self,
        parts: BookParts,
        begin: Callable[[Generation, RequestStream], RequestStream],
        end: Callable[[str, bool], None],
    ) -> None:
        self._parts = parts
        self._begin, self._end = begin, end
        self._stream: ScoredStream | None = None

    def tick(self, now: float) -> None:
        """End what gives way, and begin with the next answer if its listed chain is idle."""
        if gives_way(self._parts, now):
            self.give_way()
        generation = next_scoring(self._parts, now)
        if generation is not None:
            self._stream = ScoredStream(generation.id, self._end, self._parts)
            self._begin(generation, self._stream)

    def give_way(self) -> None:
        """Cancel the request that scores, as another one comes; its answer is tried again."""
        if self._stream is not None and self._parts.scoring.current is not None:
            self._stream.cancel()
            self._stream.close()
