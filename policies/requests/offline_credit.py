"""Credit for offline requests: what workers offer, what is left of it, and which worker a request goes to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ..model.chain import Route


class OfflineShare(NamedTuple):
    """The sequences that a worker would start, and the positions of KV that they may have."""

    rows: int
    positions: int


def left(share: OfflineShare, starting: Iterable[int]) -> OfflineShare:
    """Return the share left beside requests on their way there, with these numbers of tokens; negative if they are more."""
    rows, positions = share
    for tokens in starting:
        rows, positions = rows - 1, positions - tokens
    return OfflineShare(rows, positions)


def for_new(share: OfflineShare, held: Iterable[int]) -> OfflineShare:
    """Return the part of a share for new requests: requests that wait at the gateway, with ``held`` tokens, go first.

    Each request needs a position, so rows never exceed positions.
    """
    rows, positions = left(share, held)
    return OfflineShare(max(min(rows, positions), 0), max(positions, 0))


def home_of(routes: Sequence[Route], home: str, need: int, share_of: Callable[[str], OfflineShare]) -> Route | None:
    """Return the route for a request that needs ``need`` positions; None: no worker has room.

    It is the intended worker's route while there is one, else the one whose worker has the largest share.
    """
    meant = [route for route in routes if route.home == home]
    best, most_positions = None, 0
    for route in meant or routes:
        rows, positions = share_of(route.home)
        if rows > 0 and positions >= need and positions > most_positions:
            best, most_positions = route, positions
    return best


def more(now: OfflineShare, before: OfflineShare) -> bool:
    """Return whether a worker takes more than before."""
    return now.rows > before.rows or now.positions > before.positions
