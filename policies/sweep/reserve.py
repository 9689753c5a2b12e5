"""What offline sequences leave free, so that an online request starts at the next plan and waits for nobody to leave.

An online request takes the rows and pages of the reserve at once; offline sequences give way behind it, and their memory
comes back when no open plan names them any more. Two plans take no more than the reserve has, unless that were more than a
part of the memory.
"""

from __future__ import annotations

from blockwright.policies.sweep.parts import Parts

PART = 8  # of rows, and of memory, at most one in so many is kept free
PLANS = 2


def reserved_rows(parts: Parts) -> int:
    """Rows that offline sequences leave free."""
    rows = parts.config.max_rows
    return min(rows - 1, max(1, rows // PART))


def reserved_slots(parts: Parts) -> dict[str, int]:
    """Slots, by arena, that they leave free or idle."""
    config, memory, found = parts.config, parts.memory, dict[str, int]()
    pages = PLANS * (config.sweep_tokens + config.max_rows) // config.page_size
    for local in parts.routes.all_in_force():
        if local.spans:
            most = min(pages, memory.pages_of(local.spans, "") // PART)
            here: dict[str, int] = {}
            for span in local.spans:
                here[span.arena] = here.get(span.arena, 0) + most * span.layers
            for arena, slots in here.items():
                found[arena] = max(found.get(arena, 0), slots)
    return found


def alone(parts: Parts) -> bool:
    """Whether nothing runs here, and at most one sequence waits: then nothing is kept from it."""
    return not parts.queue.running and parts.queue.waiting < 2 and not len(parts.leases)
