"""The settings of a worker's steps (sweeps)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from .errors import SettingsError
from .part import AT_LEAST_ONE, AllowedTexts, AtMost, SettingsPart


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingSettings(SettingsPart):
    """The most that a worker computes in one step."""

    max_rows: Annotated[int, "sequences a worker runs at a time; others wait", AT_LEAST_ONE, AtMost(16384)] = 256
    sweep_tokens: Annotated[int, "most tokens in one step (a sweep)", AT_LEAST_ONE, AtMost(1 << 20)] = 512
    chunk_size: Annotated[int, "most prompt tokens of one sequence in one step", AT_LEAST_ONE] = 256
    tier_sweeps: Annotated[
        str,
        "steps of a family's tiers: lockstep, decoupled (some compute lower tiers alone), or auto (where that pays)",
        AllowedTexts("lockstep", "decoupled", "auto"),
    ] = "auto"
    tier_turns: Annotated[int, "most steps in a row that a higher tier sits out", AT_LEAST_ONE, AtMost(64)] = 2
    group_batching: Annotated[bool, "share steps between tiers; no, as an ablation: one tier in a step, by turns"] = True

    def check_together(self) -> None:
        if self.sweep_tokens < self.max_rows:
            raise SettingsError(
                f"sweep_tokens is {self.sweep_tokens}, less than max_rows ({self.max_rows}); every running sequence "
                "needs a token in each step: raise sweep_tokens or lower max_rows"
            )
