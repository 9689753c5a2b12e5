"""The report of a worker's sweep to a gateway, and how token news of one request are joined."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...sweep.events import GatewayNews, TokensEmitted
from ...sweep.offline_capacity import OfflineCapacity


@dataclass(frozen=True, slots=True)
class SweepReport:
    """worker -> gateway: the news of one sweep.

    ``news`` is in the order in which the sweep machine emitted it; only rounds of drafts may be added up. ``offline`` is how
    many offline requests the worker now accepts; None means no change. ``seconds`` is the duration of the sweep that is
    reported; 0 means none.
    """

    worker: str
    incarnation: int
    serial: int
    sweep: int
    news: list[GatewayNews]
    offline: list[OfflineCapacity] | None = None
    seconds: float = 0.0


def joined(first: TokensEmitted, then: TokensEmitted) -> TokensEmitted:
    """Return one event for two consecutive token events of one attempt."""
    return replace(then, position=first.position, tokens=first.tokens + then.tokens, logprobs=first.logprobs + then.logprobs)
