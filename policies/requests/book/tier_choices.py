"""The open choices of a tier: requests that start on a lower tier, and stay there or go up once, to the family's top tier.

The first tokens of such a request are held back until all of its sequences have them, or have ended. ``delivery.py`` then
carries the choice out. Owns the choices by request, and the sequences that have news for one.
"""

from __future__ import annotations

from collections.abc import Collection

from ...sweep.events import PromptScored, TokensEmitted
from ..request_ownership import request_of
from .auto_choice import AutoChoice, HeldAnswer
from .catalogue import Catalogue
from .record import RequestRecord
from .values import StreamNews, TierFigures


class TierChoices:
    """The open choices of one gateway (see the module), by request."""

    def __init__(self) -> None:
        self._open: dict[str, AutoChoice] = {}
        self.pending: list[RequestRecord] = []  # have just got tokens that their choice may wait for
        self.figures = TierFigures()

    def join(self, record: RequestRecord, catalogue: Catalogue, application: str) -> None:
        """Take part in the choice of its request, with a new sequence. ``application``: of the top tier."""
        auto = record.generation.auto
        assert auto is not None, "who joins has a tier to go to"
        request = request_of(record.id)
        choice = self._open.get(request)
        if choice is None:
            virtual = catalogue.virtual(auto.top)
            choice = self._open[request] = AutoChoice(auto, record.model, application, virtual, record.arrival)
        record.choice, record.held = choice, HeldAnswer(auto)
        choice.held[record.id] = record.held

    def leave(self, record: RequestRecord) -> None:
        """Forget a sequence that has ended. The others of its request end, too, as their client has no whole answer."""
        choice = record.choice
        if choice is not None and choice.held.pop(record.id, None) is not None and not choice.held:
            self._open.pop(request_of(record.id), None)

    def hold(self, record: RequestRecord, news: StreamNews) -> None:
        """Hold news of a sequence back until its tier is chosen."""
        held = record.held
        assert held is not None, "who holds news back has a choice before it"
        if isinstance(news, PromptScored):
            held.scored = news
        else:
            held.add(news)
            self.pending.append(record)

    def close(self, choice: AutoChoice) -> list[str]:
        """Close a choice that is made; return its sequences."""
        sequences = [*choice.held]
        del self._open[request_of(sequences[0])]
        choice.held = {}
        key = choice.auto.top, choice.tier
        self.figures.chosen[key] = self.figures.chosen.get(key, 0) + 1
        return sequences

    def check(self, active: Collection[RequestRecord]) -> None:
        """Raise AssertionError when an invariant is broken."""
        assert not self.pending, "tokens for a choice are not looked at"
        holding = {record.id: record for record in active if record.held is not None}
        held = {id: one for choice in self._open.values() for id, one in choice.held.items()}
        assert held == {id: record.held for id, record in holding.items()}, "a held answer is lost"
        for record in active:
            assert record.held is not None or record.state != "held", f"request {record.id} is held for no choice"
            if record.state == "held":
                tokens = record.held.tokens if record.held is not None else None
                assert isinstance(tokens, TokensEmitted), f"request {record.id} is held without tokens"
                assert tokens.finish, f"request {record.id} is held and has not ended"
