"""Outgoing tensors: a pipeline's hidden states for its next worker, in shared memory if there is some; KV and parameters.

Owns the links that this worker has used, and hidden states for a worker that is not known here: the address book's line
about it may have been lost, and nothing else would miss them. ``lay_out`` runs on the device thread, so that the event loop
moves no large buffers; ``send`` runs on the loop.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection
from functools import partial

from ...gpu.device import CardBytes, Outgoing
from ...policies.plan.sweep_plan import Departure
from ...policies.sweep.events import Flight
from ...runtime.actor.actor import ActorNode
from ...runtime.base.buffers import Sink
from ...runtime.base.codec import encode, pack
from ...transport.clock import Clock
from ...transport.device_memory import DeviceBytes, DeviceMemory, DeviceMemoryError
from ...transport.link import Link, Slot, Traffic, Transfer
from ...transport.nccl_link import Nccl
from ...transport.transfer import SHARE_LEAST
from .device_thread import ExecutedPlan, Laid

log = logging.getLogger(__name__)
MIRROR, CARD = "cuda-mirror", "cuda"


class Outbox:
    """Outgoing links and their buffers (see the module)."""

    def __init__(self, node: ActorNode) -> None:
        self._node = node
        self._links: dict[str, Link] = {}  # by worker; to its last known life
        self._waiting: dict[str, deque[tuple[Departure, Laid]]] = {}  # hidden states by worker that is not known

    def lay_out(self, worker: str, hidden: Outgoing) -> Laid:
        """Return the hidden states as they are sent.

        A card's stay there if the link copies from it. Others go to a slot of shared memory, or are bytes if there is none.
        """
        link, nbytes = self._links.get(worker), hidden.nbytes
        if not isinstance(hidden, memoryview) and link is not None and link.reads_device:
            return DeviceBytes(hidden.address, nbytes, partial(_read, hidden), hidden)
        slot = link.slot(nbytes) if link is not None and nbytes >= SHARE_LEAST else None
        if slot is None:
            return hidden if isinstance(hidden, memoryview) else _read(hidden)
        if isinstance(hidden, memoryview):
            slot.view[:] = hidden
        else:
            hidden.copy_to(slot.view)
        return slot

    def room(self, worker: str, size: int) -> bytearray | Slot:
        """Return a buffer of ``size`` bytes for data to be sent."""
        link = self._links.get(worker)
        slot = link.slot(size) if link is not None and size >= SHARE_LEAST else None
        return bytearray(size) if slot is None else slot

    def send(self, worker: str, header: bytes, body: bytes | Laid, kind: Traffic = Traffic.ACTIVATION) -> Transfer:
        """Send a buffer to a worker. Raises NodeDown and the transport's errors if it is gone or does not read."""
        link = self._links[worker] = self._node.link(worker)
        return link.send(kind, header, [body])

    def offer_device(self, device: str) -> None:
        """Let tensors travel through the memory of this worker's device, if it has some that other processes can open."""
        try:
            memory = open_device_memory(device, self._node.clock)
            if memory is not None:
                self._node.offer_device(memory, open_nccl(device))
        except DeviceMemoryError as error:
            log.warning("tensors for other workers go through the memory of the host: %s", error)

    def kinds(self) -> dict[str, str]:
        """Return the kind of the link to each worker that is up and was sent something."""
        return {worker: link.kind for worker, link in self._links.items() if self._node.current_incarnation(worker)}

    def depart(self, swept: ExecutedPlan) -> None:
        """Send the hidden states that leave after a sweep to the worker of their next pipeline stage."""
        for departure, hidden in zip(swept.departures, swept.departed, strict=True):
            if departure.rows:
                self.depart_one(departure, hidden)

    def depart_one(self, departure: Departure, hidden: Laid) -> None:
        """Send hidden states that leave to the worker of their next pipeline stage."""
        if departure.worker not in self._waiting and self._node.current_incarnation(departure.worker):
            self._send_flight(departure, hidden)
            return
        self._waiting.setdefault(departure.worker, deque()).append((departure, hidden))
        self._send_waiting(departure.worker)

    def retry(self) -> None:
        """Send what waits for workers that are known by now, and have the head asked for the others."""
        for worker in [*self._waiting]:
            self._send_waiting(worker)

    def retain(self, workers: Collection[str]) -> None:
        """Drop what waits for other workers than these."""
        self._waiting = {worker: waiting for worker, waiting in self._waiting.items() if worker in workers}

    def _send_waiting(self, worker: str) -> None:
        waiting = self._waiting[worker]
        while waiting:
            if not self._node.current_incarnation(worker):
                self._node.seek(worker)
                return
            self._send_flight(*waiting.popleft())
        del self._waiting[worker]

    def _send_flight(self, departure: Departure, hidden: Laid) -> None:
        header = pack(encode(Flight(departure.home, 0, departure.width, departure.rows), Sink()))
        try:
            self.send(departure.worker, header, hidden)
        except Exception as error:
            # The receiver is gone or unreachable. The head will declare its end, and the rows go back then.
            log.warning("hidden states for %s could not be sent: %s", departure.worker, error)


def _read(hidden: CardBytes) -> memoryview:
    """Return a card's bytes on the host."""
    memory = bytearray(hidden.nbytes)
    hidden.copy_to(memory)
    return memoryview(memory)


def open_nccl(device: str) -> Nccl | None:
    """Return NCCL on a worker's card ("cuda:1"); None for any other device, and where there is none."""
    name, _, number = device.partition(":")
    if name != CARD:
        return None
    from ...transport.cupy_memory import CupyNccl

    try:
        return CupyNccl(int(number or 0))
    except DeviceMemoryError as error:
        log.info("tensors for other cards go through the host: %s", error)
        return None


def open_device_memory(device: str, clock: Clock) -> DeviceMemory | None:
    """Return the memory of a worker's device ("cuda:1") for its links; None for a CPU.

    Raises DeviceMemoryError if it cannot be had; links then go by the host's memory.
    """
    if device == MIRROR:
        from ...transport.memory_file import MemoryFile

        return MemoryFile(clock)
    name, _, number = device.partition(":")
    if name != CARD:
        return None
    from ...transport.cupy_memory import CupyMemory

    return CupyMemory(int(number or 0))
