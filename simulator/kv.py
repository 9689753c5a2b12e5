"""KV for requests of a simulated cluster: what the gateway knows of it, and copies from one instance to another.

The gateway knows pages as the live one does (``policies/requests/known_pages.py``). Copied pages arrive as they do on a live
worker: the sweep machine takes them in, and a prompt that is computed from its front skips them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..policies.cluster.chunk_order import Traffic
from ..policies.model.chain import Route
from ..policies.model.lineage import page_hashes
from ..policies.prediction.instance import Instance
from ..policies.requests.known_pages import KnownPages
from ..policies.sweep.page_events import LayerGroup, PagesArrived
from ..policies.sweep.state import SweepState
from .bulk import BulkLinks
from .workload import WorkloadRequest


class KnownKv:
    """The pages of prompts that the gateway knows instances to have."""

    def __init__(self) -> None:
        self._pages = KnownPages()

    def cached(self, demand: WorkloadRequest, routes: Sequence[Route], size: int) -> dict[str, int]:
        """Return the leading tokens whose KV is known to be there, by route. ``size``: tokens of a page."""
        hashes = page_hashes(demand.tokens[: demand.prompt - 1], size, demand.salt)
        lineage = demand.model.encode()
        return {route.id: size * self._pages.leading(route.home, lineage, hashes) for route in routes}

    def note(self, demand: WorkloadRequest, route: Route, size: int, room: int) -> None:
        """Note that a request goes to a route. ``room``: pages that its instance holds."""
        hashes = page_hashes(demand.tokens[: demand.prompt - 1], size, demand.salt)
        self._pages.note(route.home, demand.model.encode(), hashes, room)


class KvCopies:
    """Copies of cached pages between instances of one device. moved: bytes.

    arrived: called with pages at their target; returns the time.
    """

    def __init__(self, links: BulkLinks, arrived: Callable[[Instance, PagesArrived], float]) -> None:
        self._links = links
        self._arrived = arrived
        self._batches = 0
        self.moved = 0

    def send(
        self,
        source: Instance,
        target: Instance,
        demand: WorkloadRequest,
        now: float,
        done: Callable[[float], None] = lambda at: None,
    ) -> bool:
        """Copy the pages of a prompt that the source has and the target lacks; return whether there are any.

        done: called with the time when they have arrived.
        """
        size = source.state.config.page_size
        hashes = page_hashes(demand.tokens[: demand.prompt - 1], size, demand.salt)
        groups, there = _layers(source.state), [one for one in hashes if _has(source.state, one)]
        lacking = [one for one in there if not _has(target.state, one)]
        if not lacking:
            return False
        nbytes = len(lacking) * sum(group.slot_bytes * len(group.layers) for group in groups)
        self._batches += 1
        pages = PagesArrived(source.name, self._batches, self._batches, demand.tenant or demand.model, f"r{demand.number}",
                             lacking, groups)  # fmt: skip
        self.moved += nbytes

        def arrived() -> None:
            done(self._arrived(target, pages))

        self._links.send((source.name, target.name), Traffic.KV, nbytes, now, arrived)
        return True


def _layers(state: SweepState) -> list[LayerGroup]:
    """Return the layers of the only model of an instance, by layout."""
    (local,) = state.parts.routes.all_in_force()
    found: dict[str, LayerGroup] = {}
    for span in local.spans:
        slot_bytes = state.parts.memory.pages.allocator(span.arena).slot_bytes
        group = found.setdefault(span.arena, LayerGroup(span.arena, slot_bytes, [], []))
        group.layers.extend(range(span.layer, span.layer + span.layers))
        group.lineages.extend(span.lineages)
    return [*found.values()]


def _has(state: SweepState, token_hash: bytes) -> bool:
    """Return whether an instance has a page whole."""
    (local,) = state.parts.routes.all_in_force()
    return all(state.parts.memory.pages.find(token_hash, span) is not None for span in local.spans)
