"""Draft options of a request: its sources of drafts, their number, and the predicted text."""

from __future__ import annotations

from dataclasses import dataclass, field

MOST_FORCED = 64  # tokens that a grammar leaves no choice in, computed together
LARGEST = 16  # drafts of a round; more are never worth a sweep, since each must follow an accepted one

PREDICTION = "prediction"  # source of drafts: the text that the request predicts
PROMPT = "prompt"  # source of drafts: n-grams of the request's own tokens
TIER = "tier"  # source of drafts: a lower tier of the request's model
MODEL = "model"  # source of drafts: another model of equal vocabulary
GRAMMAR = "grammar"  # source of drafts: the grammar of the answer, where it leaves no choice
SOURCES = (PREDICTION, PROMPT, TIER, MODEL)


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """The sources of a request's drafts and their number.

    ``tokens`` fixes the drafts of a round (at most ``LARGEST``); 0 leaves it to the policy (``length.py``).
    ``prediction`` holds the tokens of the predicted answer. ``tiers`` names the lower tiers that may draft, by model id;
    ``model`` another model. ``reason``: why the model that a setting names may not draft, or empty.
    """

    prompt: bool = False  # drafts are looked up in the request's own tokens
    tokens: int = 0
    prediction: list[int] = field(default_factory=list)
    tiers: list[str] = field(default_factory=list)
    model: str = ""
    reason: str = ""

    @property
    def any(self) -> bool:
        """True if there is a source."""
        return bool(self.prompt or self.prediction or self.tiers or self.drafter)

    @property
    def drafter(self) -> str:
        """The other model that may draft, by id, or empty."""
        return "" if self.reason else self.model
