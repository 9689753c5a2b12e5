"""Turned away: what follows for a request that its worker has given back, for want of room or else.

Owns whether and when it is tried there again, from how much room on, and whether any other route will ever hold it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .admission import BROKEN, CROWDED, REFUSED, YIELDED
from .dispatch import UNKNOWN, Wanted, fitting, lacking_room
from .refusal import Refusal
from .routing_table import RoutingTable

AVOID = 0.25  # seconds: where it was given back it would be again


@dataclass(frozen=True, slots=True)
class TurnedAway:
    """But for ``avoid`` nothing of it where the request goes on as after any other return."""

    avoid: float = 0.0  # seconds in which it is not tried there again
    room: int = 0  # tokens that the route must come to hold before it is tried there again
    comes: bool = False  # that much can come, which is news of its own: it is tried then, however short ago it was
    refused: bool = False  # it is never tried there again
    hopeless: Refusal | None = None  # nor anywhere else: why it fails


def turned_away(wanted: Wanted, route: str, reason: str, table: RoutingTable) -> TurnedAway:
    """``route``: id of that which has given ``wanted`` back; ``reason``: as ``events.GivenBack`` has it."""
    if reason.startswith(BROKEN):
        return TurnedAway(refused=True, hopeless=Refusal.BROKEN)
    most = table.most.get(route, 0)
    if reason.startswith(CROWDED) and most >= wanted.tokens:
        room = table.capacity.get(route, 0) + 1 if most < UNKNOWN else UNKNOWN
        comes = room <= most
        return TurnedAway(0.0 if comes else AVOID, room, comes)
    if not reason.startswith((CROWDED, REFUSED)):
        return TurnedAway(0.0 if reason == YIELDED else AVOID)  # who waits for credit goes where that comes
    elsewhere = replace(wanted, refused=wanted.refused | {route})
    held = bool(fitting(elsewhere, table) or lacking_room(elsewhere, table))
    return TurnedAway(AVOID, refused=True, hopeless=None if held else Refusal.TOO_LONG)
