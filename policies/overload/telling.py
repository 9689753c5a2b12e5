"""What people are told of something that goes on: a reason at once, and then at most every ``AGAIN`` seconds.

Pure: times come in.
"""

from __future__ import annotations

AGAIN = 5.0  # seconds


class Telling:
    """Reasons, and when each was told last."""

    def __init__(self) -> None:
        self._told: dict[str, float] = {}

    def news(self, why: str, at: float) -> bool:
        """Whether to tell it now; then it counts as told. Two that take turns are no news."""
        self._told = {one: since for one, since in self._told.items() if at - since < AGAIN}
        news = why not in self._told
        self._told.setdefault(why, at)
        return news
