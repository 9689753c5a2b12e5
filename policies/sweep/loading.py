"""Room for parameters: what a load gets, and what of KV moves together for it."""

from __future__ import annotations

from collections.abc import Mapping

from ..memory.packed_tensor import Shortage
from ..plan.sweep_plan import SetPages
from .events import ComponentsPlaced, ComponentsRefused, ComponentsWanted
from .page_events import MoveSlots
from .parts import Parts


def place_components(parts: Parts, event: ComponentsWanted) -> None:
    """Reserve their room. The next plan maps their memory, so the effect that has them loaded comes with that plan.

    What a sequence that is here may still need is not given away: it would wait for ever, and all behind it. While pages
    are on their way in, to slots that the device was told, none moves.
    """
    memory, outgoing, rows = parts.memory, parts.outgoing, parts.rows
    longest: dict[tuple[str, str], int] = {}  # sequences by route and account
    for s in rows.live():
        of = rows.route[s].route.id, rows.tenant[s]
        if (known := longest.get(of)) is None or rows.limit[s] > rows.limit[known]:
            longest[of] = s
    pages = {s: -(-rows.limit[s] // rows.page_size) for s in longest.values()}
    needs = [memory.chunks_for(rows.route[s].spans, rows.tenant[s], n) for s, n in pages.items()]
    moves: dict[str, dict[int, int]] = {}
    movable = None if parts.exchange.landing else moves
    answer = memory.load(event.holder, event.components, max(needs, default=0), movable)
    _tell_moves(parts, moves)
    if isinstance(answer, Shortage):
        outgoing.tell(ComponentsRefused(event.load, answer))
    else:
        outgoing.tell_placed(ComponentsPlaced(event.load, [c.id for c in event.components], answer), memory.pending)


def _tell_moves(parts: Parts, moves: Mapping[str, Mapping[int, int]]) -> None:
    """The device copies them before the next plan, which says where rows find them."""
    memory, outgoing, rows = parts.memory, parts.outgoing, parts.rows
    targets = {arena: set(moved.values()) for arena, moved in moves.items() if moved}
    if not targets:
        return
    for arena in targets:
        outgoing.tell(MoveSlots(arena, list(moves[arena]), list(moves[arena].values())))
        outgoing.count("moved_slots", len(targets[arena]))
    for s in (s for s in rows.live() if rows.row[s] >= 0):
        for span, listed in zip(rows.route[s].spans, rows.pages[s], strict=True):
            for page, handle in enumerate(listed[: rows.paged[s]]):
                if not targets.get(span.arena, set()).isdisjoint(slots := memory.pages.slots(handle)):
                    outgoing.edit(SetPages(rows.row[s], span.layer, page, slots))
