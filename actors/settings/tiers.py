"""The settings of the choice among a family's tiers (``NAME:auto``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from ...policies.model.confidence import FIRST_TOKENS, Threshold
from ...policies.model.tier_choice import settings_fault, threshold_of
from .errors import SettingsError
from .models import ModelSettings
from .part import SettingsPart


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSettings(SettingsPart):
    """The rules by which requests go up to the top tier of their family."""

    theta: Annotated[
        dict[str, float],
        "family: confidence in an answer's first tokens, 0 to 1, below which NAME:auto takes the top tier; * for others; "
        "default: what family report found, else 0.9",
    ] = field(default_factory=dict)
    auto_tokens: Annotated[int, "with theta: first tokens that the confidence looks at, at most 256"] = FIRST_TOKENS
    auto_measure: Annotated[str, "with theta: mean, least (probability), margin (to the second) or entropy"] = "mean"

    def check_names(self, models: ModelSettings) -> None:
        """Refuse rules that cannot be, and rules of applications that there are not."""
        known = None if models.more_may_come else models.applications
        if fault := settings_fault(self.theta, self.auto_measure, self.auto_tokens, known):
            raise SettingsError(fault)

    def rule(self, family: str, stored: Threshold | None) -> Threshold:
        """Return the rule of a family. ``stored``: the one in its folder; None: there is none."""
        return threshold_of(family, stored, self.theta, self.auto_measure, self.auto_tokens)
