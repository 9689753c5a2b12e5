"""Latencies that a gateway has observed since its last report to the controller, the input of autoscaling."""

from __future__ import annotations


class Observations:
    """The worst latency of each kind, in seconds."""

    def __init__(self) -> None:
        self._measured = self._predicted = 0.0

    def ended(self, seconds: float) -> None:
        """Record the latency of an ended request, from its arrival."""
        self._measured = max(self._measured, seconds)

    def predicted(self, seconds: float) -> None:
        """Record a forecast: for a placed request, the least time to its last token on any worker."""
        self._predicted = max(self._predicted, seconds)

    def take(self, oldest: float) -> tuple[float, float] | None:
        """Return (measured, predicted) and start anew; None if nothing was observed.

        ``oldest``: age of the oldest request that has not ended, 0 without any. It counts as measured too.
        """
        found = max(self._measured, oldest), self._predicted
        self._measured = self._predicted = 0.0
        return found if any(found) else None
