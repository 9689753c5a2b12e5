"""The order of one worker incarnation's reports: which is next, which are missing, which may be forgotten.

Owns the numbers of one worker's reports to this gateway or worker, nothing of what they say. Reports are taken strictly in
order of ``serial``; what comes after a gap is dropped, for a replay brings everything from the first missing one on.
"""

from __future__ import annotations

ACKNOWLEDGE_EVERY = 32  # reports; a heartbeat acknowledges what is left


class ReportSequence:
    """One per worker incarnation."""

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.taken = 0  # all reports up to this serial have been taken, each once
        self.acknowledged = 0  # <= taken
        self._replaying = False  # a replay was asked for and its first report has not come
        self._promised = 0  # last serial of the previous heartbeat: these reports had time to arrive
        self._before = 0  # ``taken`` at that heartbeat

    def accept(self, serial: int) -> bool:
        """Is this the next report? Anything else is a duplicate or comes after a gap."""
        if serial != self.taken + 1:
            return False
        self.taken = serial
        self._replaying = False
        return True

    def missing(self, serial: int) -> int | None:
        """The serial to replay from when ``serial`` shows a gap that nobody has asked to mend yet."""
        if serial <= self.taken + 1 or self._replaying:
            return None
        self._replaying = True
        return self.taken + 1

    def heard(self, serial: int) -> int | None:
        """A heartbeat says that ``serial`` is the last. The serial to replay from, when a report must be lost.

        Heartbeats may overtake reports, so a report counts as lost when two heartbeats in a row knew it and none was taken
        between them: whoever is busy takes one after the other, and to say all again would only keep him busy.
        """
        lost = self._promised > self.taken == self._before
        self._promised, self._before = serial, self.taken
        self._replaying |= lost
        return self.taken + 1 if lost else None

    def due(self, heartbeat: bool = False) -> int | None:
        """The serial to acknowledge now, if any."""
        waiting = self.taken - self.acknowledged
        if waiting == 0 or (waiting < ACKNOWLEDGE_EVERY and not heartbeat):
            return None
        self.acknowledged = self.taken
        return self.taken

    def check(self) -> None:
        """Raise AssertionError when an invariant is broken."""
        assert 0 <= self.acknowledged <= self.taken
