"""News held back for a slow gateway: tokens of one request are joined, its rounds of drafts and its parked time added up.

A slow gateway gets fewer and larger reports, and their number no longer grows with the number of sweeps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ...policies.requests.book.sweep_report import joined
from ...policies.sweep.events import DraftsVerified, GatewayNews, GuessesJudged, SatOut, TokensEmitted


class CoalescedNews:
    """News for one gateway. The order within a request is kept, the order between requests is not.

    Only what is added up comes before all other news: a gateway does not count what follows a request's end.
    """

    def __init__(self) -> None:
        self._news: list[GatewayNews] = []
        self._last: dict[str, int] = {}  # request -> index of its last news
        self._rounds: dict[tuple[str, int, str], DraftsVerified] = {}  # by request, attempt and source
        self._guesses: dict[tuple[str, int], GuessesJudged] = {}  # by request and attempt
        self._parked: dict[tuple[str, int], SatOut] = {}  # by request and attempt

    @property
    def news(self) -> list[GatewayNews]:
        return [*self._rounds.values(), *self._guesses.values(), *self._parked.values(), *self._news]

    def add(self, news: Iterable[GatewayNews]) -> None:
        for one in news:
            if isinstance(one, DraftsVerified):
                self._count(one)
                continue
            if isinstance(one, SatOut):
                self._park(one)
                continue
            if isinstance(one, GuessesJudged):
                self._judge(one)
                continue
            at = self._last.get(one.request)
            last = None if at is None else self._news[at]
            if at is not None and isinstance(last, TokensEmitted) and isinstance(one, TokensEmitted) and _follows(last, one):
                self._news[at] = joined(last, one)
            else:
                self._last[one.request] = len(self._news)
                self._news.append(one)

    def _count(self, one: DraftsVerified) -> None:
        """Add a round of drafts to the held ones of the same attempt and source."""
        key = one.request, one.attempt, one.source
        if (held := self._rounds.get(key)) is not None:
            drafted, accepted = held.drafted + one.drafted, held.accepted + one.accepted
            one = replace(one, drafted=drafted, accepted=accepted, rounds=held.rounds + one.rounds)
        self._rounds[key] = one

    def _judge(self, one: GuessesJudged) -> None:
        """Add guesses to the held ones of the same attempt."""
        key = one.request, one.attempt
        if (held := self._guesses.get(key)) is not None:
            one = replace(one, guesses=held.guesses + one.guesses, accepted=held.accepted + one.accepted)
        self._guesses[key] = one

    def _park(self, one: SatOut) -> None:
        """Add steps that a request sat out to the held ones of the same attempt."""
        key = one.request, one.attempt
        if (held := self._parked.get(key)) is not None:
            one = replace(one, sweeps=held.sweeps + one.sweeps, seconds=held.seconds + one.seconds)
        self._parked[key] = one


def _follows(last: TokensEmitted, one: TokensEmitted) -> bool:
    return last.attempt == one.attempt and not last.finish and one.position == last.position + len(last.tokens)
