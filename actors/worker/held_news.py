"""What a gateway is not told yet because it has much to take: tokens of one request are joined.

So whoever is slow gets fewer and larger reports, whose number no longer grows with that of the sweeps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ...policies.sweep.events import TokensEmitted
from .messages import GatewayNews


def joined(first: TokensEmitted, then: TokensEmitted) -> TokensEmitted:
    """Of one attempt: what ``first`` says and what ``then`` goes on with."""
    return replace(then, position=first.position, tokens=first.tokens + then.tokens, logprobs=first.logprobs + then.logprobs)


class HeldNews:
    """In the order of each request; of different ones none is kept."""

    def __init__(self) -> None:
        self.news: list[GatewayNews] = []
        self._last: dict[str, int] = {}  # request -> where its last news stands

    def add(self, news: Iterable[GatewayNews]) -> None:
        for one in news:
            at = self._last.get(one.request)
            last = None if at is None else self.news[at]
            if at is not None and isinstance(last, TokensEmitted) and isinstance(one, TokensEmitted) and _follows(last, one):
                self.news[at] = joined(last, one)
            else:
                self._last[one.request] = len(self.news)
                self.news.append(one)


def _follows(last: TokensEmitted, one: TokensEmitted) -> bool:
    return last.attempt == one.attempt and not last.finish and one.position == last.position + len(last.tokens)
