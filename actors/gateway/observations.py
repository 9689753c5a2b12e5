"""What a gateway has seen of latencies since it last told the controller, which starts and drains workers by that."""

from __future__ import annotations


class Observations:
    """The worst of each kind, in seconds."""

    def __init__(self) -> None:
        self._measured = self._predicted = 0.0

    def ended(self, seconds: float) -> None:
        """A request has ended so long after it arrived."""
        self._measured = max(self._measured, seconds)

    def predicted(self, seconds: float) -> None:
        """Of a request that is placed, the least time to its last token that was forecast at any worker."""
        self._predicted = max(self._predicted, seconds)

    def take(self, oldest: float) -> tuple[float, float] | None:
        """(measured, predicted), and begin anew; None where nothing was seen. ``oldest``: age of the request that arrived
        first of those that have not ended, 0 without any; it is measured, too."""
        found = max(self._measured, oldest), self._predicted
        self._measured = self._predicted = 0.0
        return found if any(found) else None
