"""The life of one deployed block: loading, resident, draining, gone.

A block is held by the applications that had it loaded. When the last one releases it, it drains until the last open plan
that may name it has ended; a new holder brings it back at any time.
"""

from __future__ import annotations

from enum import StrEnum


class BlockStage(StrEnum):
    LOADING = "loading"
    RESIDENT = "resident"
    DRAINING = "draining"
    GONE = "gone"


class BlockLife:
    """The life of one block (see the module)."""

    def __init__(self) -> None:
        self.holders: dict[str, None] = {}  # applications, in the order of arrival
        self._loading: dict[str, int] = {}  # application -> loads in progress
        self._draining = False

    @property
    def stage(self) -> BlockStage:
        if self.holders:
            return BlockStage.RESIDENT
        if self._loading:
            return BlockStage.LOADING
        return BlockStage.DRAINING if self._draining else BlockStage.GONE

    def begin(self, holder: str) -> None:
        """Note that a load for ``holder`` begins."""
        self._loading[holder] = self._loading.get(holder, 0) + 1
        self._draining = False

    def loaded(self, holder: str) -> None:
        self._over(holder)
        self.holders[holder] = None

    def failed(self, holder: str) -> None:
        """Note a failed load, of which nothing is kept."""
        self._over(holder)

    def release(self, holder: str) -> bool:
        """Remove a holder; return True if it was the last one, so that the block drains."""
        if holder not in self.holders:
            return False
        del self.holders[holder]
        self._draining = not self.holders and not self._loading
        return self._draining

    def ended(self) -> bool:
        """Note that no open plan names the block; return True if it is gone, and False if it has a holder again."""
        gone, self._draining = self._draining, False
        return gone

    def _over(self, holder: str) -> None:
        self._loading[holder] -= 1
        if not self._loading[holder]:
            del self._loading[holder]
