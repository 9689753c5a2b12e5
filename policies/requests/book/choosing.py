"""Choices of a tier carried out: the held tokens are delivered, or every sequence begins anew on the top tier.

Then the held tokens are dropped, and each sequence has its prompt and its seed. So an answer is wholly one tier's.
"""

from __future__ import annotations

from .auto_choice import AutoChoice
from .delivery import deliver
from .lifecycle import LifeEvent
from .parts import BookParts
from .record import RequestRecord
from .settlement import RequestClaim
from .settling import settle, settle_due


def settle_choices(parts: BookParts, now: float) -> None:
    """Choose the tier of requests whose sequences all have their first tokens; others wait for it, or run on."""
    while parts.choices.pending:
        record = parts.choices.pending.pop(0)
        choice, held = record.choice, record.held
        assert choice is not None, "who holds news back has a choice before it"
        assert held is not None, "who holds news back has a choice before it"
        if choice.decide(now):
            _carry_out(parts, choice, now)
        elif held.tokens is not None and held.tokens.finish:
            settle(parts, RequestClaim(record, LifeEvent.HOLD), now)
        else:
            parts.recount(record)


def _carry_out(parts: BookParts, choice: AutoChoice, now: float) -> None:
    records = [parts.active[id] for id in parts.choices.close(choice)]
    for record in records:
        theta = choice.auto.threshold.theta
        record.history.note(
            now, "tier_chosen", tier=choice.tier, up=bool(choice.up), confidence=choice.confidence, theta=theta
        )
        _begin_or_go_on(parts, record, choice, now)


def _begin_or_go_on(parts: BookParts, record: RequestRecord, choice: AutoChoice, now: float) -> None:
    held, record.held = record.held, None
    assert held is not None, "its tier was open until now"
    if choice.up:
        parts.usage.change(record.application, -1, now)
        settle(parts, RequestClaim(record, LifeEvent.GO_UP), now)
        return
    parts.usage.change(choice.application, -1, now)
    for news in (held.scored, held.tokens):
        if news is not None:
            deliver(parts, record, news)
            settle_due(parts, now)
