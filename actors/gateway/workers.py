"""The workers that live, and the reports that each has sent: which are taken, asked for again, acknowledged.

Owns the incarnations and their report sequences, nothing of what the reports say. Reports of a worker that has ended, or of
an incarnation that was replaced, are fenced.
"""

from __future__ import annotations

from ..report_sequence import ReportSequence
from ..worker.messages import SweepReport
from .messages import Acknowledge, Replay


class Workers:
    """See the module."""

    def __init__(self) -> None:
        self._sequences: dict[str, ReportSequence] = {}  # of those that live, by name
        self._ended: dict[str, int] = {}  # the last incarnation of each that ended

    def incarnation(self, worker: str) -> int | None:
        """Of one that lives."""
        sequence = self._sequences.get(worker)
        return None if sequence is None else sequence.incarnation

    def up(self, worker: str, incarnation: int) -> None:
        self._sequences[worker] = ReportSequence(incarnation)

    def down(self, worker: str, incarnation: int) -> bool:
        """It has ended, and so has every life before, of whose end the word was lost. Whether one counted as alive."""
        self._ended[worker] = max(incarnation, self._ended.get(worker, 0))
        known = self.incarnation(worker)
        if known is None or known > incarnation:
            return False
        del self._sequences[worker]
        return True

    def has_ended(self, worker: str, incarnation: int) -> bool:
        return incarnation <= self._ended.get(worker, 0)

    def heard(self, worker: str, serial: int) -> list[Acknowledge | Replay]:
        """Return what to say to a heartbeat of its current life, whose last report is ``serial``."""
        first = self._sequences[worker].heard(serial)
        return [*([Replay(worker, first)] if first is not None else []), *self.due(worker, heartbeat=True)]

    def take(self, report: SweepReport) -> bool | Replay:
        """Whether this is the worker's next report; what to ask for where it shows that others are missing."""
        sequence = self._sequences.get(report.worker)
        if sequence is None or sequence.incarnation != report.incarnation:
            return False  # fenced, or not announced yet: a heartbeat will show what is missing
        if sequence.take(report.serial):
            return True
        first = sequence.missing(report.serial)
        return first is not None and Replay(report.worker, first)

    def due(self, worker: str, heartbeat: bool = False) -> list[Acknowledge]:
        """What the worker may forget now."""
        serial = self._sequences[worker].due(heartbeat)
        return [] if serial is None else [Acknowledge(worker, serial)]

    def check(self, alive: set[str]) -> None:
        """Raise AssertionError when an invariant is broken. ``alive``: as the routing table has it."""
        assert set(self._sequences) == alive
        assert all(sequence.incarnation > self._ended.get(name, 0) for name, sequence in self._sequences.items())
        for sequence in self._sequences.values():
            sequence.check()
