"""The state of one worker of an offline job: its part, the requests taken last, and its free memory."""

from __future__ import annotations

from .admission import OfflineFit
from .order import Unit
from .scanner import DualScanner, Side


class FedWorker:
    """A worker of an offline job.

    part: the units that its scanner was given last. last: the request taken last on each side, whose prefix is in the
    cache. full: it had no room for what it has left. free: positions of its memory. sweeps: number since it joined.
    """

    __slots__ = ("_reported", "admission", "free", "full", "last", "part", "scanner", "sweeps")

    def __init__(self, scanner: DualScanner) -> None:
        self.scanner = scanner
        self.admission = OfflineFit(scanner)
        self.part: list[Unit] = []
        self.last: dict[Side, int] = {}
        self.full = False
        self.free = 0.0
        self.sweeps = self._reported = 0

    def ran(self, sweeps: int) -> None:
        """Update its number of sweeps from its own count; a worker that began anew counts from 0 again."""
        self.sweeps += sweeps - self._reported if sweeps >= self._reported else sweeps
        self._reported = sweeps

    @property
    def left(self) -> int:
        """The number of requests of its part that have not started."""
        return self.scanner.waiting

    @property
    def idle(self) -> bool:
        """True if nothing of the job runs there."""
        return not (self.scanner.running("left") or self.scanner.running("right"))
