"""Log rate limit: the first message of a kind at once, later ones as a count, at most once a second.

Owns what was logged lately and how often since, by a key (what happened, to whom). Without it a flood of undeliverable
messages would be a flood of lines. The counters that people read are kept where messages are dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable
from dataclasses import dataclass

from ...transport.clock import Clock, Timer

PERIOD = 1.0  # seconds
MOST = 256  # keys that are counted apart; what else happens meanwhile is logged together


@dataclass(slots=True)
class _Said:
    at: float  # when it was last logged
    level: int
    text: str  # of the last one
    more: int = 0  # since


class Repeats:
    """See the module."""

    def __init__(self, clock: Clock, log: logging.Logger) -> None:
        self._clock, self._log = clock, log
        self._said: dict[Hashable, _Said] = {}  # in the order in which they were last logged
        self._timer: Timer | None = None

    def say(self, level: int, key: Hashable, text: str, *, error: BaseException | None = None) -> None:
        """Log the message. ``error``: its traceback is shown, the first time."""
        if not self._log.isEnabledFor(level):
            return
        if key not in self._said and len(self._said) >= MOST:
            key = None
        if (said := self._said.get(key)) is not None:
            said.text, said.more = text, said.more + 1
            return
        self._log.log(level, "%s", text, exc_info=error)
        self._said[key] = _Said(self._clock.now(), level, text)
        if self._timer is None:
            self._arm()

    def close(self) -> None:
        """Log what was not logged yet."""
        if self._timer is not None:
            self._timer.cancel()
        for said in self._said.values():
            self._tell(said)
        self._said.clear()

    def _arm(self) -> None:
        first = next(iter(self._said.values()), None)
        self._timer = self._clock.call_at(first.at + PERIOD, self._fire) if first is not None else None

    def _fire(self) -> None:
        now = self._clock.now()
        for key, said in list(self._said.items()):
            if said.at + PERIOD > now:
                break
            del self._said[key]
            if said.more:
                self._tell(said)
                self._said[key] = _Said(now, said.level, said.text)
        self._arm()

    def _tell(self, said: _Said) -> None:
        if said.more:
            self._log.log(said.level, "%d more like it, the last: %s", said.more, said.text)
