"""The decision whether a keeper starts another head when one has ended, hangs or was stopped.

Without grace for orphans all end with the head. With it, a head that a signal ended is followed by the next one,
unless the keeper passed that signal on, or heads end again and again: then after pauses that double, and at last not any
more. A head that ended by itself has said why. Owns the ends of heads.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from .head_succession import AwakeTime

MOST = 5  # heads that may end within ``PERIOD``; with one more, something is wrong with all of them
PERIOD = 60.0  # seconds
HUNG = 5.0  # times ``silence`` without a beat after which a head that is not stopped hangs; a busy machine stalls, too
HUNG_LEAST = 10.0  # seconds
FIRST_PAUSE = 0.25  # seconds before the head that follows the second one to end within ``PERIOD``; then twice as long, ...
LOOKS = 2.0  # looks at a head within ``silence``


@dataclass(frozen=True, slots=True)
class EndAll:
    """The keeper ends, and all with it. ``status``: the head's, or minus its signal. ``why``: a sentence, or empty."""

    status: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class StartNext:
    """The next head is to be started, ``pause`` seconds later."""

    pause: float = 0.0


@dataclass(slots=True)
class HeadRestarts:
    """The heads of one keeper (see the module). grace: seconds that members live without a head; silence: as in settings.

    A head's silence counts only while the keeper looks at it at least ``LOOKS`` times in ``silence``: after a pause of the
    whole machine, or of all its processes, the head has had no time to beat either.
    """

    grace: float
    silence: float
    passed: set[int] = field(default_factory=set)  # signals that were passed on to the present head
    _ends: deque[float] = field(default_factory=deque)
    _silent: float | None = None  # seconds since the present head was heard last; None: it has yet to come up
    _awake: AwakeTime = field(init=False)

    def __post_init__(self) -> None:
        self._awake = AwakeTime(0.0, self.look_every)

    @property
    def look_every(self) -> float:
        """Seconds between two looks at the head."""
        return self.silence / LOOKS

    def began(self) -> None:
        """Note that another head was started."""
        self._silent = None
        self.passed = set()

    def heard(self, now: float) -> None:
        """Note a beat of the present head."""
        self._awake.step(now)
        self._silent = 0.0

    @property
    def no_roll(self) -> str:
        """Why heads cannot be ended for one of another release; else ""."""
        return "" if self.grace else "orphan_grace is 0, so all would end with it"

    @property
    def is_up(self) -> bool:
        """The present head has been heard."""
        return self._silent is not None

    def ended(self, status: int, now: float) -> EndAll | StartNext:
        """Return what to do after a head's end."""
        if status >= 0 or not self.grace or -status in self.passed:
            return EndAll(status)
        self._ends.append(now)
        while self._ends[0] <= now - PERIOD:
            self._ends.popleft()
        number = len(self._ends)
        if number > MOST:
            return EndAll(1, f"{number} heads ended within {PERIOD:g} s; the last one by signal {-status}")
        return StartNext(FIRST_PAUSE * 2.0 ** (number - 2) if number > 1 else 0.0)

    def lost(self, now: float, *, stopped: bool) -> str:
        """Look at the head; return why one that lives is to be replaced, or an empty text. ``stopped``: its process is, by a
        signal.
        """
        step = self._awake.step(now)
        if not self.grace or self._silent is None:
            return ""
        self._silent += step
        if stopped and self._silent > self.silence:
            return "it was stopped"
        if self._silent > max(HUNG * self.silence, HUNG_LEAST):
            return f"it has hung for {self._silent:.0f} s"
        return ""
