"""The contents of a heartbeat: event-loop lag, mailbox depths, and the age of the messages that run.

Owns the record and how it is measured; judges nothing. A node whose loop is stuck sends none, a slow one says so itself.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from ..actor.instance import ActorInstance

T = TypeVar("T", int, float)
MOST = 32  # actors named in a heartbeat


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """``waiting`` and ``running`` name the actors with most, and leave out those with nothing."""

    lag: float = 0.0  # seconds by which the loop was late for this heartbeat
    actors: int = 0
    waiting: dict[str, int] = field(default_factory=dict)  # actor -> messages in its mailbox
    running: dict[str, float] = field(default_factory=dict)  # actor -> seconds that its oldest running message runs


def measure(instances: Iterable[ActorInstance], now: float, lag: float) -> Heartbeat:
    """Return the heartbeat of a node with these actors; ``now`` by its clock."""
    waiting: dict[str, int] = {}
    running: dict[str, float] = {}
    actors = 0
    for instance in instances:
        actors += 1
        if depth := instance.waiting:
            waiting[instance.name] = depth
        if (since := instance.since) is not None:
            running[instance.name] = now - since
    return Heartbeat(max(0.0, lag), actors, _most(waiting), _most(running))


def _most(counted: dict[str, T]) -> dict[str, T]:
    return dict(heapq.nlargest(MOST, counted.items(), key=lambda item: item[1]))
