"""Reading the sequences of an answer: each to its end, side by side, past the meter.

A reader wakes for the first news of a sequence, for the last, and whenever its client reads too slowly. What comes between
may be passed on in the turn that delivers it, which costs half as much.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ...actors.gateway.port import StreamNews
from ...policies.sweep.events import TokensEmitted
from ..errors import ApiError
from ..http.metrics import Meter
from .choice import ChoiceText, TextPiece
from .event_ids import one_by_one

MANY = 1024  # tokens of an answer; to write this number with its probabilities takes some milliseconds
Part = TypeVar("Part")
Use = Callable[[TextPiece], Awaitable[None] | None]


@dataclass(slots=True)
class AnswerEnds:
    """The ended choices of a call, and the meter that counts them."""

    meter: Meter
    ended: set[int] = field(default_factory=set)


@dataclass(slots=True, eq=False, kw_only=True)
class ChoiceReader:
    """The reader of one choice. ``first``: the first of its prompt. ``singly``: each token is a piece of its own."""

    choice: ChoiceText
    ends: AnswerEnds
    first: bool
    singly: bool

    async def read(self, use: Use) -> None:
        """Read the sequence to its end. ``use`` takes each piece, and may return something to wait for."""
        async for whole in self.choice.stream:
            for news in one_by_one(whole) if self.singly else (whole,):
                piece = self._take(news)
                waiting = use(piece)
                if waiting is not None:
                    await waiting
                if piece.finish:
                    return
        raise ApiError(500, f"choice {self.choice.index} ended without a reason; the server's log has the details")

    def pass_on(self, put: Callable[[TextPiece], None], free: Callable[[], bool]) -> None:
        """Let ``put`` take the pieces that come while it is ``free`` and ``read`` waits for them.

        Not where the text may end the sequence, as a stop string does: the gateway does not take that while it delivers.
        """
        choice, meter = self.choice, self.ends.meter
        if choice.stops:
            return

        def listen(news: TokensEmitted) -> bool:
            size = len(news.tokens) + len(choice.prompt_logprobs)
            if not choice.completion_tokens or size >= MANY or not free():
                return False
            for one in one_by_one(news) if self.singly else (news,):
                piece = choice.take(one)
                meter.tokens(len(piece.tokens))
                put(piece)
            return True

        choice.stream.listen(listen)

    def _take(self, news: StreamNews) -> TextPiece:
        choice, meter = self.choice, self.ends.meter
        if not choice.completion_tokens and isinstance(news, TokensEmitted) and news.tokens:
            progress = choice.stream.progress()
            choice.cached = progress.cached
            meter.began(progress, looked=choice.looked, first=self.first)
        piece = choice.take(news)
        meter.tokens(len(piece.tokens))
        if piece.finish:
            self.ends.ended.add(choice.index)
            meter.finished(piece.finish, choice.completion_tokens)
        return piece


async def each(parts: Sequence[Part], run: Callable[[Part], Awaitable[None]]) -> None:
    """Run all parts of a request together; the first failure cancels the others."""
    if len(parts) == 1:
        await run(parts[0])
        return
    tasks = [asyncio.ensure_future(run(part)) for part in parts]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
