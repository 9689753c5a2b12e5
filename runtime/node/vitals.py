"""What a heartbeat says of the node that sends it: how late its event loop runs and what lies on its actors.

Owns the record and how it is taken; judges nothing. A node whose loop is stuck sends none, one that is slow says so itself.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from blockwright.runtime.actor.cell import Cell

T = TypeVar("T", int, float)
MOST = 32  # actors named in a heartbeat


@dataclass(frozen=True, slots=True)
class Vitals:
    """``waiting`` and ``running`` name the actors with most, and leave out those with nothing."""

    lag: float = 0.0  # seconds by which the loop was late for this heartbeat
    actors: int = 0
    waiting: dict[str, int] = field(default_factory=dict)  # actor -> messages in its mailbox
    running: dict[str, float] = field(default_factory=dict)  # actor -> seconds that its oldest running message runs


def measure(cells: Iterable[Cell], now: float, lag: float) -> Vitals:
    """Of a node with these actors; ``now`` by its clock."""
    waiting: dict[str, int] = {}
    running: dict[str, float] = {}
    actors = 0
    for cell in cells:
        actors += 1
        if depth := cell.waiting:
            waiting[cell.name] = depth
        if (since := cell.since) is not None:
            running[cell.name] = now - since
    return Vitals(max(0.0, lag), actors, _most(waiting), _most(running))


def _most(counted: dict[str, T]) -> dict[str, T]:
    return dict(heapq.nlargest(MOST, counted.items(), key=lambda item: item[1]))
