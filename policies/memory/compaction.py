"""Compaction (defragmentation): groups of slots are emptied into free slots of others, so that chunks can go elsewhere.

A group of chunks returns to the pool with its last slot, and what sequences leave behind is scattered over many. KunServe
(EuroSys 2026, local memory) drains the end of a virtual range; here chunks are equal wherever they lie, so that those go
first from which least has to be copied.
"""

from __future__ import annotations

from collections.abc import Mapping


def groups_to_empty(free: Mapping[int, int], group_slots: int, need: int, most: int) -> list[int]:
    """``need`` groups, those with the fewest slots in use first, whose slots fit into the free slots of the rest; as many as
    can be. free: slots of each group that has some. most: slots that may be copied."""
    chosen: list[int] = []
    copied, room = 0, sum(free.values())
    for group in sorted(free, key=lambda group: (-free[group], group)):
        copied += group_slots - free[group]
        room -= free[group]
        if len(chosen) == need or copied > min(room, most):
            break
        chosen.append(group)
    return chosen
