"""Pooling: the vector that a sequence gives in place of tokens; ``gpu/sampling/pooling.py`` has the arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, field

LAST = "lasttoken"
# names of sentence-transformers
MODES = ("cls", LAST, "max", "mean", "mean_sqrt_len_tokens", "weightedmean")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooling:
    """The vector of one sequence: hidden states behind the last norm, pooled over all its positions, or some logits.

    The results of several ``modes`` follow each other. ``tokens``: instead of hidden states, the logits of these token ids
    at the last position. ``dimensions``: only the first ones, if it is not 0. With ``normalize`` their length is 1.
    """

    modes: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    dimensions: int = 0
    normalize: bool = False

    @property
    def whole(self) -> bool:
        """True if states of other positions than the last are needed, so that every position has to be computed."""
        return any(mode != LAST for mode in self.modes)
