"""Compaction (defragmentation): slots move out of some groups into free slots of others, so that chunks can be reused.

A group of chunks returns to the pool with its last slot, and sequences that leave cause fragmentation over many groups.
KunServe (EuroSys 2026, local memory) drains the end of a virtual range. Here chunks are equal wherever they lie, so the
groups with least to copy go first.
"""

from __future__ import annotations

from collections.abc import Mapping


def groups_to_empty(free: Mapping[int, int], group_slots: int, need: int, limit: int) -> list[int]:
    """Return up to ``need`` groups to empty, those with the fewest used slots first, whose slots fit into the rest.

    free: free slots of each group that has some. limit: slots that may be copied.
    """
    chosen: list[int] = []
    copied, room = 0, sum(free.values())
    for group in sorted(free, key=lambda group: (-free[group], group)):
        copied += group_slots - free[group]
        room -= free[group]
        if len(chosen) == need or copied > min(room, limit):
            break
        chosen.append(group)
    return chosen
