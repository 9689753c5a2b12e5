"""Dead letters: casts, replies and link messages that reached nobody, counted by cause.

Owns the counts by cause, which ``node.inspect()`` and the metrics show, and what is logged of them. Whoever drops a message
reports it here; nothing is sent again.
"""

from __future__ import annotations

import logging
from collections import Counter

from blockwright.runtime.base.log_rate_limit import Repeats
from blockwright.transport.clock import Clock

log = logging.getLogger("blockwright.runtime")


class DeadLetters:
    """See the module."""

    def __init__(self, clock: Clock) -> None:
        self.counts: Counter[str] = Counter()  # by cause: the error's name, or what happened
        self.repeats = Repeats(clock, log)

    def add(self, cause: str, count: int = 1) -> None:
        """What needs no words: it happens in the best of clusters."""
        self.counts[cause] += count

    def drop(
        self, cause: str, target: object, text: str, *, level: int = logging.WARNING, error: BaseException | None = None
    ) -> None:
        """``text`` is told at once; what follows for the same cause and target, as a count. ``level``: INFO where a node
        that was up is down, whose end is told by whoever watches it."""
        self.counts[cause] += 1
        self.repeats.say(level, (cause, str(target)), text, error=error)
