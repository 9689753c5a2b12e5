"""The admission test for a waiting sequence: room beside what is promised to others, within its account's cap."""

from __future__ import annotations

from .parts import Parts
from .preemption import PageCommitments
from .sequences import Found


class Fitting:
    """The admission test of one worker (see the module).

    It changes nothing but the cache: idle pages may be evicted for a sequence that fits.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts, self._rows = parts, parts.rows

    def commitments(self, *, offline: bool = False) -> PageCommitments:
        """Return what running sequences will still take for prompts in progress. ``offline``: include offline ones."""
        commitments, queue = PageCommitments(self._rows.page_size, self._parts.memory), self._parts.queue
        for running in queue.running if offline else queue.running[: queue.online]:
            commitments.add(self._rows, running)
        return commitments

    def fits(self, s: int, found: Found, commitments: PageCommitments, awaited: dict[str, int]) -> bool:
        """Return whether there is room for the whole prompt and a token; for a guest, for its lease.

        Counted against it: what running prompts will still take, and the slots ``awaited`` for older requests.
        """
        return self._parts.memory.make_room(*self.need(s, found, commitments, awaited))

    def need(
        self, s: int, found: Found, commitments: PageCommitments, awaited: dict[str, int]
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Return two counts of slots by arena: the ones that must be free or idle, and idle ones that ``s`` will use
        itself.

        The latter do not count as room.
        """
        rows, pages = self._rows, self._parts.memory.pages
        total = self._pages_to_start(s)
        need, kept = commitments.beside(awaited), dict[str, int]()
        for i, span in enumerate(rows.route[s].kv):
            present = [handle for handles in found if (handle := handles[i]) is not None]
            cached = sum(1 for handle in present if not pages.references(handle))
            need[span.arena] = need.get(span.arena, 0) + (total - len(present)) * span.layers
            kept[span.arena] = kept.get(span.arena, 0) + cached * span.layers
        return need, kept

    def _pages_to_start(self, s: int) -> int:
        if self._rows.is_guest(s):
            return self._parts.leases.wanted(s)
        return -(-(self._rows.known[s] + 1) // self._rows.page_size)

    def within_cap(self, s: int, found: Found, commitments: PageCommitments) -> bool:
        """Return the same for the account's cap of KV memory."""
        if not self._parts.memory.capped:
            return True
        rows, memory, account = self._rows, self._parts.memory, self._rows.tenant[s]
        pages = memory.pages
        need = commitments.bytes.get(account, 0) + self._pages_to_start(s) * memory.page_bytes(rows.route[s].kv)
        for handle in (handle for handles in found for handle in handles if handle is not None):
            if pages.references(handle) and not pages.span(handle).hidden:  # already paid for by the sequences that list it
                need -= pages.page_bytes(pages.span(handle))
        return memory.within_cap(account, need)
