"""Throttling of repeated messages: a new reason is reported at once, and then at most every ``AGAIN`` seconds.

Pure: times come in.
"""

from __future__ import annotations

AGAIN = 5.0  # seconds


class MessageThrottle:
    """The reported reasons, each with the time of its last report."""

    def __init__(self) -> None:
        self._reported: dict[str, float] = {}

    def news(self, why: str, at: float) -> bool:
        """Return whether to report a reason now; if so, it counts as reported.

        Two alternating reasons are not new each time.
        """
        self._reported = {one: since for one, since in self._reported.items() if at - since < AGAIN}
        news = why not in self._reported
        self._reported.setdefault(why, at)
        return news
