"""Offline capacity of a worker: the offline requests it would start now, the basis of the credit that gateways use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..plain import from_plain, to_plain
from ..plan.coefficients import Coefficients
from ..requests.account import is_offline_account
from .fitting import commitments
from .parts import Parts
from .reserve import reserved_rows, withheld_from_starts

AHEAD = 2  # sweeps of prompt tokens that may wait; beyond them there is no capacity


@dataclass(frozen=True, slots=True)
class OfflineCapacity:
    """The offline capacity for applications whose routes begin at a worker, and for which it is the same."""

    applications: tuple[str, ...]
    rows: int  # sequences that could start now in addition
    positions: int  # KV tokens for them, less what prompts in progress will still take
    room: int  # KV tokens that fit with nothing else here


def encode_capacities(rooms: Sequence[OfflineCapacity], costs: Coefficients | None) -> dict[str, object]:
    """Return the capacities as a part of a worker's heartbeat."""
    payload: dict[str, object] = {"offline": [[list(one.applications), one.rows, one.positions, one.room] for one in rooms]}
    return payload if costs is None else payload | {"costs": to_plain(costs)}


def decode_capacities(heartbeat: Mapping[str, Any]) -> tuple[list[OfflineCapacity] | None, Coefficients | None]:
    """Read the capacities and costs from a heartbeat; None where it has none."""
    rooms, costs = heartbeat.get("offline"), heartbeat.get("costs")
    capacities = None if rooms is None else [OfflineCapacity(tuple(one[0]), one[1], one[2], one[3]) for one in rooms]
    return capacities, None if costs is None else from_plain(Coefficients, costs)


def offline_capacities(parts: Parts) -> list[OfflineCapacity]:
    """Return the capacity of all applications with a route in force that begins here.

    It is 0 while online requests wait.
    """
    queue, size = parts.queue, parts.config.page_size
    rows = parts.rows.free_rows - reserved_rows(parts)
    if queue.waiting > queue.offline_waiting or _prompts(parts) >= AHEAD * parts.config.sweep_tokens:
        rows = 0
    taken = commitments(parts, offline=True).beside(withheld_from_starts(parts))
    best: dict[str, tuple[int, int]] = {}  # by application: (free positions, total positions)
    for shape in parts.routes.shapes():
        pages = min([_free(parts, arena, taken.get(arena, 0)) // count for arena, count in shape.layers.items()])
        here = max(pages, 0) * size, parts.memory.pages_of(shape.spans, "") * size
        for name in shape.homes:
            if name not in best or best[name][0] < here[0]:
                best[name] = here
    alike: dict[tuple[int, int], list[str]] = {}
    for name in sorted(best):
        alike.setdefault(best[name], []).append(name)
    return [OfflineCapacity(tuple(names), max(rows, 0), positions, room) for (positions, room), names in alike.items()]


def _free(parts: Parts, arena: str, taken: int) -> int:
    """Return the slots of an arena that are free or idle, less ``taken``."""
    pages = parts.memory.pages
    return pages.allocator(arena).room + pages.idle.slots[arena] - taken


def _prompts(parts: Parts) -> int:
    """Return the prompt tokens of offline sequences that are not computed yet."""
    rows, queue = parts.rows, parts.queue
    if not queue.offline:
        return 0
    begun = sum([rows.known[s] - rows.planned[s] - 1 for s in queue.running[queue.online :]])
    return begun + sum([rows.length[s] for s in rows.live() if rows.is_offline(s) and rows.row[s] < 0])


def offline_bytes(parts: Parts) -> dict[str, int]:
    """Return the bytes of KV that the sequences of each offline account list. Pages that are only cached count for none."""
    accounts = parts.memory.pages.accounts
    return {name: held - accounts.idle(name) for name, held in accounts.all_held().items() if is_offline_account(name)}
