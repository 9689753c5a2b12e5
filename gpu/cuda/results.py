"""Results of sweeps: what a plan leaves on the card, its way to the host, and the ticket that waits for it.

A plan's results are a region of a buffer on the card, which one copy brings into pinned memory behind the plan. Buffers are
taken in turn, and one that is taken again has been read before, by the ticket's owner or else by the next taker.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from ...policies.plan.sweep_plan import SweepResult
from ..device import Outgoing
from ..sweep_draws import SweepOutcome
from .backend import CudaBackend
from .departures import LentBuffer
from .plan_columns import Region
from .streams import DeviceEvent

OPEN = 3  # plans whose results are on their way: one more than a worker has open
ROOM = 64 << 10  # bytes of a buffer at first

Reader = Callable[[np.ndarray], None]  # of the region, uint8


class PlanResults(Region):
    """The region of one plan. ``readers`` take from it what was drawn, ``leaving`` are departures, or where they lie."""

    def __init__(self) -> None:
        super().__init__()
        self.readers: list[Reader] = []
        self.leaving: list[LentBuffer | tuple[int, int]] = []  # on the card, or offset and bytes


@dataclass(slots=True)
class ResultBuffer:
    """A buffer on the card and its copy in host memory, with the ticket that still has to read it."""

    name: str
    host: torch.Tensor
    ticket: CudaTicket | None = None


class CudaTicket:
    """The ticket of a sweep that was queued. Any thread may wait."""

    def __init__(self, outcome: SweepOutcome, began: DeviceEvent, computed: DeviceEvent) -> None:
        self._outcome = outcome
        self._began, self._computed = began, computed
        self._ended: DeviceEvent | None = None
        self._results = PlanResults()
        self._host = torch.empty(0, dtype=torch.uint8)
        self._lock = threading.Lock()
        self._result: SweepResult | None = None
        self._departed: list[Outgoing] = []

    def follow(self, ended: DeviceEvent, results: PlanResults, host: torch.Tensor) -> None:
        """Set what is waited for, and where the results are afterwards."""
        self._ended = ended
        self._results, self._host = results, host

    @property
    def ready(self) -> bool:
        return self._result is not None or (self._ended is not None and self._ended.done())

    @property
    def departed(self) -> list[Outgoing]:
        return self._departed

    def wait(self) -> SweepResult:
        with self._lock:
            if self._result is None:
                self._result = self._collect()
            return self._result

    def _collect(self) -> SweepResult:
        """Read the results, once; their buffer may be taken again afterwards."""
        assert self._ended is not None, "a ticket is given when its sweep is queued"
        self._ended.wait()
        region_B = self._host.numpy()
        for read in self._results.readers:
            read(region_B)
        for one in self._results.leaving:
            if isinstance(one, LentBuffer):
                self._departed.append(one)
            else:
                self._departed.append(memoryview(region_B[one[0] : sum(one)].tobytes()))
        seconds = self._computed.seconds_since(self._began)
        self._results, self._host = PlanResults(), torch.empty(0, dtype=torch.uint8)
        return self._outcome.result(seconds, seconds)


@dataclass(slots=True)
class ResultRing:
    """The buffers of one device."""

    backend: CudaBackend
    buffers: list[ResultBuffer] = field(default_factory=list)
    next: int = 0

    def __post_init__(self) -> None:
        for number in range(OPEN):
            self.buffers.append(ResultBuffer(f"result {number}", self._make(ROOM)))
            self.backend.scratch.need(self.buffers[-1].name, ROOM)

    def take(self, results: PlanResults) -> ResultBuffer:
        """Return the next buffer, with room for these results, and set where they lie. Waits for who has it."""
        one = self.buffers[self.next]
        self.next = (self.next + 1) % OPEN
        if one.ticket is not None:
            one.ticket.wait()
            one.ticket = None
        nbytes = max(results.nbytes, 1)
        self.backend.scratch.need(one.name, nbytes)
        if one.host.numel() < nbytes:
            one.host = self._make(nbytes)
        self.backend.streams.poison(one.host)
        results.memory = self.backend.scratch.tensor(one.name, nbytes)
        return one

    def queue_copy(self, one: ResultBuffer, results: PlanResults, ticket: CudaTicket, computed: DeviceEvent) -> None:
        """Queue the copy of the results behind ``computed``; the ticket is to read them."""
        backend = self.backend
        backend.transfers.copies.wait(computed)
        host = one.host[: max(results.nbytes, 1)]
        source = backend.scratch.tensor(one.name, host.numel())
        backend.transfers.copies.launch(lambda: host.copy_(source, non_blocking=True))
        ended = backend.streams.event()
        ended.record(backend.transfers.copies)
        ticket.follow(ended, results, host)
        one.ticket = ticket

    def _make(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=self.backend.pinned)
