"""Jumps: many equal sweeps at once, for forecasts. A jump leads to exactly the state that stepping leads to.

While all rows decode and none joins or leaves, two sweeps differ only in the pages taken and published on the way. Only
these are played through, in their order; the columns advance by addition.
"""

from __future__ import annotations

from .backfill_repeats import backfill_repeats, withheld
from .events import TokensEmitted
from .open_plans import OpenPlan
from .parts import Parts
from .sequences import Sequences
from .turn_choice import TurnChoice
from .urgent_starts import UrgentStarts

_TAKE, _COMMIT = 0, 1  # within one sweep: first its plan takes pages, then its commit makes tokens and publishes


def equal_sweeps(parts: Parts, plan: OpenPlan) -> int:
    """Return how many sweeps from the only open plan on have the same rows: until one ends, or lacks memory for a page.

    If pages of several layouts share the memory, it may be fewer.
    """
    rows, queue = parts.rows, parts.queue
    if not plan.plain or not plan.sequences or plan.starved or rows.leaving or len(queue.running) != len(plan.sequences):
        return 1
    if parts.pending_pages.awaited:  # the last position of a prompt may complete the page for which another one waits
        return 1
    if parts.leases.next_flight() is not None or parts.leases.pending or parts.leases.urgent or len(parts.page_pins):
        return 1
    if UrgentStarts.waiting(parts) or (queue.ageing.mixed and rows.free_rows):  # the time alone may change who runs
        return 1
    if not TurnChoice(parts).repeats():
        return 1
    sweeps = min([rows.limit[s] - 1 - start for s, start in zip(plan.sequences, plan.start, strict=True)])
    if queue.waiting and rows.free_rows and len(plan.sequences) < parts.config.sweep_tokens and _may_change(parts):
        size = rows.page_size
        sweeps = min(sweeps, *[size - start % size for start in plan.start])
    if queue.offline and sweeps > 1:
        sweeps = backfill_repeats(parts, plan, sweeps)
    return max(1, _lasting(parts, plan, sweeps))


def _may_change(parts: Parts) -> bool:
    """Return whether sequences that wait for memory may start within a jump, although memory only shrinks.

    They may once something that they can share is published, or once their account or tier is next. Both happen at the end
    of a page.
    """
    return parts.config.prefix_cache or parts.queue.accounts > 1 or bool(parts.queue.tiers)


def _lasting(parts: Parts, plan: OpenPlan, sweeps: int) -> int:
    """Return the largest number of sweeps, at most ``sweeps``, for which memory lasts."""
    if _fits(parts, plan, sweeps):
        return sweeps
    low, high = 0, sweeps  # the first number fits, the second does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _fits(parts, plan, middle) else (low, middle)
    return low


