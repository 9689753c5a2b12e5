"""Placement of parameters in memory: the places of a load, and the KV slots that move together for it."""

from __future__ import annotations

from collections.abc import Mapping

from ..memory.packed_tensor import Shortage
from ..plan.sweep_plan import SetPages
from .draft_rows import DraftRows
from .events import ComponentsPlaced, ComponentsRefused, ComponentsWanted
from .page_events import MoveSlots
from .parts import Parts


def place_components(parts: Parts, event: ComponentsWanted) -> None:
    """Reserve memory for a load. The effect that has it loaded comes with the next plan, which maps the memory.

    Memory that a present sequence may still need is not given away: the sequence would wait forever, and all behind it.
    While pages are arriving, in slots that the device already knows, no slot moves.
    """
    memory = parts.memory
    outgoing = parts.outgoing
    rows = parts.rows
    longest: dict[tuple[str, str], int] = {}  # longest sequence of each route and account
    live = [s for s in rows.live() if not rows.is_draft_row(s)]
    for s in live:
        of = rows.route[s].route.id, rows.tenant[s]
        if (known := longest.get(of)) is None or rows.submission[s].max_length > rows.submission[known].max_length:
            longest[of] = s
    pages = {s: -(-rows.submission[s].max_length // rows.page_size) for s in longest.values()}
    needs = [memory.chunks_for(rows.route[s].kv, rows.tenant[s], n) for s, n in pages.items()]
    grammars = {grammar.key: grammar for s in live if (grammar := rows.submission[s].sampling.grammar) is not None}
    kept = max(needs, default=0) + max(map(memory.grammars.chunks_alone, grammars.values()), default=0)
    moves: dict[str, dict[int, int]] = {}
    movable = None if parts.page_transfers.receiving else moves
    answer = memory.load(event.holder, event.components, kept, movable)
    if isinstance(answer, Shortage) and DraftRows(parts).give_way_all():
        answer = memory.load(event.holder, event.components, kept, movable)
    _tell_moves(parts, moves)
    if isinstance(answer, Shortage):
        outgoing.order(ComponentsRefused(event.load, answer))
    else:
        if event.borrows:
            memory.residence.borrow(event.holder)
        outgoing.order_placed(ComponentsPlaced(event.load, [c.id for c in event.components], answer), memory.pending)


def _tell_moves(parts: Parts, moves: Mapping[str, Mapping[int, int]]) -> None:
    """Emit the moves. The device copies the slots before the next plan, which tells where rows find them."""
    memory = parts.memory
    outgoing = parts.outgoing
    rows = parts.rows
    targets = {arena: set(moved.values()) for arena, moved in moves.items() if moved}
    if not targets:
        return
    for arena in targets:
        outgoing.order(MoveSlots(arena, list(moves[arena]), list(moves[arena].values())))
        outgoing.count("moved_slots", len(targets[arena]))
    for s in (s for s in rows.live() if rows.row[s] >= 0):
        for span, listed in zip(rows.route[s].spans, rows.pages[s], strict=True):
            for page, handle in enumerate(listed[: rows.paged[s]]):
                if not targets.get(span.arena, set()).isdisjoint(slots := memory.pages.slots(handle)):
                    outgoing.edit(SetPages(rows.row[s], span.layer, page, slots))
