"""Report sequence: the order of one worker incarnation's reports at their receiver.

Tells which report is next, which are missing, and which are to be acknowledged. Owns only the serial numbers, nothing of the
content. Reports are accepted strictly in order of ``serial``. One that comes after a gap is dropped, because a replay brings
everything from the first missing one on.
"""

from __future__ import annotations

ACKNOWLEDGE_EVERY = 32  # reports; a heartbeat acknowledges the rest


class ReportSequence:
    """The reports of one worker incarnation."""

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.taken = 0  # all reports up to this serial have been accepted, each once
        self.acknowledged = 0  # <= taken
        self._replaying = False  # a replay was requested and its first report has not come
        self._promised = 0  # last serial of the previous heartbeat; the reports up to it had time to arrive
        self._before = 0  # ``taken`` at that heartbeat

    def accept(self, serial: int) -> bool:
        """Return whether this is the next report. Any other is a duplicate or comes after a gap."""
        if serial != self.taken + 1:
            return False
        self.taken = serial
        self._replaying = False
        return True

    def missing(self, serial: int) -> int | None:
        """Return the serial to replay from if ``serial`` shows a gap for which no replay was requested yet."""
        if serial <= self.taken + 1 or self._replaying:
            return None
        self._replaying = True
        return self.taken + 1

    def heard(self, serial: int) -> int | None:
        """Note a heartbeat whose last serial is ``serial``. Return the serial to replay from if a report is lost.

        Heartbeats may overtake reports. So a report counts as lost only if two heartbeats in a row knew it and none was
        accepted between them. A busy receiver accepts one after the other, and a replay would only keep it busy.
        """
        lost = self._promised > self.taken == self._before
        self._promised, self._before = serial, self.taken
        self._replaying |= lost
        return self.taken + 1 if lost else None

    def due(self, heartbeat: bool = False) -> int | None:
        """Return the serial to acknowledge now, if any."""
        waiting = self.taken - self.acknowledged
        if waiting == 0 or (waiting < ACKNOWLEDGE_EVERY and not heartbeat):
            return None
        self.acknowledged = self.taken
        return self.taken

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        assert 0 <= self.acknowledged <= self.taken
