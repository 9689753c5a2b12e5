"""KV exchange between the devices of a simulated cluster after a drop or a restore, page by page over its links.

A stale sequence pauses until its own KV has moved. Meanwhile its pages are held where they are. When its turn comes
(``policies/overload/exchange_order.py``), the pages that it needs elsewhere are held too, and its bytes leave in the KV
class of the links. Then its pages are published on all devices of its new route, where it finds them as a cached prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..policies.cluster.chunk_order import Traffic
from ..policies.model.chain import Component
from ..policies.overload.drop_plan import ParameterGroup, kv_bytes
from ..policies.overload.exchange_order import ExchangeOrder, StaleSequence
from .bulk import BulkLinks
from .groups import GroupDevice, RemovedSequence


@dataclass(slots=True)
class Paused:
    """A stale sequence, and the group in which it continues."""

    taken: RemovedSequence
    target: ParameterGroup
    held: dict[str, list[int]]  # pages by worker, held so that they stay free for it until it lists them itself
    left: int = 0  # transfers that have not arrived


class Exchange:
    """The exchange of one change of groups.

    ``devices`` are the new groups', by worker. ``touch`` is called before a worker's memory changes. ``resume`` is called
    when a sequence can continue, with its KV or without.
    """

    def __init__(
        self,
        links: BulkLinks,
        devices: Mapping[str, GroupDevice],
        components: Sequence[Component],
        touch: Callable[[str], None],
        resume: Callable[[Exchange, Paused], None],
    ) -> None:
        self._links = links
        self.devices = devices
        self._components = components
        self._touch, self._resume = touch, resume
        self._order = ExchangeOrder(lambda sender, receiver: links.bandwidth)
        self._paused: dict[str, Paused] = {}
        self.moved = 0  # bytes

    def add(
        self, taken: RemovedSequence, before: ParameterGroup, target: ParameterGroup, after: Sequence[ParameterGroup]
    ) -> None:
        """Add a sequence of the group ``before`` that continues in ``target``.

        ``after`` are the groups that its workers are in now.
        """
        chain, count = self._components, taken.pages
        now = {member.worker: member for group in after for member in group.members}
        held = dict[str, list[int]]()
        more = dict[str, int]()
        transfers = dict[tuple[str, str], int]()
        for old in before.members:
            new = now[old.worker]
            there = kv_bytes(chain, old.first, old.last)
            held[old.worker] = self.devices[old.worker].hold(-(-count * there // kv_bytes(chain, new.first, new.last)))
            for member in target.members:
                shared = kv_bytes(chain, max(old.first, member.first), min(old.last, member.last))
                if member.worker != old.worker and shared > 0:
                    transfers[old.worker, member.worker] = count * shared * taken.page_size
        for member in target.members:
            if (lacking := count - len(held.setdefault(member.worker, []))) > 0:
                more[member.worker] = lacking
        request = taken.submission.request
        self._paused[request] = Paused(taken, target, held)
        self._order.add(StaleSequence(request, transfers, more))

    def begin(self, now: float, running: int) -> None:
        """Start the transfers of the sequences that are next in turn. ``running`` is the number running on these devices."""
        free = {worker: device.total - device.used for worker, device in self.devices.items()}
        for sequence in self._order.next(free):
            paused = self._paused[sequence.request]
            for worker, count in sequence.pages.items():
                self._touch(worker)
                paused.held[worker] += self.devices[worker].hold(count)
            paused.left = len(sequence.transfers)
            for link, size in sequence.transfers.items():
                self.moved += size
                self._links.send(link, Traffic.KV, size, now, lambda paused=paused: self._arrived(paused))  # type: ignore[misc]
            if not sequence.transfers:
                self._end(paused, moved=True)
        if not running and (stuck := self._order.stuck()) is not None:
            self._end(self._paused[stuck.request], moved=False)

    def _arrived(self, paused: Paused) -> None:
        paused.left -= 1
        if not paused.left:
            self._end(paused, moved=True)

    def _end(self, paused: Paused, *, moved: bool) -> None:
        request = paused.taken.submission.request
        self._order.done(request)
        del self._paused[request]
        targets = {member.worker for member in paused.target.members} if moved else set[str]()
        for worker, handles in paused.held.items():
            self._touch(worker)
            hashes = paused.taken.submission.page_hashes[: paused.taken.pages] if worker in targets else []
            paused.held[worker] = self.devices[worker].publish(handles, hashes)
        self._resume(self, paused)

    @property
    def left(self) -> int:
        """The number of paused sequences."""
        return len(self._paused)
