"""Dead letters: casts, replies and link messages that reached no receiver, counted by cause.

Owns the counts by cause, which ``node.inspect()`` and the metrics show, and what is logged of them. The dropping code
reports it here; nothing is sent again.
"""

from __future__ import annotations

import logging
from collections import Counter

from ...transport.clock import Clock
from .log_rate_limit import Repeats

log = logging.getLogger("blockwright.runtime")


class DeadLetters:
    """See the module."""

    def __init__(self, clock: Clock) -> None:
        self.counts: Counter[str] = Counter()  # by cause: the error's name, or what happened
        self.repeats = Repeats(clock, log)

    def add(self, cause: str, count: int = 1) -> None:
        """Count a dead letter without logging it, for causes that are normal in a healthy cluster."""
        self.counts[cause] += count

    def drop(
        self, cause: str, target: object, text: str, *, level: int = logging.WARNING, error: BaseException | None = None
    ) -> None:
        """Count a dead letter and log ``text`` at once; later ones for the same cause and target are logged as a count.

        ``level``: INFO if a node that was up is down, because the watcher of the node reports its end.
        """
        self.counts[cause] += 1
        self.repeats.say(level, (cause, str(target)), text, error=error)
