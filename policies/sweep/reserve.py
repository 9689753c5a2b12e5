"""The reserve: rows and pages that offline sequences leave free, so that an online request starts at the next plan.

An online request takes the rows and pages of the reserve at once, without waiting for a sequence to leave. Offline
sequences give way behind it, and their memory comes back when no open plan names them any more. Two plans take no more
than the reserve has, unless that would exceed a fixed fraction of the memory.
"""

from __future__ import annotations

from .parts import Parts

PART = 8  # divisor: at most 1/8 of the rows, and of the memory, is reserved
PLANS = 2
KEPT = 4  # divisor: cached pages of online requests keep 1/4 of the memory


def reserved_rows(parts: Parts) -> int:
    """Return the rows that offline sequences leave free."""
    rows = parts.config.max_rows
    return min(rows - 1, max(1, rows // PART))


def reserved_slots(parts: Parts) -> dict[str, int]:
    """Return the slots, by arena, that offline sequences leave free or idle."""
    config = parts.config
    memory = parts.memory
    found = dict[str, int]()
    pages = PLANS * (config.sweep_tokens + config.max_rows) // config.page_size
    for shape in parts.routes.shapes():
        limit = min(pages, memory.pages_of(shape.spans, "") // PART)
        for arena, layers in shape.layers.items():
            found[arena] = max(found.get(arena, 0), limit * layers)
    return found


def withheld_slots(parts: Parts) -> dict[str, int]:
    """Return the slots, by arena, that offline sequences do not take: the reserve, and cached pages of online requests.

    These pages are kept up to a fraction of the memory; beyond it, the least recently used ones give way to offline
    sequences.
    """
    reserved = reserved_slots(parts)
    found = dict[str, int]()
    idle = parts.memory.pages.idle
    for shape in parts.routes.shapes():
        limit = parts.memory.pages_of(shape.spans, "") // KEPT
        for arena, layers in shape.layers.items():
            kept = min(idle.slots[arena] - idle.early_slots[arena], limit * layers)
            found[arena] = max(found.get(arena, 0), reserved.get(arena, 0) + kept)
    return found


def withheld_from_starts(parts: Parts) -> dict[str, int]:
    """Return the slots, by arena, that an offline sequence does not take when it starts; none if it is alone."""
    return {} if alone(parts) else withheld_slots(parts)


def alone(parts: Parts) -> bool:
    """Return whether nothing runs here and at most one sequence waits: then nothing is kept from it."""
    return not parts.queue.running and parts.queue.waiting < 2 and not len(parts.leases)
