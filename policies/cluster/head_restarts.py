"""The decision whether a keeper starts another head when one has ended, hangs or was stopped.

Without grace for orphans all end with the head. With it, a head that a signal ended is followed by the next one,
unless the keeper passed that signal on, or heads end again and again. A head that ended by itself has said why. Owns the
ends of heads.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

MOST = 5  # heads that may end within ``PERIOD``; with one more, something is wrong with all of them
PERIOD = 60.0  # seconds
HUNG = 5.0  # times ``silence`` without a beat after which a head that is not stopped hangs; a busy machine stalls, too
HUNG_LEAST = 10.0  # seconds


@dataclass(frozen=True, slots=True)
class EndAll:
    """The keeper ends, and all with it. ``status``: the head's, or minus its signal. ``why``: a sentence, or empty."""

    status: int
    why: str = ""


@dataclass(slots=True)
class HeadRestarts:
    """The heads of one keeper (see the module). grace: seconds that members live without a head; silence: as in settings."""

    grace: float
    silence: float
    passed: set[int] = field(default_factory=set)  # signals that were passed on to the present head
    _ends: deque[float] = field(default_factory=deque)
    _heard: float | None = None  # when the present head was heard last; None: it has yet to come up

    def began(self) -> None:
        """Note that another head was started."""
        self._heard = None
        self.passed = set()

    def heard(self, now: float) -> None:
        self._heard = now

    def ended(self, status: int, now: float) -> EndAll | None:
        """Return what to do after a head's end; None: start another."""
        if status >= 0 or not self.grace or -status in self.passed:
            return EndAll(status)
        self._ends.append(now)
        while self._ends[0] <= now - PERIOD:
            self._ends.popleft()
        if len(self._ends) > MOST:
            return EndAll(1, f"{len(self._ends)} heads ended within {PERIOD:g} s; the last one by signal {-status}")
        return None

    def lost(self, now: float, *, stopped: bool) -> str:
        """Return why a head that lives is to be replaced, or an empty text. ``stopped``: its process is, by a signal."""
        if not self.grace or self._heard is None:
            return ""
        silent = now - self._heard
        if stopped and silent > self.silence:
            return "it was stopped"
        if silent > max(HUNG * self.silence, HUNG_LEAST):
            return f"it has hung for {silent:.0f} s"
        return ""
