"""Delivery of a request's news to its client, at once or once its tier is chosen; the last tokens end the request."""

from __future__ import annotations

from dataclasses import replace

from ...sweep.events import PromptScored
from .lifecycle import LifeEvent
from .messages import Deliver
from .parts import BookParts
from .record import RequestRecord
from .settlement import RequestClaim
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
