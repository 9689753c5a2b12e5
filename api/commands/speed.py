"""The speed of an answer in one line. It is measured at the reader, so it includes the network."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..program.results import Answer


class Watch:
    """A stopwatch for an answer, started when it is made and told of tokens as they arrive."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._began = clock, clock()
        self._first: float | None = None
        self._last = self._began
        self._at_first = 0  # tokens that arrived with the first one

    def saw(self, tokens: int) -> None:
        if not tokens:
            return
        self._last = self._clock()
        if self._first is None:
            self._first, self._at_first = self._last, tokens

    def summary(self, answer: Answer) -> str:
        """Return prompt, time to first token, tokens per second after it, the finish reason and the id."""
        first = self._first if self._first is not None else self._last
        later = answer.completion_tokens - self._at_first
        rate = f"{later / (self._last - first):.1f} tok/s" if later > 0 and self._last > first else "- tok/s"
        begun = f"first token after {(first - self._began) * 1000:.0f} ms"
        ended = f"{answer.finish_reason} ({answer.id})"
        return f"[{answer.prompt_tokens} prompt tokens, {begun}, {answer.completion_tokens} tokens, {rate}, {ended}]"
