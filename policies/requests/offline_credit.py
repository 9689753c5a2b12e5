"""What may be sent of offline requests: of what workers say that they take, what is left, and whose turn it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ..model.chain import Route


class OfflineShare(NamedTuple):
    """Sequences that a worker would start, and positions of KV that they may have."""

    rows: int
    positions: int


def left(told: OfflineShare, starting: Iterable[int]) -> OfflineShare:
    """Beside the requests that are on their way there, of so many tokens each; below 0 where these are more."""
    rows, positions = told
    for tokens in starting:
        rows, positions = rows - 1, positions - tokens
    return OfflineShare(rows, positions)


def for_new(share: OfflineShare, held: Iterable[int]) -> OfflineShare:
    """Of this what new requests may take: those of so many tokens that wait at the gateway go first. Each needs a
    position, so that there are no more rows than positions."""
    rows, positions = left(share, held)
    return OfflineShare(max(min(rows, positions), 0), max(positions, 0))


def home_of(routes: Sequence[Route], home: str, need: int, share_of: Callable[[str], OfflineShare]) -> Route | None:
    """Where a request goes that needs so many positions: to the worker that it is meant for, while a route begins there;
    else to that which takes most. None: nobody has room."""
    meant = [route for route in routes if route.home == home]
    best, most = None, 0
    for route in meant or routes:
        rows, positions = share_of(route.home)
        if rows > 0 and positions >= need and positions > most:
            best, most = route, positions
    return best


def more(told: OfflineShare, before: OfflineShare) -> bool:
    """Whether a worker takes more than it did."""
    return told.rows > before.rows or told.positions > before.positions
