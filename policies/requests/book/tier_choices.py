"""Choices of a tier: requests that start on a lower tier, and stay there or go up once, to the top tier of the family.

The first tokens of such a request are held back until all of its sequences have them, or have ended. Then either the held
tokens are delivered and the answer goes on, or every sequence begins anew on the top tier, with its prompt and its seed,
and the held tokens are dropped. So an answer is wholly one tier's. Owns the open choices; ``state.py`` owns the requests.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from ...sweep.events import PromptScored, TokensEmitted
from ..request_ownership import request_of
from .application_usage import ApplicationUsage
from .auto_choice import AutoChoice, HeldAnswer
from .catalogue import Catalogue
from .move_in_progress import MovedParts
from .record import RequestRecord
from .values import StreamNews, TierFigures


class ChoosingParts(MovedParts, Protocol):
    """The parts of ``RequestBook`` that choices need."""

    catalogue: Catalogue
    usage: ApplicationUsage

    def deliver(self, record: RequestRecord, news: StreamNews, now: float) -> None: ...

    def recount(self, record: RequestRecord) -> None: ...

    def park(self, record: RequestRecord) -> None: ...

    def go_up(self, record: RequestRecord, now: float) -> None: ...


class TierChoices:
    """The open choices of one gateway (see the module), by request. ``state``: the owner of the requests."""

    def __init__(self, state: ChoosingParts) -> None:
        self._state = state
        self._open: dict[str, AutoChoice] = {}
        self.figures = TierFigures()

    def joined(self, record: RequestRecord) -> None:
        """Take part in the choice of its request, with a new sequence. No-op for a request that names its model."""
        auto = record.generation.auto
        if auto is None:
            return
        request = request_of(record.id)
        choice = self._open.get(request)
        if choice is None:
            application, virtual = self._state.table.models[auto.top], self._state.catalogue.virtual(auto.top)
            choice = self._open[request] = AutoChoice(auto, record.model, application, virtual, record.arrival)
        record.choice, record.held = choice, HeldAnswer(auto)
        choice.held[record.id] = record.held

    def left(self, record: RequestRecord) -> None:
        """Forget a sequence that has ended. The others of its request end, too, as their client has no whole answer."""
        choice = record.choice
        if choice is not None and choice.held.pop(record.id, None) is not None and not choice.held:
            self._open.pop(request_of(record.id), None)

    def hold(self, record: RequestRecord, news: StreamNews, now: float) -> None:
        """Hold news of a sequence back, and choose the tier if they were the last that the choice waits for."""
        choice, held = record.choice, record.held
        assert choice is not None, "who holds news back has a choice before it"
        assert held is not None, "who holds news back has a choice before it"
        if isinstance(news, PromptScored):
            held.scored = news
            return
        held.add(news)
        if choice.decide(now):
            self._carry_out(choice, now)
        elif news.finish:
            self._state.park(record)
        else:
            self._state.recount(record)

    def _carry_out(self, choice: AutoChoice, now: float) -> None:
        state, tier = self._state, choice.tier
        records = [state.active[id] for id in choice.held]
        del self._open[request_of(records[0].id)]
        choice.held = {}
        key = choice.auto.top, tier
        self.figures.chosen[key] = self.figures.chosen.get(key, 0) + 1
        for record in records:
            record.note(
                now, "tier_chosen", tier=tier, up=bool(choice.up), confidence=choice.confidence,
                theta=choice.auto.threshold.theta,
            )  # fmt: skip
            held, record.held = record.held, None
            assert held is not None, "its tier was open until now"
            if choice.up:
                state.usage.change(record.application, -1, now)
                state.go_up(record, now)
                continue
            state.usage.change(choice.application, -1, now)
            for news in (held.scored, held.tokens):
                if news is not None:
                    state.deliver(record, news, now)

    def check(self, active: Collection[RequestRecord]) -> None:
        """Raise AssertionError when an invariant is broken."""
        holding = {record.id: record for record in active if record.held is not None}
        held = {id: one for choice in self._open.values() for id, one in choice.held.items()}
        assert held == {id: record.held for id, record in holding.items()}, "a held answer is lost"
        for record in active:
            assert record.held is not None or record.state != "held", f"request {record.id} is held for no choice"
            if record.state == "held":
                tokens = record.held.tokens if record.held is not None else None
                assert isinstance(tokens, TokensEmitted), f"request {record.id} is held without tokens"
                assert tokens.finish, f"request {record.id} is held and has not ended"
