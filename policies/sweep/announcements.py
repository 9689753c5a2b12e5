"""Pages that are about to be made: who makes them, and who waits instead of making them too.

A sequence that starts, or asks for leases in order to start, announces the full prompt pages that it will compute. A later
sequence that could then skip them is parked until the last of them is published, or until its maker leaves; then it goes
back to the queue, and the first to start takes over.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..plain import Plain

Key = tuple[bytes, bytes]  # token hash, lineage of the last local span


class Announcements:
    """Makers and sleepers by page. Knows nothing of what is published already; who announces and parks looks that up."""

    def __init__(self) -> None:
        self._makers: dict[Key, int] = {}  # page that a sequence will make -> that sequence
        self._sleepers: dict[Key, list[int]] = {}  # announced page -> sequences parked for it, in that order
        self.parked = 0  # times that a sequence was parked

    def maker(self, key: Key) -> int | None:
        """The sequence that will make the page."""
        return self._makers.get(key)

    def announce(self, key: Key, s: int) -> None:
        """``s`` will make the page; who waits for it waits for ``s``."""
        self._makers[key] = s

    def park(self, key: Key, s: int) -> None:
        """``s`` waits until the page is made, or its maker leaves."""
        self._sleepers.setdefault(key, []).append(s)
        self.parked += 1

    def unpark(self, s: int) -> None:
        """``s`` leaves and waits for nothing."""
        for key, sleepers in self._sleepers.items():
            if s in sleepers:
                sleepers.remove(s)
                if not sleepers:
                    del self._sleepers[key]
                return

    @property
    def empty(self) -> bool:
        """Whether no page is announced."""
        return not self._makers

    def clear(self, keys: Iterable[Key], s: int) -> list[int]:
        """``s`` has published these pages, or will not make them; the sequences that need not wait any more."""
        woken: list[int] = []
        for key in keys:
            if self._makers.get(key) == s:
                del self._makers[key]
                woken += self._sleepers.pop(key, [])
        return woken

    def fork(self) -> Announcements:
        copy = Announcements()
        copy._makers, copy.parked = self._makers.copy(), self.parked
        copy._sleepers = {key: sleepers.copy() for key, sleepers in self._sleepers.items()}
        return copy

    def snapshot(self) -> dict[str, Plain]:
        return {
            "makers": [[*key, s] for key, s in self._makers.items()],
            "sleepers": [[*key, sleepers.copy()] for key, sleepers in self._sleepers.items()],
            "parked": self.parked,
        }

    @classmethod
    def restore(cls, data: dict[str, Plain]) -> Announcements:
        announcements = cls()
        announcements._makers = {(token_hash, lineage): s for token_hash, lineage, s in data["makers"]}
        announcements._sleepers = {(token_hash, lineage): list(s) for token_hash, lineage, s in data["sleepers"]}
        announcements.parked = data["parked"]
        return announcements

    def check(self, makers: set[int], parked: set[int]) -> None:
        """``makers``: sequences that may announce; ``parked``: all that wait for a page."""
        assert set(self._makers.values()) <= makers, "a page is announced by nobody"
        asleep = [s for sleepers in self._sleepers.values() for s in sleepers]
        assert sorted(asleep) == sorted(parked), "a parked sequence is lost, or waits twice"
        assert self._sleepers.keys() <= self._makers.keys(), "a sequence waits for a page that nobody makes"
        assert all(self._sleepers.values()), "an empty set of sleepers is kept"
