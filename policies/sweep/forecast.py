"""Jumps: many equal sweeps at once, for forecasts. A jump leads to the very state that stepping leads to.

While all rows decode and nobody joins or leaves, two sweeps differ only in the pages that are taken and published on the
way. Only these are played through, in their order; the columns move by addition.
"""

from __future__ import annotations

from blockwright.policies.sweep.open_plans import OpenPlan
from blockwright.policies.sweep.parts import Parts
from blockwright.policies.sweep.sequences import Sequences

_TAKE, _COMMIT = 0, 1  # of one sweep: first its plan takes pages, then its commit makes tokens and publishes


def most(parts: Parts, plan: OpenPlan) -> int:
    """How many sweeps from the only open plan on have the same rows, as far as memory lasts: until one of them ends."""
    rows, queue = parts.rows, parts.queue
    if not plan.plain or not plan.sequences or plan.starved or rows.leaving or len(queue.running) != len(plan.sequences):
        return 1
    if parts.leases.next_flight() is not None or parts.leases.pending:
        return 1
    sweeps = min(rows.limit[s] - 1 - start for s, start in zip(plan.sequences, plan.start, strict=True))
    if queue.waiting and rows.free_rows and len(plan.sequences) < parts.config.sweep_tokens:
        # Who waits for memory may start once something is published that it can share: never within a page.
        size = rows.page_size
        sweeps = min(sweeps, *[size - start % size for start in plan.start])
    return max(1, sweeps)


def jump(parts: Parts, sequences: Sequences, plan: OpenPlan, sweeps: int) -> int:
    """Take ``sweeps`` equal sweeps, of which ``plan`` is the first; ends before memory would run out. How many were taken.

    Tokens are unknown, 0 stands for each. A stop token is not foreseen.
    """
    rows = parts.rows
    done = sweeps
    for sweep, kind, places in _page_events(parts, plan, sweeps):
        batch = [plan.sequences[i] for i in places]
        if kind == _TAKE:
            if not parts.memory.fits(_need(parts, batch)) or not _within_caps(parts, batch):
                done = sweep
                break
            for s in batch:
                taken = parts.memory.take_pages(rows.route[s].spans, rows.tenant[s])
                assert taken is not None, "the pages fitted a moment ago"
                rows.list_page(s, taken)
        else:
            for i, s in zip(places, batch, strict=True):
                _reach(sequences, parts, s, plan.start[i] + sweep + 1)
    for s, start in zip(plan.sequences, plan.start, strict=True):
        rows.plan_more(s, done - 1)
        _reach(sequences, parts, s, start + done)
        rows.close(s)
    parts.outgoing.take_edits()  # the plans that were skipped took them
    parts.memory.take_edits()
    for s, start in zip(plan.sequences, plan.start, strict=True):
        sequences.tell(s, start + 1, [0] * done, [])
        sequences.settle(s)
    return done


def _page_events(parts: Parts, plan: OpenPlan, sweeps: int) -> list[tuple[int, int, list[int]]]:
    """(sweep, what, batch rows) for each sweep that takes or completes pages, in order."""
    rows, size = parts.rows, parts.rows.page_size
    found: dict[tuple[int, int], list[int]] = {}
    for i, (s, start) in enumerate(zip(plan.sequences, plan.start, strict=True)):
        if rows.route[s].spans:
            for sweep in range(rows.paged[s] * size - start, sweeps, size):
                found.setdefault((sweep, _TAKE), []).append(i)
        for sweep in range((-start - 1) % size, sweeps, size):  # the position that is computed completes a page
            found.setdefault((sweep, _COMMIT), []).append(i)
    age = {s: n for n, s in enumerate(parts.queue.running)}  # plans take pages by age, commits go through the batch
    for (_, kind), places in found.items():
        places.sort(key=(lambda i: age[plan.sequences[i]]) if kind == _TAKE else None)
    return [(sweep, kind, places) for (sweep, kind), places in sorted(found.items())]


def _need(parts: Parts, batch: list[int]) -> dict[str, int]:
    """Slots, by arena, for one more page of each sequence."""
    need: dict[str, int] = {}
    for s in batch:
        for span in parts.rows.route[s].spans:
            need[span.arena] = need.get(span.arena, 0) + span.layers
    return need


def _within_caps(parts: Parts, batch: list[int]) -> bool:
    """Whether each account may take one more page for each of its sequences."""
    if not parts.memory.capped:
        return True
    need: dict[str, int] = {}
    for s in batch:
        account = parts.rows.tenant[s]
        need[account] = need.get(account, 0) + parts.memory.page_bytes(parts.rows.route[s].spans)
    return all(parts.memory.within_cap(account, nbytes) for account, nbytes in need.items())


def _reach(sequences: Sequences, parts: Parts, s: int, computed: int) -> None:
    """KV of ``s`` is written up to ``computed``, and as many tokens follow as stepping would have brought."""
    missing = computed + 1 - parts.rows.length[s]
    sequences.compute(s, computed, [0] * missing)
