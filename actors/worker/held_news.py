"""News held back for a slow gateway: tokens of one request are joined.

A slow gateway gets fewer and larger reports, and their number no longer grows with the number of sweeps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ...policies.sweep.events import TokensEmitted
from .messages import GatewayNews


def joined(first: TokensEmitted, then: TokensEmitted) -> TokensEmitted:
    """Return one event for two consecutive token events of one attempt."""
    return replace(then, position=first.position, tokens=first.tokens + then.tokens, logprobs=first.logprobs + then.logprobs)


class HeldNews:
    """News for one gateway. The order within a request is kept, the order between requests is not."""

    def __init__(self) -> None:
        self.news: list[GatewayNews] = []
        self._last: dict[str, int] = {}  # request -> index of its last news

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
