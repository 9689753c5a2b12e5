"""The restart policy (Erlang/OTP supervision) as a state machine: which children to stop and start when one of them ends.

Owns the three strategies, the order of starts (as listed) and of stops (the reverse), the children that are restarted at
all, the limit (``intensity`` restarts within ``period``; one more and the supervisor gives up, so that its own supervisor
acts), the backoff (a growing pause before a restart), and the rule when a child that never lives is hopeless. Time and
chance come in as arguments. Starts and stops nothing itself. It is the same for actors and for processes, each of which is
represented by an actor (``cluster/process.py``).

Two departures from OTP. Children that are lost together with one node count as one restart. A child whose node is absent
waits for it, which is no failure.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

EVENTS = 256  # failures remembered, to count simultaneous losses once
HOPELESS = 5  # early deaths in a row before the whole ever worked or, by their own doing, before any child ever lasted


class Strategy(StrEnum):
    """The children that are restarted with one that ended."""

    ONE_FOR_ONE = "one_for_one"  # only the ended one
    ONE_FOR_ALL = "one_for_all"  # all children
    REST_FOR_ONE = "rest_for_one"  # the ended one and all listed after it


class Restart(StrEnum):
    """The kind of end after which a child is restarted."""

    PERMANENT = "permanent"  # any
    TRANSIENT = "transient"  # an abnormal one
    TEMPORARY = "temporary"  # none


@dataclass(frozen=True, slots=True)
class Backoff:
    """The pause before a restart.

    It is 0 for the first ``at_once`` failures in a row, then ``initial`` seconds, ``factor`` times more for each further
    one, at most ``maximum``; each is drawn from within ``jitter`` (a fraction) of that.
    """

    initial: float = 0.05
    factor: float = 2.0
    maximum: float = 10.0
    jitter: float = 0.1
    at_once: int = 0

    def __post_init__(self) -> None:
        if not (0 <= self.initial <= self.maximum and 1 <= self.factor <= 100 and 0 <= self.jitter < 1) or self.at_once < 0:
            raise ValueError(
                f"backoff of {self.initial} to {self.maximum} s, factor {self.factor}, "
                f"jitter {self.jitter}, {self.at_once} at "
                "once cannot be used; give 0 <= initial <= most, 1 <= factor <= 100, 0 <= jitter < 1, at_once >= 0"
            )

    def delay(self, failures: int, draw: float) -> float:
        """Return the seconds before the restart after ``failures`` failures in a row (from 1). draw: in [0, 1)."""
        if failures <= self.at_once:
            return 0.0
        pause = min(self.maximum, self.initial * self.factor ** min(failures - self.at_once - 1, 100))
        return min(self.maximum, pause * (1 + self.jitter * (2 * draw - 1)))


@dataclass(frozen=True, slots=True)
class Plan:
    """The action to take now: stop these children in this order, or give up for this reason. Then: ``next``."""

    stop: tuple[str, ...] = ()
    give_up: str = ""


@dataclass(slots=True)
class _Child:
    restart: Restart
    state: str = "wanted"  # "wanted" (to be started), "up", "done" (not to be started unless requested)
    due: float = 0.0  # if wanted: not before
    since: float = 0.0  # if up: since when
    failures: int = 0  # in a row
    restarts: int = 0  # number of restarts so far
    born: bool = False  # started once


@dataclass(slots=True)
class EarlyDeaths:
    """Deaths in a row of one child, each before it had lived ``youth`` seconds: the evidence that it never will.

    A death by a signal or a fence was caused from outside; an exit with a status above 0 was the child's own doing.
    """

    youth: float = 10.0
    count: int = 0
    own: int = 0  # deaths in a row by its own doing
    lasted: bool = False  # some life of it was longer

    def died(self, lived: float, cause: str) -> None:
        """Record a death. lived: seconds since its start. cause: as reported by the membership."""
        young = lived < self.youth
        self.lasted |= not young
        self.count = self.count + 1 if young else 1
        self.own = self.own + 1 if young and re.match(r"exited [1-9]\d*(:|$)", cause) else 0

    def hopeless(self, *, proven: bool, some_last: bool) -> int:
        """Return the number of deaths if a restart is pointless; 0 if it is not.

        proven: the whole once worked. some_last: it or a sibling has lasted.
        """
        deaths = (0 if some_last else self.own) if proven else self.count
        return deaths if deaths >= HOPELESS else 0

    def lasts(self, lives_since: float | None, now: float) -> bool:
        """Return whether some life of it was long, or the present one, which began at ``lives_since``, is."""
        return self.lasted or (lives_since is not None and now - lives_since >= self.youth)


@dataclass(slots=True)
class Restarts:
    """The restarts of one supervisor (see the module).

    children: (name, restart), in starting order. intensity: None: never gives up.
    """

    children: Sequence[tuple[str, Restart]]
    strategy: Strategy = Strategy.ONE_FOR_ONE
    intensity: int | None = 3
    period: float = 5.0  # seconds
    backoff: Backoff = field(default_factory=Backoff)
    _state: dict[str, _Child] = field(init=False)
    _times: deque[float] = field(init=False, default_factory=deque)
    _events: deque[str] = field(init=False, default_factory=lambda: deque(maxlen=EVENTS))

    def __post_init__(self) -> None:
        self._state = {name: _Child(restart) for name, restart in self.children}
        if len(self._state) != len(self.children):
            raise ValueError(f"children {[name for name, _ in self.children]} are not named apart")
        if (self.intensity or 0) < 0 or self.period <= 0:
            raise ValueError(
                f"{self.intensity} restarts in {self.period} s cannot be used; give at least 0 in more than 0 s"
            )

    # ---- what happens

    def up(self, name: str, now: float) -> None:
        """Note that the child was started."""
        child = self._state[name]
        child.restarts += child.born
        child.state = "up"
        child.since = now
        child.born = True

    def ended(self, name: str, abnormal: bool, now: float, draw: float, event: str = "") -> Plan:
        """Return the plan after the end of a child that was up. event: what ended it, if this may have ended others too."""
        child = self._state[name]
        if child.restart == Restart.TEMPORARY or (child.restart == Restart.TRANSIENT and not abnormal):
            child.state = "done"
            return Plan()
        if now - child.since >= self.period:
            child.failures = 0
        return self._again(name, now, draw, event)

    def failed(self, name: str, now: float, draw: float) -> Plan:
        """Return the plan after a child could not be started."""
        return self._again(name, now, draw, "")

    def wait(self, name: str, until: float) -> None:
        """Delay a start until ``until``, because its node is absent; this is not counted as a failure."""
        self._state[name].due = until

    def dismiss(self, name: str) -> None:
        """Mark the child as not to be started (again)."""
        self._state[name].state = "done"

    def ask_for(self, name: str, now: float) -> None:
        """Start a dismissed or finished child at once. Raises KeyError for an unknown one."""
        child = self._state[name]
        if child.state == "done":
            child.state = "wanted"
            child.due = now
            child.failures = 0

    def _again(self, name: str, now: float, draw: float, event: str) -> Plan:
        child = self._state[name]
        child.failures += 1
        if not (event and event in self._events):
            self._times.append(now)
            if event:
                self._events.append(event)
        while self._times and self._times[0] <= now - self.period:
            self._times.popleft()
        if self.intensity is not None and len(self._times) > self.intensity:
            return Plan(
                give_up=f"{len(self._times)} restarts within {self.period:g} s, {self.intensity} allowed; last: {name}"
            )
        due = now + self.backoff.delay(child.failures, draw)
        stop = []
        for other in self._with(name):
            state = self._state[other]
            if state.state == "up" and other != name:
                stop.append(other)
                if state.restart == Restart.TEMPORARY:
                    state.state = "done"
            if other == name or state.state != "done":
                state.state, state.due = "wanted", due
        return Plan(stop=tuple(reversed(stop)))

    def _with(self, name: str) -> list[str]:
        names = list(self._state)
        if self.strategy == Strategy.ONE_FOR_ONE:
            return [name]
        return names if self.strategy == Strategy.ONE_FOR_ALL else names[names.index(name) :]

    # ---- what to do

    def next(self, now: float, possible: Callable[[str], bool]) -> str | None:
        """Return the child to start now, if any. possible: whether there is a place for it."""
        for name, child in self._state.items():
            if child.state == "wanted":
                if child.due <= now and possible(name):
                    return name
                if self.strategy != Strategy.ONE_FOR_ONE:
                    return None  # later children depend on it
        return None

    def due(self, now: float) -> float | None:
        """Return when to call ``next`` again because of time. ``now``: the time at which it returned none."""
        later = [child.due for child in self._state.values() if child.state == "wanted" and child.due > now]
        return min(later, default=None)

    def describe(self, name: str) -> tuple[str, int]:
        """Return (state, number of restarts)."""
        child = self._state[name]
        return child.state, child.restarts

    def upcoming(self, name: str) -> int:
        """Return the number of restarts the child will have had when it is started next."""
        child = self._state[name]
        return child.restarts + child.born


def place(candidates: Sequence[str], up: Container[str]) -> str | None:
    """Return the node to start a child on: the first candidate that is up."""
    return next((node for node in candidates if node in up), None)
