"""One worker as the controller sees it: its life and what it holds.

Owns the bookkeeping of a single worker. Which worker needs what is decided in state.py; when a dead one is started again, by
its supervisor.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from blockwright.actors.worker.messages import LoadBlock
from blockwright.policies.cluster.restart_policy import EarlyDeaths


@dataclass(slots=True)
class WorkerRecord:
    """See the module."""

    name: str
    state: str = "down"  # "down" | "starting" | "loading" | "ready"
    incarnation: int = 0  # of the living one; 0 while down or starting
    last: int = 0  # highest incarnation heard of
    launched_at: float = 0.0
    pid: int = 0
    deaths: EarlyDeaths = field(default_factory=EarlyDeaths)
    restarts: int = 0
    cause: str = ""  # of the last death
    condemned: bool = False  # a kill was asked for; nothing more is expected of this incarnation
    loading: LoadBlock | None = None  # the one load in progress
    resident: dict[str, set[int]] = field(default_factory=dict)  # application -> depths of its components that are here
    refused: dict[str, str] = field(default_factory=dict)  # application -> why it could not be loaded here
    room: int | None = None  # bytes left to KV, when last asked
    room_stale: bool = True  # parameters have changed since, or nobody asked
    asking: bool = False  # a question about room is under way
    waiting: int = 0
    running: int = 0

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
        self.loading, self.resident, self.refused = None, {}, {}
        self.room, self.room_stale, self.asking = None, True, False

    def ended_by(self, incarnation: int) -> bool:
        """Is the end of ``incarnation`` that of the current life? One may end before it rose, or had a process."""
        return incarnation > self.last or (self.state != "down" and incarnation == self.last)

    def fall(self, incarnation: int, cause: str, now: float) -> None:
        """It is gone; its supervisor starts another."""
        lived = now - self.launched_at if incarnation == self.last else 0.0
        self.deaths.died(lived, cause)
        self.state, self.incarnation, self.last, self.cause, self.pid = "down", 0, incarnation, cause, 0
        self.loading, self.resident, self.room = None, {}, None
        self.waiting = self.running = 0
        self.restarts += 1

    def settled(self, now: float) -> bool:
        """It lives, or lived once, for longer than what cannot live does."""
        return self.deaths.lasted or (self.state != "down" and now - self.launched_at >= self.deaths.youth)

    def holds(self, application: str, first: int, last: int) -> bool:
        """Components ``first`` .. ``last`` (exclusive) of the application are resident and the room is known."""
        here = self.resident.get(application, set())
        return self.alive and not self.condemned and self.room is not None and all(d in here for d in range(first, last))
