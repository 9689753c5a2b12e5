"""One worker as the controller sees it: its life, its queue, when it may be launched again.

Owns the bookkeeping of a single worker. What it holds is in residency.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

YOUNG = 10.0  # seconds; a worker that dies younger than this has failed to live
FIRST_PAUSE = 0.25  # seconds before the second relaunch in a row; doubles
LONGEST_PAUSE = 4.0


@dataclass(slots=True)
class Worker:
    """See the module."""

    name: str
    state: str = "down"  # "down" | "starting" | "loading" | "ready"
    incarnation: int = 0  # of the living one; 0 while down or starting
    last: int = 0  # highest incarnation heard of
    launched_at: float = 0.0
    relaunch_at: float | None = None  # when down and not to be launched at once
    failures: int = 0  # deaths in a row at a young age
    faults: int = 0  # such deaths in a row that were its own doing
    lasted: bool = False  # some life of it was longer
    restarts: int = 0
    cause: str = ""  # of the last death
    condemned: bool = False  # a kill was asked for; nothing more is expected of this incarnation
    waiting: int = 0
    running: int = 0

    @property
    def alive(self) -> bool:
        return self.state in ("loading", "ready")

    def launch(self, now: float) -> None:
        self.state, self.launched_at, self.relaunch_at = "starting", now, None

    def rise(self, incarnation: int) -> None:
        """The process has joined the cluster, with nothing loaded."""
        self.state, self.incarnation, self.condemned, self.relaunch_at = "loading", incarnation, False, None
        self.last = incarnation

    def ended_by(self, incarnation: int) -> bool:
        """Is the end of ``incarnation`` that of the current life? A life may end before it ever rose."""
        if self.state == "starting" and incarnation > self.last:
            self.last = incarnation
            return True
        return self.alive and self.incarnation == incarnation

    def fall(self, cause: str, now: float) -> None:
        """It is gone; says in ``relaunch_at`` when to try again: at once the first time, later when it keeps dying."""
        self.lasted = self.settled(now)
        young = now - self.launched_at < YOUNG
        self.failures = self.failures + 1 if young else 1
        # by a signal it was somebody else's
        self.faults = self.faults + 1 if young and re.fullmatch(r"exited [1-9]\d*", cause) else 0
        self.state, self.incarnation, self.cause = "down", 0, cause
        self.waiting = self.running = 0
        self.restarts += 1
        pause = min(FIRST_PAUSE * 2 ** (self.failures - 2), LONGEST_PAUSE) if self.failures > 1 else 0.0
        self.relaunch_at = now + pause

    def settled(self, now: float) -> bool:
        """It lives, or lived once, for longer than what cannot live does."""
        return self.lasted or (self.state != "down" and now - self.launched_at >= YOUNG)
