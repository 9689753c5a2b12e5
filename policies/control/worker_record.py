"""The controller's record of one worker: its life and its queue.

Owns the bookkeeping of a single worker. ``residency.py`` has its components; its supervisor restarts a dead worker, unless
it has joined by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..cluster.restart_policy import EarlyDeaths
from ..cluster.worker_size import WorkerReport

FADING = 0.75  # weight of a load in the measured speed, against the next one


@dataclass(slots=True)
class WorkerRecord:
    """A worker's record (see the module)."""

    name: str
    rank: int = field(default=0, compare=False)  # its place in the order in which workers came
    extra: bool = False  # started by autoscaling, or joined
    joined: bool = False  # by itself: it has no supervisor of ours, and is forgotten when it ends
    labels: dict[str, str] = field(default_factory=dict)  # of one elsewhere
    state: str = "down"  # "down" | "starting" | "loading" | "ready"
    incarnation: int = 0  # current incarnation; 0 while down or starting
    last: int = 0  # highest incarnation heard of
    launched_at: float = 0.0
    pid: int = 0
    deaths: EarlyDeaths = field(default_factory=EarlyDeaths)
    restarts: int = 0
    cause: str = ""  # cause of the last death
    lost: str = field(default="", compare=False)  # the application that it was loading at its last death
    condemned: bool = False  # a kill was ordered; nothing more is expected of this incarnation
    waiting: int = 0
    running: int = 0
    routes: int = 0  # version of the publication in its last heartbeat
    report: WorkerReport | None = None  # what it has, as it said when it joined last; None: it has not joined yet
    reports: int = 0  # how often it has joined
    loaded_bytes: float = 0.0  # of its last loads, each counted less than the next
    loaded_seconds: float = 0.0  # that these took

    @property
    def alive(self) -> bool:
        return self.state in ("loading", "ready")

    @property
    def well(self) -> bool:
        """True if it lives and no kill was ordered."""
        return self.alive and not self.condemned

    @property
    def load_speed(self) -> float:
        """The bytes of parameters that it loads in a second, as measured; 0: unknown."""
        return self.loaded_bytes / self.loaded_seconds if self.loaded_seconds else 0.0

    def loaded(self, nbytes: int, seconds: float) -> None:
        """Note a load. One that brought nothing new says nothing of the speed."""
        if nbytes and seconds > 0:
            self.loaded_bytes = FADING * self.loaded_bytes + nbytes
            self.loaded_seconds = FADING * self.loaded_seconds + seconds

    def launched(self, incarnation: int, pid: int, now: float) -> None:
        """Note that its process exists."""
        if incarnation > self.last:
            self.state = "starting"
            self.last = incarnation
            self.pid = pid
            self.launched_at = now

    def rise(self, incarnation: int) -> None:
        """Note that the process has joined the cluster, with nothing loaded."""
        self.state = "loading"
        self.incarnation = incarnation
        self.last = incarnation
        self.condemned = False
        self.routes = 0

    def ended_by(self, incarnation: int) -> bool:
        """Return whether the end of ``incarnation`` ends the current life. One may end before it rose, or had a process."""
        return incarnation > self.last or (self.state != "down" and incarnation == self.last)

    def fall(self, incarnation: int, cause: str, now: float) -> None:
        """Note its death; its supervisor starts another."""
        lived = now - self.launched_at if incarnation == self.last else 0.0
        self.deaths.died(lived, cause)
        self.state = "down"
        self.incarnation = 0
        self.last = incarnation
        self.cause = cause
        self.pid = 0
        self.waiting = self.running = 0
        self.restarts += 1

    def hopeless(self, *, proven: bool, some_last: bool) -> str:
        """Return why the cluster cannot start (``EarlyDeaths.hopeless``): a sentence without the cause, or empty."""
        deaths = self.deaths.hopeless(proven=proven, some_last=some_last)
        return f"worker {self.name} died {deaths} times while starting" if deaths else ""

    def settled(self, now: float) -> bool:
        """Return whether it lives, or once lived, longer than a worker that cannot start would."""
        return self.deaths.lasts(None if self.state == "down" else self.launched_at, now)
