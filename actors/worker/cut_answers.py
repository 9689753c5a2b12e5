"""Answers that a worker was computing when their client or gateway went: what is remembered of them, and who asks.

A gateway that takes the rest of an answer over asks here for its tokens. If the sequence of its former gateway still runs,
the question waits for its end for a while: the death of a gateway is known here a moment later than to its clients.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from ...policies.requests.remembered import AnswerKey, RememberedAnswers, answer_key
from ...policies.requests.request_ownership import first_id
from ...policies.sweep.columns import Place
from ...policies.sweep.state import SweepState

WAIT = 4.0  # seconds for which a question waits for the end of the sequence that it is about
STEP = 0.02  # seconds between two looks at it


class CutAnswers:
    """The answers of one worker that were cut off. ``numerics``: returns the worker's."""

    def __init__(self, state: SweepState, window: float, clock: Callable[[], float], numerics: Callable[[], str]) -> None:
        self._state = state
        self._clock = clock
        self._numerics = numerics
        self._answers = RememberedAnswers(window)

    def cancelled(self, requests: Iterable[str]) -> None:
        """Remember sequences that are about to end, by their ids."""
        rows = self._state.parts.rows
        self._remember(s for s in map(rows.find, requests) if s is not None)

    def lost(self, node: str) -> None:
        """Remember the sequences of a node that has ended, before they end."""
        rows = self._state.parts.rows
        ours = [s for s in rows.live() if rows.place[s] in (Place.LOCAL, Place.FORWARD)]
        self._remember(s for s in ours if rows.submission[s].gateway.partition("/")[0] == node)

    async def find(self, key: AnswerKey, request: str, sleep: Callable[[float], Awaitable[None]]) -> list[int]:
        """Return the tokens of an answer, or none. ``request``: its first id; sequences of it that run are waited for."""
        due = self._clock() + WAIT
        while self._runs(key, request) and self._clock() < due:
            await sleep(STEP)
        return self._answers.find(key, self._clock())

    def _runs(self, key: AnswerKey, request: str) -> bool:
        rows = self._state.parts.rows
        ours = (s for s in rows.live() if rows.place[s] in (Place.LOCAL, Place.FORWARD))
        named = (s for s in ours if first_id(rows.submission[s].request) == request)
        return any(rows.submission[s].sampling.seed == key.seed and self._key(s) == key for s in named)

    def _key(self, s: int) -> AnswerKey:
        rows = self._state.parts.rows
        of = rows.submission[s]
        prompt = [token for token in of.tokens[: of.prompt_length] if token >= 0]
        model = f"{rows.route[s].route.application} {self._numerics()}"
        return answer_key(model, prompt, of.sampling, of.stop_tokens, of.salt)

    def _remember(self, sequences: Iterable[int]) -> None:
        if self._answers.window <= 0:
            return
        rows = self._state.parts.rows
        for s in sequences:
            begins = rows.submission[s].prompt_length
            if rows.length[s] > begins and rows.submission[s].sampling.pooling is None:
                self._answers.add(self._key(s), rows.tokens_of(s)[begins:], self._clock())
