"""Where hidden states and pages that leave a worker are written: into memory that the next worker reads, if there is some.

Owns the links that this worker has used. ``lay_out`` runs on the device thread, so that the event loop moves no large bytes;
``send`` runs on the loop.
"""

from __future__ import annotations

from blockwright.runtime.actor.actor import ActorNode
from blockwright.transport.link import Link, Slot, Traffic
from blockwright.transport.transfer import SHARE_LEAST


class Outbox:
    """See the module."""

    def __init__(self, node: ActorNode) -> None:
        self._node = node
        self._links: dict[str, Link] = {}  # by worker; of its last life

    def lay_out(self, worker: str, hidden: memoryview) -> memoryview | Slot:
        """The hidden states as they are to be sent: in a slot of shared memory, or as they are."""
        link = self._links.get(worker)
        slot = link.slot(len(hidden)) if link is not None and len(hidden) >= SHARE_LEAST else None
        if slot is None:
            return hidden
        slot.view[:] = hidden
        return slot

    def room(self, worker: str, size: int) -> bytearray | Slot:
        """Memory to write so many bytes to that are to be sent."""
        link = self._links.get(worker)
        slot = link.slot(size) if link is not None and size >= SHARE_LEAST else None
        return bytearray(size) if slot is None else slot

    def send(
        self, worker: str, header: bytes, body: memoryview | bytearray | Slot, kind: Traffic = Traffic.ACTIVATION
    ) -> None:
        """Raises NodeDown and the transport's errors where the worker is gone or does not read."""
        link = self._links[worker] = self._node.link(worker)
        link.send(kind, header, [body])
