"""Simulated cluster whose instances swap the KV of preempted sequences to host memory, instead of recomputing it.

The policy is ``policies/overload/swapping.py``. A preempted sequence leaves the sweep machine, and its memory is free at
once, which is more favorable than a real copy. Sequences that wait there stay outside with it, so that none overtakes it.
Its KV moves over the instance's link to its host, each way at full speed, while others run.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ..policies.cluster.chunk_order import Traffic
from ..policies.overload.swapping import SwappedSequence, SwapQueue
from ..policies.plan.coefficients import Coefficients
from ..policies.sweep.columns import Status
from ..policies.sweep.events import Submission
from .description import Scenario
from .groups import Taken
from .moving import MovingSimulation
from .simulation import Note
from .workload import Demand

WAITING = (Status.WAITING, Status.PARKED)


class SwapSimulation(MovingSimulation):
    """Simulation with swapping (see the module). Host memory is never full."""

    def __init__(
        self,
        scenario: Scenario,
        coefficients: Sequence[Coefficients],
        demands: Sequence[Demand],
        *,
        jumps: bool = True,
        note: Note | None = None,
    ) -> None:
        super().__init__(scenario, coefficients, demands, bandwidth=scenario.links.host, jumps=jumps, note=note)
        self._queues = [SwapQueue(instance.total_blocks) for instance in self.instances]
        self._swapped: dict[str, tuple[Taken, float]] = {}  # by request, since when
        self._preempted: list[tuple[int, str]] = []  # (place, request) of sequences that are to be swapped out now
        self._leaving = False
        # sequences that wait behind them, by place
        self._outside: list[dict[str, Submission]] = [{} for _ in self.instances]

    def _told(self, place: int, news: list[tuple[str, str]]) -> None:
        super()._told(place, news)
        self._preempted += [(place, request) for request, what in news if what == "preempted"]
        if self._leaving:  # the call in progress removes them one by one
            return
        self._leaving = True
        while self._preempted:
            at, request = self._preempted.pop(0)
            if self.instances[at].state.parts.rows.find(request) is not None:  # otherwise its last token was under way
                self._swap_out(at, request)
            if self._queues[at].left and not self._preempted:
                self._set_aside(at)
        self._leaving = False
        self._let_in(place)

    def _swap_out(self, place: int, request: str) -> None:
        taken, worker = self._take(place, request), self.instances[place].name
        if not taken.pages:  # nothing is lost
            self._outside[place][request] = taken.submission
            return
        size = taken.pages * self._page_bytes
        self._log("swapped-out", worker, request=int(request[1:]), bytes=size)
        self._swapped[request] = taken, self.now
        self._queues[place].leave(SwappedSequence(request, taken.submission.arrival, taken.pages))
        self._send((worker, f"{worker}'s host"), size, partial(self._out, place, request))

    def _set_aside(self, place: int) -> None:
        """Remove the waiting sequences of an instance, which must wait behind the ones swapped out."""
        rows = self.instances[place].state.parts.rows
        for request in [rows.submission[s].request for status in WAITING for s in rows.with_status(status)]:
            if request not in self._kept and (place, request) not in self._preempted:
                self._outside[place][request] = self._take(place, request).submission
        self._show(place)

    def _out(self, place: int, request: str) -> None:
        self._queues[place].arrived(request)
        self._let_in(place)

    def _send(self, link: tuple[str, str], size: int, done: partial[None]) -> None:
        self.moved += size
        self.links.send(link, Traffic.KV, size, self.now, done)

    def _let_in(self, place: int) -> None:
        """Return swapped sequences that fit; once all are back, let in the sequences that wait behind them."""
        if not self._queues[place].left:
            outside, self._outside[place] = self._outside[place], {}
            for submission in sorted(outside.values(), key=lambda one: one.arrival):
                self._deliver(place, submission)
            self._show(place)
            return
        device, worker = self._device(place), self.instances[place].name
        running = self.instances[place].candidate(self.now).running
        for sequence in self._queues[place].next(device.total - device.used, running):
            held = device.hold(sequence.pages)
            size = sequence.pages * self._page_bytes
            self._send((f"{worker}'s host", worker), size, partial(self._back, place, sequence.request, held))

    def _back(self, place: int, request: str, held: list[int]) -> None:
        taken, since = self._swapped.pop(request)
        self._queues[place].returned(request)
        self.stalls.append(self.now - since)
        self._log("swapped-in", self.instances[place].name, request=int(request[1:]), seconds=self.now - since)
        self._go_on(place, taken, held)
        self._show(place)
        self._let_in(place)

    def _deliver(self, place: int, submission: Submission) -> None:
        if self._queues[place].left and submission.request not in self._kept:
            self._outside[place][submission.request] = submission
            self._show(place)
        else:
            super()._deliver(place, submission)

    def _show(self, place: int) -> None:
        """Show the sequences outside to dispatchers, which count them."""
        size = self.instances[place].state.config.page_size
        pages = [-(-len(one.tokens) // size) for one in self._outside[place].values()]
        self._entrance.outside[place] = (
            len(pages) + self._queues[place].left, sum(pages) + self._queues[place].pages
        )  # fmt: skip
