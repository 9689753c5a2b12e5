"""Timeouts for guests whose rows have moved on to the next worker and are expected back (BlockLLM, section 5.2).

A worker serves sequences first that own KV here: guests whose rows have arrived, decoding rows, prompts in progress
(``planner.py``). Sequences that would have to take memory come after them. A guest whose row has gone on owns KV too, and
is away. Its place and pages are kept during its countdown: 1.5 times the running mean of the time that rows of its home
are away. After that they may go to an older sequence.
"""

from __future__ import annotations

from ..plain import Plain

FACTOR = 1.5
SHORTEST = 1.0  # least seconds of a countdown: a guest's loss must be recomputed from its first token


class ReturnTimeouts:
    """The guests whose rows have gone on and are not back."""

    def __init__(self) -> None:
        self._away: dict[int, tuple[str, float]] = {}  # guest -> (home, time it left); ordered by that time
        self._seen: dict[str, tuple[int, float]] = {}  # home -> (number of ended absences, their sum in seconds)

    def leave(self, guest: int, home: str, now: float) -> None:
        """Start the countdown of a guest whose row has passed: it is expected back, unless that was its last row."""
        self._away.pop(guest, None)
        self._away[guest] = (home, now)

    def come(self, guest: int, now: float) -> None:
        """End the countdown of a guest whose row is here."""
        left = self._away.pop(guest, None)
        if left is not None:
            count, total = self._seen.get(left[0], (0, 0.0))
            self._seen[left[0]] = (count + 1, total + now - left[1])

    def end(self, guest: int) -> None:
        """Forget a sequence that is no guest any more."""
        self._away.pop(guest, None)

    def lose(self, home: str) -> None:
        """Forget the times of a home that died; its next incarnation may be faster or slower."""
        self._seen.pop(home, None)

    def overdue(self, now: float) -> list[int]:
        """Return the guests whose countdowns are over, in the order they left.

        A home from which no guest ever came back has no countdown.
        """
        found = []
        for guest, (home, left) in self._away.items():
            count, total = self._seen.get(home, (0, 0.0))
            if count and now - left >= max(FACTOR * total / count, SHORTEST):
                found.append(guest)
        return found

    def fork(self) -> ReturnTimeouts:
        copy = ReturnTimeouts()
        copy._away, copy._seen = self._away.copy(), self._seen.copy()
        return copy

    def snapshot(self) -> dict[str, Plain]:
        return {
            "away": [[guest, home, left] for guest, (home, left) in self._away.items()],
            "seen": [[home, count, total] for home, (count, total) in self._seen.items()],
        }

    @classmethod
    def restore(cls, data: dict[str, Plain]) -> ReturnTimeouts:
        return_timeouts = cls()
        return_timeouts._away = {guest: (home, left) for guest, home, left in data["away"]}
        return_timeouts._seen = {home: (count, total) for home, count, total in data["seen"]}
        return return_timeouts

    def check(self, guests: set[int]) -> None:
        assert self._away.keys() <= guests, "a sequence that is no guest is expected back"
