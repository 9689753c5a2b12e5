"""One request's choice between two tiers, and the news of its sequences that are held back until then. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...model.confidence import MEASURES, confidence, goes_up
from ...plan.sweep_plan import TokenLogprob
from ...sweep.events import PromptScored, TokensEmitted
from .sweep_report import joined
from .values import AutoTier, TierView


@dataclass(slots=True)
class HeldAnswer:
    """The news of one sequence that its client has not seen."""

    auto: AutoTier
    tokens: TokensEmitted | None = None
    scored: PromptScored | None = None

    def add(self, news: TokensEmitted) -> None:
        """Append new tokens."""
        self.tokens = news if self.tokens is None else joined(self.tokens, news)

    def first(self) -> list[TokenLogprob] | None:
        """Return the log-probabilities of the tokens that the choice looks at; None if they are not all there.

        These are the first tokens of the answer, fewer if it ends before. Tokens behind a stop string are not part of it.
        """
        if self.tokens is None:
            return None
        limit = self.auto.threshold.tokens
        tokens = self.tokens.tokens[:limit]
        length = self.auto.length(tokens)
        if length is None and len(tokens) < limit and not self.tokens.finish:
            return None
        return self.tokens.logprobs[: len(tokens) if length is None else length]


@dataclass(slots=True, eq=False)
class AutoChoice:
    """The choice of one request's tier. ``held``: its sequences by id, until the choice is made."""

    auto: AutoTier
    start: str  # model id of the tier on which it started
    application: str  # of the top tier
    virtual: int  # tokens before its prompts, as in ``RequestRecord``
    arrival: float  # of the first sequence
    held: dict[str, HeldAnswer] = field(default_factory=dict)
    up: bool | None = None  # None: not chosen yet
    confidence: float | None = None
    tokens: int = 0  # that were looked at
    seconds: float | None = None  # from the arrival to the choice

    @property
    def tier(self) -> str:
        """The model id of the tier that answers; "": not chosen yet."""
        return "" if self.up is None else self.auto.top if self.up else self.start

    def decide(self, now: float) -> bool:
        """Choose the tier if all sequences have their first tokens; return whether it is chosen.

        The least sure sequence decides.
        """
        if len(self.held) < self.auto.sequences:
            return False
        firsts = [held.first() for held in self.held.values()]
        known = [first for first in firsts if first is not None]
        if len(known) < len(firsts):
            return False
        rule = self.auto.threshold
        likely = [[[value for _, value in one.top] for one in first] for first in known]
        self.confidence = min(confidence(rule.measure, one) for one in likely)
        self.up = goes_up(self.confidence, rule.theta)
        self.tokens, self.seconds = sum(map(len, known)), now - self.arrival
        return True

    def view(self) -> TierView:
        rule = self.auto.threshold
        return TierView(
            tier=self.tier, start=self.start, escalated=bool(self.up), confidence=self.confidence, theta=rule.theta,
            measure=rule.measure, tokens=self.tokens, seconds=self.seconds,
        )  # fmt: skip


def likely_tokens(auto: AutoTier) -> int:
    """Return the number of most likely tokens whose log-probabilities the choice needs at each position."""
    return MEASURES[auto.threshold.measure]