def _fits(parts: Parts, plan: OpenPlan, sweeps: int) -> bool:
    """Return whether all pages of ``sweeps`` sweeps can be taken, one after the other.

    Idle pages count as room only if one layout takes pages. With several, a chunk of evicted pages of one may go to another,
    and the rest of these pages lies in chunks that are in use.
    """
    rows, memory = parts.rows, parts.memory
    size = rows.page_size
    route = rows.route
    paged = rows.paged
    slots = withheld(parts)  # by arena
    accounts: dict[str, int] = {}  # bytes
    for s, start in zip(plan.sequences, plan.start, strict=True):
        pages = -(-(start + sweeps) // size) - paged[s]
        if pages > 0:
            for span in route[s].spans:
                slots[span.arena] = slots.get(span.arena, 0) + pages * span.layers
            if memory.capped:
                account = rows.tenant[s]
                accounts[account] = accounts.get(account, 0) + pages * memory.page_bytes(route[s].spans)
    kept = memory.pages.idle.slots if sum(count > 0 for count in slots.values()) > 1 else {}
    return memory.fits(slots, kept) and all(memory.within_cap(account, need) for account, need in accounts.items())


def growth(parts: Parts, plan: OpenPlan, sweeps: int) -> int:
    """Return the pages on all spans taken after ``plan``, up to the plan made ``sweeps`` sweeps later."""
    size = parts.rows.page_size
    paged = parts.rows.paged
    pages = 0
    for s, start in zip(plan.sequences, plan.start, strict=True):
        beyond = start + sweeps - paged[s] * size
        if paged[s] and beyond >= 0:
            pages += beyond // size + 1
    return pages


def jump(parts: Parts, sequences: Sequences, plan: OpenPlan, sweeps: int, emit: bool) -> None:
    """Make ``sweeps`` equal sweeps, at most ``equal_sweeps``, of which ``plan`` is the first.

    Tokens are unknown; 0 stands for each. A stop token is not foreseen. ``emit``: report also on sequences that go on.
    """
    rows = parts.rows
    memory = parts.memory
    outgoing = parts.outgoing
    events = _page_events(parts, plan, sweeps)
    if not parts.config.prefix_cache:
        _take_pages(parts, [plan.sequences[i] for _, kind, _, i in events if kind == _TAKE])
        sequences.charge_all(plan.sequences, [start + sweeps for start in plan.start])
    else:
        for sweep, kind, _, i in events:
            s = plan.sequences[i]
            if kind == _TAKE:
                _take_pages(parts, [s])
            else:
                before = rows.computed[s]
                rows.reach(s, plan.start[i] + sweep + 1)
                sequences.publish(s, before)
    outgoing.take_edits()  # skipped plans would have taken them
    memory.take_edits()
    emitted: list[TokensEmitted] = []
    ended = rows.commit_sweeps(plan.sequences, plan.start, sweeps, emitted, emit)
    outgoing.count("computed_tokens", sweeps * len(plan.sequences))
    outgoing.count("generated_tokens", sweeps * len(plan.sequences))
    if parts.queue.offline:  # those of the first plan were counted when it was made
        outgoing.count("offline_tokens", (sweeps - 1) * sum(map(rows.is_offline, plan.sequences)))
    outgoing.emit_all(emitted)
    for s in ended:
        sequences.drop(s)


def _take_pages(parts: Parts, takers: list[int]) -> None:
    """Take one more page for each of these sequences, in this order."""
    rows, memory = parts.rows, parts.memory
    if parts.routes.single and not memory.capped and takers:
        spans = rows.route[takers[0]].spans
        handles = memory.pages.allocate_several(spans[0], [rows.tenant[s] for s in takers]) if len(spans) == 1 else None
        if handles is not None:
            rows.list_each(takers, handles)
            return
    for s in takers:
        taken = memory.allocate_pages(rows.route[s].spans, rows.tenant[s])
        assert taken is not None, "there is less memory than was counted"
        rows.list_page(s, taken)


def _page_events(parts: Parts, plan: OpenPlan, sweeps: int) -> list[tuple[int, int, int, int]]:
    """Return (sweep, kind, order, batch row) for each page that is taken, or completed for the prefix cache.

    Plans take pages by age; commits go through the batch.
    """
    rows = parts.rows
    size = parts.rows.page_size
    single = parts.routes.single  # with one route, a batch is ordered by age
    age = {} if single else {s: n for n, s in enumerate(parts.queue.running)}
    found: list[tuple[int, int, int, int]] = []
    for i, (s, start) in enumerate(zip(plan.sequences, plan.start, strict=True)):
        first = rows.paged[s] * size - start
        if first < sweeps and rows.route[s].spans:
            order = i if single else age[s]
            found += [(sweep, _TAKE, order, i) for sweep in range(first, sweeps, size)]
        first = (-start - 1) % size  # the computed position completes a page
        if first < sweeps and parts.config.prefix_cache:
            found += [(sweep, _COMMIT, i, i) for sweep in range(first, sweeps, size)]
    found.sort()
    return found
