"""News of a worker's cached KV pages, for the comparison of workers: what has become idle, is used again, or is evicted.

The page table notes handles as they change, and a report turns them into keys. Reports are numbered. One that does not
follow the last one that the reader has begins anew with all idle pages, and so does one after more changes than there are
pages. So news is bounded, and a report costs work for what has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from .prefix_index import Key

MOST = 4096  # pages of one report
SPARE = 1024  # evictions beyond the number of pages that are noted


@dataclass(frozen=True, slots=True)
class CacheReport:
    """The changes since the report before it, in the order: gone, then used and idle.

    anew: nothing said before counts. left: changes that the next report has. ages: seconds since the last use of each idle
    page.
    """

    number: int
    anew: bool
    left: int
    gone: list[Key] = field(default_factory=list)
    used: list[Key] = field(default_factory=list)
    idle: list[Key] = field(default_factory=list)
    ages: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class MarkPages:
    """head -> worker: these cached pages go first from now on, as another worker has them, too; ``kept`` ones do no more."""

    redundant: list[Key] = field(default_factory=list)
    kept: list[Key] = field(default_factory=list)


class CacheNews:
    """The changes of one worker's cached pages since its last report (see the module)."""

    def __init__(self) -> None:
        self._now = 0.0
        self._number = 0  # of the last report
        self._anew = True  # the next report begins anew
        self._released: dict[int, float] = {}  # handle -> time when it last became idle
        self._changed: dict[int, None] = {}  # handles that became idle or were used, in order
        self._gone: dict[Key, None] = {}

    def at(self, now: float) -> None:
        """Set the time of the notes that follow."""
        self._now = now

    # notes of the page table ------------------------------------------------------------------------------------------

    def rest(self, handle: int) -> None:
        """Note that a page became idle."""
        self._released[handle] = self._now
        self._changed[handle] = None

    def wake(self, handle: int) -> None:
        """Note that a page is used."""
        self._changed[handle] = None

    def split(self, handle: int, part: int) -> None:
        """Note a part of a page, which is used or idle as the page was; the first part has its number."""
        self._released[part] = self._released.get(handle, 0.0)
        self._changed[part] = None

    def withdraw(self, key: Key, pages: int) -> None:
        """Note that a page can be found no more. ``pages``: handles of the table."""
        self._gone[key] = None
        if len(self._gone) > pages + SPARE:
            self._anew = True
            self._gone = {}

    # reports ----------------------------------------------------------------------------------------------------------

    def report(
        self, after: int, now: float, idle: Iterable[int], is_idle: Callable[[int], bool], key: Callable[[int], Key | None]
    ) -> CacheReport:
        """Return the next report. ``after``: number of the last one that the reader has; 0: it has none.

        idle: all idle pages. is_idle, key: of a handle, as in the page table.
        """
        anew = self._anew or after != self._number or not after
        if anew:
            self._gone = {}
            self._changed = dict.fromkeys(idle)
            self._anew = False
        gone = [*self._gone][:MOST]
        for one in gone:
            del self._gone[one]
        handles = [*self._changed][: MOST - len(gone)] if not self._gone else []
        for handle in handles:
            del self._changed[handle]
        self._number += 1
        found = CacheReport(self._number, anew, len(self._gone) + len(self._changed), gone)
        for handle in handles:
            if (known := key(handle)) is None:
                continue  # it is evicted, and perhaps a private page by now
            if is_idle(handle):
                found.idle.append(known)
                found.ages.append(now - self._released.get(handle, 0.0))
            else:
                found.used.append(known)
        return found

    def has_changed(self, handle: int) -> bool:
        """Return whether a page was used since the last report."""
        return handle in self._changed
