"""One worker of an offline job: what it is to read, what it took, how much of its memory is free."""

from __future__ import annotations

from .admission import OfflineFit
from .order import Unit
from .scanner import DualScanner, Side


class FedWorker:
    """``part``: the units that its scanner was given last; ``last``: what was taken last on each side, as what shares a
    prefix with it finds that in the cache; ``full``: it had no room for what it has left; ``free``: positions of its memory;
    ``sweeps``: those that it ran since it joined."""

    __slots__ = ("_told", "admission", "free", "full", "last", "part", "scanner", "sweeps")

    def __init__(self, scanner: DualScanner) -> None:
        self.scanner = scanner
        self.admission = OfflineFit(scanner)
        self.part: list[Unit] = []
        self.last: dict[Side, int] = {}
        self.full = False
        self.free = 0.0
        self.sweeps = self._told = 0

    def ran(self, sweeps: int) -> None:
        """So many in all, by its own count; a worker that began anew counts from 0 again."""
        self.sweeps += sweeps - self._told if sweeps >= self._told else sweeps
        self._told = sweeps

    @property
    def left(self) -> int:
        """Requests of its part that have not started."""
        return self.scanner.waiting

    @property
    def idle(self) -> bool:
        """Nothing of the job runs there."""
        return not (self.scanner.running("left") or self.scanner.running("right"))
