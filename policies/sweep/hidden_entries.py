"""Prefill from an exit: prompt pages with stored hidden states skip the lower layers, which another sequence has computed.

Such a page is entered at the exit: only the layers behind it are computed. A batch row has one entry, so a chunk ends where
the entry changes. Pages of hidden states are looked up anew for each plan, and are shared until its end. One that has been
evicted meanwhile costs time, never correctness: the layers below are computed again, into the same KV.
"""

from __future__ import annotations

from ..model.runs import Exit
from ..plan.sweep_plan import SetPages
from .batch_builder import BatchBuilder
from .events import ExitEntered
from .parts import Parts


class HiddenEntries:
    """The entries of one worker's prompts in the plan being made. It keeps nothing between two plans."""

    def __init__(self, parts: Parts) -> None:
        self._parts, self._rows = parts, parts.rows

    def until_changed(self, s: int, count: int) -> int:
        """Return how many of the next ``count`` positions of ``s`` have the same entry."""
        rows = self._rows
        if not rows.route[s].entries:
            return count
        start, size = rows.planned[s], rows.page_size
        entry = self._entry(s, start // size)
        for page in range(start // size + 1, (start + count - 1) // size + 1):
            if self._entry(s, page) is not entry:
                return page * size - start
        return count

    def enter(self, batch: BatchBuilder, s: int, start: int, count: int) -> None:
        """Let ``count`` positions of ``s`` from ``start`` on enter at the exit where all of them can, if there is one.

        Memory has been taken for them. That may have evicted hidden states which were there when they were counted; then all
        positions begin at the first component.
        """
        rows, size = self._rows, self._rows.page_size
        local, pages = rows.route[s], self._parts.memory.pages
        inside = range(start // size, (start + count - 1) // size + 1)
        entry = self._entry(s, inside[0])
        if entry is None or any(self._entry(s, page) is not entry for page in inside):
            return
        for page in inside:
            handle = pages.find(rows.hashes[s][page], entry.span)
            assert handle is not None, "an entry has no page of hidden states"
            pages.share(handle, rows.tenant[s])
            rows.enter(s, start + count, handle)
            self._parts.outgoing.edit(SetPages(rows.row[s], local.column, page, pages.slots(handle)))
        of = rows.submission[s]
        self._parts.outgoing.count("entered_tokens", count)
        self._parts.outgoing.emit(ExitEntered(of.gateway, of.request, of.attempt, entry.span.layer, start, start + count))
        batch.enter(s, entry)

    def _entry(self, s: int, page: int) -> Exit | None:
        """Return the deepest exit at which a page can be entered: KV below it is complete, and hidden states are here.

        KV is complete if the very pages that ``s`` lists are published. A page of its own would be written only in part.
        """
        rows, find = self._rows, self._parts.memory.pages.find
        if page >= min(rows.hashed[s], rows.paged[s]):
            return None
        token_hash, local = rows.hashes[s][page], rows.route[s]
        for exit in local.entries:
            if find(token_hash, exit.span) is not None and all(
                find(token_hash, span) == listed[page]
                for span, listed in zip(local.spans, rows.pages[s], strict=True)
                if span.layer < exit.span.layer
            ):
                return exit
        return None
