"""One worker as the controller sees it: its life and its queue.

Owns the bookkeeping of a single worker. What it holds is in residency.py; its supervisor starts a dead one again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...policies.cluster.restart_policy import EarlyDeaths


@dataclass(slots=True)
class WorkerRecord:
    """See the module."""

    name: str
    extra: bool = False  # it came because of the load
    state: str = "down"  # "down" | "starting" | "loading" | "ready"
    incarnation: int = 0  # of the living one; 0 while down or starting
    last: int = 0  # highest incarnation heard of
    launched_at: float = 0.0
    pid: int = 0
    deaths: EarlyDeaths = field(default_factory=EarlyDeaths)
    restarts: int = 0
    cause: str = ""  # of the last death
    condemned: bool = False  # a kill was asked for; nothing more is expected of this incarnation
    waiting: int = 0
    running: int = 0
    routes: int = 0  # version of the publication that it has taken, as its last heartbeat said

    @property
    def alive(self) -> bool:
        return self.state in ("loading", "ready")

    def launched(self, incarnation: int, pid: int, now: float) -> None:
        """Its process exists."""
        if incarnation > self.last:
            self.state, self.last, self.pid, self.launched_at = "starting", incarnation, pid, now

    def rise(self, incarnation: int) -> None:
        """The process has joined the cluster, with nothing loaded."""
        self.state, self.incarnation, self.last, self.condemned = "loading", incarnation, incarnation, False
        self.routes = 0

    def ended_by(self, incarnation: int) -> bool:
        """Is the end of ``incarnation`` that of the current life? One may end before it rose, or had a process."""
        return incarnation > self.last or (self.state != "down" and incarnation == self.last)

    def fall(self, incarnation: int, cause: str, now: float) -> None:
        """It is gone; its supervisor starts another."""
        lived = now - self.launched_at if incarnation == self.last else 0.0
        self.deaths.died(lived, cause)
        self.state, self.incarnation, self.last, self.cause, self.pid = "down", 0, incarnation, cause, 0
        self.waiting = self.running = 0
        self.restarts += 1

    def hopeless(self, *, proven: bool, some_last: bool) -> str:
        """Why no cluster will be, as ``EarlyDeaths.hopeless`` has it: a sentence without the cause, or empty."""
        deaths = self.deaths.hopeless(proven=proven, some_last=some_last)
        return f"worker {self.name} died {deaths} times while starting" if deaths else ""

    def settled(self, now: float) -> bool:
        """It lives, or lived once, for longer than what cannot live does."""
        return self.deaths.lasts(None if self.state == "down" else self.launched_at, now)
