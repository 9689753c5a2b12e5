"""Announced pages: prompt pages that a running sequence is about to compute, and the sequences that wait for them.

A sequence that starts, or asks for leases in order to start, announces the full prompt pages that it will compute. A later
sequence that could then skip them is parked until the last of them is published, or until its maker leaves. Then it goes
back to the queue, and the first to start takes over. So an equal prefix is computed once.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..plain import Plain

Key = tuple[bytes, bytes]  # token hash, lineage of the last local span


class PendingPages:
    """The makers and the waiting sequences of announced pages.

    It does not know which pages are published already; its callers look that up.
    """

    def __init__(self) -> None:
        self._makers: dict[Key, int] = {}  # page -> the sequence that will make it
        self._sleepers: dict[Key, list[int]] = {}  # announced page -> sequences parked for it, in that order
        self.parked = 0  # times a sequence was parked

    def maker(self, key: Key) -> int | None:
        """Return the sequence that will make the page, or None."""
        return self._makers.get(key)

    def announce(self, key: Key, s: int) -> None:
        """Record ``s`` as the maker of the page; sequences that wait for the page wait for ``s``."""
        self._makers[key] = s

    def park(self, key: Key, s: int) -> None:
        """Let ``s`` wait until the page is made, or its maker leaves."""
        self._sleepers.setdefault(key, []).append(s)
        self.parked += 1

    def unpark(self, s: int) -> None:
        """Stop the wait of ``s``, which leaves."""
        for key, sleepers in self._sleepers.items():
            if s in sleepers:
                sleepers.remove(s)
                if not sleepers:
                    del self._sleepers[key]
                return

    @property
    def empty(self) -> bool:
        """True if no page is announced."""
        return not self._makers

    @property
    def awaited(self) -> bool:
        """True if a sequence waits for a page."""
        return bool(self._sleepers)

    def clear(self, keys: Iterable[Key], s: int) -> list[int]:
        """End announcements of ``s``, which has published these pages or will not make them.

        Return the sequences to wake.
        """
        woken: list[int] = []
        for key in keys:
            if self._makers.get(key) == s:
                del self._makers[key]
                woken += self._sleepers.pop(key, [])
        return woken

    def fork(self) -> PendingPages:
        copy = PendingPages()
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
    def restore(cls, data: dict[str, Plain]) -> PendingPages:
        pending_pages = cls()
        pending_pages._makers = {(token_hash, lineage): s for token_hash, lineage, s in data["makers"]}
        pending_pages._sleepers = {(token_hash, lineage): list(s) for token_hash, lineage, s in data["sleepers"]}
        pending_pages.parked = data["parked"]
        return pending_pages

    def check(self, makers: set[int], parked: set[int]) -> None:
        """Raise AssertionError when an invariant is broken.

        makers: sequences that may announce. parked: all sequences that wait for a page.
        """
        assert set(self._makers.values()) <= makers, "a page is announced by no sequence"
        asleep = [s for sleepers in self._sleepers.values() for s in sleepers]
        assert sorted(asleep) == sorted(parked), "a parked sequence is lost, or waits twice"
        assert self._sleepers.keys() <= self._makers.keys(), "a sequence waits for a page that none makes"
        assert all(self._sleepers.values()), "an empty set of sleepers is kept"
