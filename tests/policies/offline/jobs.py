"""Small offline jobs, and what is done with them."""

from __future__ import annotations

from collections.abc import Sequence

from blockwright.policies.offline.density import Costs
from blockwright.policies.offline.feed import OfflineFeed, OfflineRequest, PlacedRequest
from blockwright.policies.offline.prefix_tree import packed

COSTS = Costs(token=1e-3, attend=1e-6, read=1e-5)
NEVER = 1.0  # a draw that no share is above


def group(first: int, count: int, shared: int = 20, own: int = 5, limit: int = 8) -> list[OfflineRequest]:
    """Requests that begin with the same tokens."""
    prefix = [first] * shared
    return [OfflineRequest(prompt=packed(prefix + [1000 * first + n] * own), limit=limit) for n in range(count)]


def mixed(short: int = 12, long: int = 6) -> list[OfflineRequest]:
    """Compute-heavy and memory-heavy ones."""
    return group(1, short, shared=30, limit=2) + group(2, long, shared=3, own=2, limit=200)


def feed_of(requests: Sequence[OfflineRequest], sampled: Sequence[int] = (), **more: object) -> OfflineFeed:
    draws = [0.0 if number in sampled else NEVER for number in range(len(requests))]
    return OfflineFeed(requests, COSTS, draws=draws, **{"share": 0.01 if sampled else 0.0, **more})  # type: ignore[arg-type]


def numbers(placed: Sequence[PlacedRequest]) -> list[int]:
    return [one.request for one in placed]


def drain(feed: OfflineFeed, worker: str, output: int = 1) -> list[int]:
    """Run it to its end on one worker, one request after the other."""
    found = []
    while placed := feed.pull(worker, 1, 1e9):
        found += numbers(placed)
        feed.finished(placed[0].request, output)
    return found
