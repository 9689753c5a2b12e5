"""What a worker takes of offline requests now: for the credit by which gateways send them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..plain import from_plain, to_plain
from ..plan.coefficients import Coefficients
from ..requests.account import is_offline_account
from .fitting import Fitting
from .parts import Parts
from .reserve import reserved_rows, withheld_from_starts

AHEAD = 2  # sweeps of prompt tokens that may wait for time: beyond, nothing is taken


@dataclass(frozen=True, slots=True)
class OfflineRoom:
    """Of applications whose routes begin at a worker, and to all of which it has the same to say."""

    applications: tuple[str, ...]
    rows: int  # sequences that could start now beside those that have started
    positions: int  # tokens of KV that these may have, beside what prompts that have begun will still take
    room: int  # tokens of KV that fit while nothing else is here


def tell_rooms(rooms: Sequence[OfflineRoom], costs: Coefficients | None) -> dict[str, object]:
    """A part of a worker's heartbeat."""
    told: dict[str, object] = {"offline": [[list(one.applications), one.rows, one.positions, one.room] for one in rooms]}
    return told if costs is None else told | {"costs": to_plain(costs)}


def rooms_told(heartbeat: Mapping[str, Any]) -> tuple[list[OfflineRoom] | None, Coefficients | None]:
    """What it says; of a worker that says nothing of it, None."""
    rooms, costs = heartbeat.get("offline"), heartbeat.get("costs")
    told = None if rooms is None else [OfflineRoom(tuple(one[0]), one[1], one[2], one[3]) for one in rooms]
    return told, None if costs is None else from_plain(Coefficients, costs)


def offline_rooms(parts: Parts) -> list[OfflineRoom]:
    """Of all applications with a route in force that begins here. Nothing is taken while online requests wait."""
    queue, size = parts.queue, parts.config.page_size
    rows = parts.rows.free_rows - reserved_rows(parts)
    if queue.waiting > queue.offline_waiting or _prompts(parts) >= AHEAD * parts.config.sweep_tokens:
        rows = 0
    taken = Fitting(parts).promises(offline=True).beside(withheld_from_starts(parts))
    best: dict[str, tuple[int, int]] = {}  # by application: positions that are free, and those there are
    for shape in parts.routes.shapes():
        pages = min([_free(parts, arena, taken.get(arena, 0)) // count for arena, count in shape.layers.items()])
        here = max(pages, 0) * size, parts.memory.pages_of(shape.spans, "") * size
        for name in shape.homes:
            if name not in best or best[name][0] < here[0]:
                best[name] = here
    alike: dict[tuple[int, int], list[str]] = {}
    for name in sorted(best):
        alike.setdefault(best[name], []).append(name)
    return [OfflineRoom(tuple(names), max(rows, 0), positions, room) for (positions, room), names in alike.items()]


def _free(parts: Parts, arena: str, taken: int) -> int:
    """Slots that are free or idle, but for so many."""
    pages = parts.memory.pages
    return pages.allocator(arena).room + pages.idle.slots[arena] - taken


def _prompts(parts: Parts) -> int:
    """Prompt tokens of offline sequences that are not computed yet."""
    rows, queue = parts.rows, parts.queue
    if not queue.offline:
        return 0
    begun = sum([rows.known[s] - rows.planned[s] - 1 for s in queue.running[queue.online :]])
    return begun + sum([rows.length[s] for s in rows.live() if rows.is_offline(s) and rows.row[s] < 0])


def offline_bytes(parts: Parts) -> dict[str, int]:
    """Bytes of KV that the sequences of each offline account list; pages that are only cached count for nobody."""
    accounts = parts.memory.pages.accounts
    return {name: held - accounts.idle(name) for name, held in accounts.all_held().items() if is_offline_account(name)}
