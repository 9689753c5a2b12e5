"""The admission test of a waiting sequence: enough free memory beside the committed pages, within its account's cap."""

from __future__ import annotations

from .batch_builder import BatchBuilder
from .parts import Parts
from .pipeline import Pipeline
from .preemption import PageCommitments
from .sequences import Found, Sequences


def commitments(parts: Parts, *, offline: bool) -> PageCommitments:
    """Return what running sequences will still take for prompts in progress. ``offline``: include offline ones."""
    made, queue = PageCommitments(parts.rows.page_size, parts.memory), parts.queue
    for running in queue.running if offline else queue.running[: queue.online]:
        made.add(parts.rows, running)
    return made


class Fitting:
    """The admission test of one worker (see the module), for one round of starts after the other."""

    def __init__(self, parts: Parts, sequences: Sequences, pipeline: Pipeline) -> None:
        self._parts = parts
        self._rows = parts.rows
        self._sequences = sequences
        self._pipeline = pipeline
        self._offline = False
        self._counted: PageCommitments | None = None

    def begin(self, *, offline: bool = False) -> None:
        """Begin a round of starts. ``offline``: offline sequences start, beside what all others will still take."""
        self._offline, self._counted = offline, None

    @property
    def commitments(self) -> PageCommitments:
        """The page commitments of this round, counted when a sequence needs them."""
        if self._counted is None:
            self._counted = commitments(self._parts, offline=self._offline)
        return self._counted

    def examine(self, s: int, batch: BatchBuilder) -> Found | None:
        """Return the cached pages of a waiting sequence that may start if it fits.

        None if it cannot start now: it has left the queue to wait for pages that another sequence computes or for leases, or
        its account's cap keeps it out of this batch.
        """
        if self._sequences.park(s) or self._pipeline.ask(s):
            self._parts.dequeue(s)
            return None
        found = self._sequences.look_up(s)
        if self.within_cap(s, found):
            return found
        batch.capped.add(self._rows.tenant[s])
        return None

    def fits(self, s: int, found: Found, awaited: dict[str, int]) -> bool:
        """Return whether there is room for the whole prompt and a token; for a guest, for its lease.

        Counted against it: what running prompts will still take, and the slots ``awaited`` for older requests. Idle pages
        may be evicted for a sequence that fits.
        """
        grammar, spans = self._sequences.grammar(s), self._rows.route[s].kv
        asked = grammar is not None or any(span.arena != spans[0].arena for span in spans)
        listed = {handle for handles in found for handle in handles if handle is not None} if asked else None
        return self._parts.memory.make_room(*self.need(s, found, awaited), grammar, listed)

    def need(self, s: int, found: Found, awaited: dict[str, int]) -> tuple[dict[str, int], dict[str, int]]:
        """Return two counts of slots by arena: the ones that must be free or idle, and idle ones that ``s`` will use
        itself.

        The latter do not count as room.
        """
        rows, pages = self._rows, self._parts.memory.pages
        total = self._pages_to_start(s)
        need, kept = self.commitments.beside(awaited), dict[str, int]()
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

    def within_cap(self, s: int, found: Found) -> bool:
        """Return the same for the account's cap of KV memory."""
        if not self._parts.memory.capped:
            return True
        rows = self._rows
        memory = self._parts.memory
        account = self._rows.tenant[s]
        pages = memory.pages
        need = self.commitments.bytes.get(account, 0) + self._pages_to_start(s) * memory.page_bytes(rows.route[s].kv)
        for handle in (handle for handles in found for handle in handles if handle is not None):
            if pages.references(handle) and not pages.span(handle).hidden:  # already paid for by the sequences that list it
                need -= pages.page_bytes(pages.span(handle))
        return memory.within_cap(account, need)
