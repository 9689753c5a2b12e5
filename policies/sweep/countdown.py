"""Sequences that have left and are expected back: BlockLLM, section 5.2.

Of a worker's queue those come first that own KV here: guests whose rows have arrived, decoding rows, prompts that have begun
(``planning.py``); then who would have to take memory. A guest whose row has gone on owns KV, too, and is away. Its place and
pages are kept while its countdown runs, 1.5 times the running mean of the time that rows of its home are away; after it
they may go to a sequence that is older.
"""

from __future__ import annotations

from ..plain import Plain

FACTOR = 1.5
SHORTEST = 1.0  # seconds that a countdown takes at least: what a guest loses has to be computed again from its first token


class Absences:
    """Guests whose rows have gone on from here and are not back."""

    def __init__(self) -> None:
        self._away: dict[int, tuple[str, float]] = {}  # guest -> its home and when it left; who left first is first
        self._seen: dict[str, tuple[int, float]] = {}  # home -> absences that have ended, and their sum in seconds

    def leave(self, guest: int, home: str, now: float) -> None:
        """The guest's row has passed; it is expected back, unless that was its last."""
        self._away.pop(guest, None)
        self._away[guest] = (home, now)

    def come(self, guest: int, now: float) -> None:
        """Its row is here."""
        left = self._away.pop(guest, None)
        if left is not None:
            count, total = self._seen.get(left[0], (0, 0.0))
            self._seen[left[0]] = (count + 1, total + now - left[1])

    def end(self, guest: int) -> None:
        """It is a guest no more."""
        self._away.pop(guest, None)

    def lose(self, home: str) -> None:
        """The home has died; another life of it may be faster or slower."""
        self._seen.pop(home, None)

    def overdue(self, now: float) -> list[int]:
        """Guests whose countdowns are over, the one that left first before all others. None of a home of which none ever
        came back."""
        found = []
        for guest, (home, left) in self._away.items():
            count, total = self._seen.get(home, (0, 0.0))
            if count and now - left >= max(FACTOR * total / count, SHORTEST):
                found.append(guest)
        return found

    def fork(self) -> Absences:
        copy = Absences()
        copy._away, copy._seen = self._away.copy(), self._seen.copy()
        return copy

    def snapshot(self) -> dict[str, Plain]:
        return {
            "away": [[guest, home, left] for guest, (home, left) in self._away.items()],
            "seen": [[home, count, total] for home, (count, total) in self._seen.items()],
        }

    @classmethod
    def restore(cls, data: dict[str, Plain]) -> Absences:
        absences = cls()
        absences._away = {guest: (home, left) for guest, home, left in data["away"]}
        absences._seen = {home: (count, total) for home, count, total in data["seen"]}
        return absences

    def check(self, guests: set[int]) -> None:
        assert self._away.keys() <= guests, "a sequence that is no guest is expected back"
