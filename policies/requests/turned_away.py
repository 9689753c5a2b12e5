"""Turned-away requests: what follows when a worker gives a request back, for lack of room or another reason.

Owns whether and when the request is tried there again, the room it needs for that, and whether any route will ever hold
it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .admission import BROKEN, CROWDED, REFUSED, UNHELD, YIELDED
from .dispatch import UNKNOWN, RouteQuery, fitting, lacking_room
from .refusal import Refusal
from .routing_table import RoutingTable

AVOID = 0.25  # seconds not to retry a route that has just given it back


@dataclass(frozen=True, slots=True)
class TurnedAway:
    """The consequences. Apart from ``avoid``, all fields are unset if the request goes on as after any other return."""

    avoid: float = 0.0  # seconds without a retry there
    room: int = 0  # tokens that the route must be able to hold before a retry there
    comes: bool = False  # such room can come, and is announced: it is retried then, however soon
    refused: bool = False  # it is never retried there
    hopeless: Refusal | None = None  # nor anywhere else: the reason why it fails


def turned_away(wanted: RouteQuery, route: str, reason: str, table: RoutingTable) -> TurnedAway:
    """Return what follows when ``route`` (id) gives ``wanted`` back. ``reason``: as in ``events.GivenBack``."""
    if reason.startswith(BROKEN):
        return TurnedAway(refused=True, hopeless=Refusal.BROKEN)
    if reason.startswith(UNHELD):
        return TurnedAway(refused=True, hopeless=Refusal.UNHELD)
    alone = table.capacity_alone.get(route, 0)
    if reason.startswith(CROWDED) and alone >= wanted.tokens:
        room = table.capacity.get(route, 0) + 1 if alone < UNKNOWN else UNKNOWN
        comes = room <= alone
        return TurnedAway(0.0 if comes else AVOID, room, comes)
    if not reason.startswith((CROWDED, REFUSED)):
        return TurnedAway(0.0 if reason == YIELDED else AVOID)  # a request that waits for credit goes wherever credit comes
    elsewhere = replace(wanted, refused=wanted.refused | {route})
    held = bool(fitting(elsewhere, table) or lacking_room(elsewhere, table))
    return TurnedAway(AVOID, refused=True, hopeless=None if held else Refusal.TOO_LONG)
