"""Turned away: what follows for a request that its worker has given back for want of room.

Owns whether it is tried there again, from how much room on, and whether any other route will ever hold it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from blockwright.policies.requests.admission import CROWDED, REFUSED
from blockwright.policies.requests.dispatch import UNKNOWN, Wanted, fitting, lacking_room
from blockwright.policies.requests.routing_table import RoutingTable


@dataclass(frozen=True, slots=True)
class TurnedAway:
    """Nothing of it where the request goes on as after any other return."""

    room: int = 0  # tokens that the route must come to hold before it is tried there again
    comes: bool = False  # that much can come, which is news of its own: it is tried then, however short ago it was
    refused: bool = False  # it is never tried there again
    hopeless: bool = False  # nor anywhere else: no other route holds it, or will


def turned_away(wanted: Wanted, route: str, reason: str, table: RoutingTable) -> TurnedAway:
    """``route``: id of that which has given ``wanted`` back; ``reason``: as ``events.GivenBack`` has it."""
    most = table.most.get(route, 0)
    if reason.startswith(CROWDED) and most >= wanted.tokens:
        room = table.capacity.get(route, 0) + 1 if most < UNKNOWN else UNKNOWN
        return TurnedAway(room, comes=room <= most)
    if not reason.startswith((CROWDED, REFUSED)):
        return TurnedAway()
    elsewhere = replace(wanted, refused=wanted.refused | {route})
    return TurnedAway(refused=True, hopeless=not fitting(elsewhere, table) and not lacking_room(elsewhere, table))
