"""The live workers and their report sequences: which reports are accepted, requested again, or acknowledged.

Owns the incarnations and the report sequences, nothing of the reports' content. Reports of a worker that has ended, or of
a replaced incarnation, are fenced.
"""

from __future__ import annotations

from ...cluster.report_sequence import ReportSequence
from .messages import Acknowledge, Replay
from .sweep_report import SweepReport


class Workers:
    """The workers known to one gateway (see the module)."""

    def __init__(self) -> None:
        self._sequences: dict[str, ReportSequence] = {}  # of live workers, by name
        self._ended: dict[str, int] = {}  # last ended incarnation, by name
        self._away: dict[str, int] = {}  # incarnations that are out of reach and may be heard again, by name

    def incarnation(self, worker: str) -> int | None:
        """Return the incarnation of a live worker, or None."""
        sequence = self._sequences.get(worker)
        return None if sequence is None else sequence.incarnation

    def up(self, worker: str, incarnation: int) -> bool:
        """Take a worker for alive; return whether that life was out of reach before."""
        self._sequences[worker] = ReportSequence(incarnation)
        return self._away.pop(worker, None) == incarnation

    def down(self, worker: str, incarnation: int, *, lasting: bool = True) -> bool:
        """Note that an incarnation has ended, with all earlier ones, whose end may not have been reported.

        Return whether one of them counted as alive. lasting: False: it is out of reach, and may be heard again.
        """
        if lasting:
            self._away.pop(worker, None)
        else:
            self._away[worker] = incarnation
        over = incarnation if lasting else incarnation - 1
        self._ended[worker] = max(over, self._ended.get(worker, 0))
        known = self.incarnation(worker)
        if known is None or known > incarnation:
            return False
        del self._sequences[worker]
        return True

    def has_ended(self, worker: str, incarnation: int) -> bool:
        return incarnation <= self._ended.get(worker, 0)

    def heard(self, worker: str, serial: int) -> list[Acknowledge | Replay]:
        """Handle a heartbeat of its current life: ``serial`` is the worker's last report.

        Return replay requests and acknowledgements.
        """
        first = self._sequences[worker].heard(serial)
        return [*([Replay(worker, first)] if first is not None else []), *self.due(worker, heartbeat=True)]

    def accept(self, report: SweepReport) -> bool | Replay:
        """Return True if this is the worker's next report, and a replay request if earlier ones are missing; else False."""
        sequence = self._sequences.get(report.worker)
        if sequence is None or sequence.incarnation != report.incarnation:
            return False  # fenced, or not announced yet: a heartbeat will show what is missing
        if sequence.accept(report.serial):
            return True
        first = sequence.missing(report.serial)
        return first is not None and Replay(report.worker, first)

    def due(self, worker: str, heartbeat: bool = False) -> list[Acknowledge]:
        """Return the acknowledgement due to the worker, if any."""
        serial = self._sequences[worker].due(heartbeat)
        return [] if serial is None else [Acknowledge(worker, serial)]

    def check(self, alive: set[str]) -> None:
        """Raise AssertionError when an invariant is broken. ``alive``: from the routing table."""
        assert set(self._sequences) == alive
        assert all(sequence.incarnation > self._ended.get(name, 0) for name, sequence in self._sequences.items())
        for sequence in self._sequences.values():
            sequence.check()
