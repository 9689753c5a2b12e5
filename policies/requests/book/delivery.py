"""Delivery of a request's news to its client: at once, or when the tier that answers is chosen.

Until then the first tokens are held back. Once all sequences of the request have them, either they are delivered and the
answer goes on, or every sequence begins anew on the top tier, with its prompt and its seed, and they are dropped. So an
answer is wholly one tier's. The last tokens end the request.
"""

from __future__ import annotations

from dataclasses import replace

from ...sweep.events import PromptScored
from .auto_choice import AutoChoice
from .lifecycle import LifeEvent
from .messages import Deliver
from .parts import BookParts
from .record import RequestRecord
from .settlement import RequestClaim
from .settling import settle, settle_due
from .values import StreamNews


def take(parts: BookParts, record: RequestRecord, news: StreamNews) -> None:
    """Pass news of a request on, or hold them back until its tier is chosen."""
    if record.held is None:
        deliver(parts, record, news)
    else:
        parts.choices.hold(record, news)


def deliver(parts: BookParts, record: RequestRecord, news: StreamNews) -> None:
    """Deliver news. What they claim, the end of the request, is due then."""
    if isinstance(news, PromptScored):
        parts.effects.append(Deliver(news))
        return
    choice = record.choice
    if choice is not None and not choice.up:  # log-probabilities that only the choice of the tier needed are left out
        asked = record.generation.sampling.logprobs
        kept = [replace(one, top=one.top[:asked]) for one in news.logprobs] if asked >= 0 else []
        news = replace(news, logprobs=kept)
    parts.effects.append(Deliver(news))
    if news.finish:
        parts.due.append(RequestClaim(record, LifeEvent.FINISH, news.finish))
    else:
        parts.recount(record)


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
