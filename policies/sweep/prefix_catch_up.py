"""Prefill that skips ahead when imported pages become available.

Such a prompt is computed from the front, while its pages arrive from the back. Where both meet, prefill jumps over the
pages.
"""

from __future__ import annotations

from collections.abc import Callable

from .columns import Place
from .events import Progressed
from .parts import Parts


class PrefixCatchUp:
    """The skips of prefill on one worker (see the module). ``complete_page``: the row picker's method.

    Nothing is looked up on a worker to which no pages have come.
    """

    def __init__(self, parts: Parts, complete_page: Callable[[int, list[int | None], bool], None]) -> None:
        self._parts = parts
        self._rows = parts.rows
        self._complete_page = complete_page

    def jump(self, s: int) -> None:
        """List the next pages of ``s`` that are present, whatever sequence made them, and continue behind them."""
        parts = self._parts
        rows = self._rows
        size = self._rows.page_size
        if not parts.page_transfers.imported:
            return
        before = rows.cached[s]
        while rows.planned[s] == rows.paged[s] * size and (handles := self._found(s, rows.paged[s])):
            for handle in handles:
                if handle is not None:
                    parts.memory.pages.share(handle, rows.tenant[s])
            self._complete_page(s, handles, True)
            rows.jump(s, size)
        if jumped := rows.cached[s] - before:
            of = rows.submission[s]
            parts.outgoing.count("cached_tokens", jumped)
            parts.outgoing.emit(Progressed(of.gateway, of.request, of.attempt, rows.planned[s], rows.cached[s]))

    def until_found(self, s: int, count: int) -> int:
        """Return how many of the next ``count`` positions lie before the first page that need not be computed."""
        if self._parts.page_transfers.imported:
            start, size = self._rows.planned[s], self._rows.page_size
            for page in range(start // size + 1, (start + count) // size):
                if self._found(s, page):
                    return page * size - start
        return count

    def _found(self, s: int, page: int) -> list[int | None]:
        """Return the published handles of a page that ``s`` may skip, one for each span; empty if one of KV is missing."""
        rows, pages = self._rows, self._parts.memory.pages
        if rows.place[s] != Place.LOCAL or rows.submission[s].scored:
            return []
        if page >= min((rows.known[s] - 1) // rows.page_size, rows.hashed[s]):
            return []
        found = [pages.find(rows.hashes[s][page], span) for span in rows.route[s].spans]
        return [] if None in found[: rows.route[s].kv_spans] else found
