"""KV swapping to host memory instead of recomputation, to compare parameter dropping with.

After InferCept (ICML 2024) and vLLM's swapping. The sweep machine chooses the preempted sequence; its KV moves to host
memory while others run on. It comes back when there is space for all of it, the oldest first. While any sequence is swapped
out, no new one starts, as in vLLM.

A preempted sequence leaves the sweep machine, and its memory is free at once, which is more favorable than a real copy.
Sequences that wait there stay outside with it, so that none overtakes it. Its KV moves over the instance's link to its host,
each way at full speed, while others run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from blockwright.policies.cluster.chunk_order import Traffic
from blockwright.policies.sweep.columns import Status
from blockwright.policies.sweep.events import Submission
from blockwright.simulator.devices import RemovedSequence
from blockwright.simulator.moving import KvMoves
from blockwright.simulator.simulation import ClusterPolicy, ClusterSimulation

WAITING = (Status.WAITING, Status.PARKED)
SPARE = 0.01  # fraction of memory kept free for running sequences (vLLM's watermark)


@dataclass(frozen=True, slots=True)
class SwappedSequence:
    """A sequence with ``pages`` of KV in host memory, or on their way there."""

    request: str
    arrival: float
    pages: int


class SwapQueue:
    """The swapped-out sequences of an instance of ``total`` pages."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._out: dict[str, SwappedSequence] = {}
        self._leaving: set[str] = set()  # sequences whose KV has not arrived in host memory
        self._returning: set[str] = set()

    def leave(self, sequence: SwappedSequence) -> None:
        """Add a sequence whose KV begins to move to host memory."""
        self._out[sequence.request] = sequence
        self._leaving.add(sequence.request)

    def arrived(self, request: str) -> None:
        """Note that its KV is in host memory."""
        self._leaving.discard(request)

    def next(self, free: int, running: int) -> list[SwappedSequence]:
        """Return the sequences whose KV begins to return now. free: pages of the instance. running: sequences there."""
        found = list[SwappedSequence]()
        spare = round(SPARE * self._total) if running or self._returning else 0
        for sequence in sorted(self._out.values(), key=lambda one: (one.arrival, one.request)):
            if sequence.request in self._returning:
                continue
            free -= sequence.pages + 1
            if sequence.request in self._leaving or free < spare:
                break
            self._returning.add(sequence.request)
            found.append(sequence)
            spare = round(SPARE * self._total)
        return found

    def returned(self, request: str) -> None:
        """Remove a sequence whose KV is back."""
        self._returning.discard(request)
        del self._out[request]

    @property
    def left(self) -> int:
        """The number of swapped-out sequences."""
        return len(self._out)

    @property
    def pages(self) -> int:
        """The number of their KV pages."""
        return sum(sequence.pages for sequence in self._out.values())


class SwapPolicy(ClusterPolicy):
    """Policy that swaps the KV of preempted sequences to host memory (see the module). Host memory is never full.

    ``bandwidth`` is of the link to the host, in bytes per second each way.
    """

    def __init__(self, cluster: ClusterSimulation, bandwidth: float) -> None:
        self._cluster = cluster
        self.places = [*range(len(cluster.instances))]
        self.moves = KvMoves(cluster, bandwidth)
        self._queues = [SwapQueue(instance.total_blocks) for instance in self._cluster.instances]
        self._swapped: dict[str, tuple[RemovedSequence, float]] = {}  # by request, since when
        self._preempted: list[tuple[int, str]] = []  # (place, request) of sequences that are to be swapped out now
        self._leaving = False
        # sequences that wait behind them, by place
        self._outside: list[dict[str, Submission]] = [{} for _ in self._cluster.instances]

    def redirect(self, place: int, submission: Submission) -> tuple[int, Submission] | None:
        """Hold a submission back while a sequence of its instance is swapped out."""
        if self._queues[place].left and submission.request not in self.moves.kept:
            self._outside[place][submission.request] = submission
            self._show(place)
            return None
        return place, self.moves.routed(place, submission)

    def before_news(self, place: int, news: Sequence[tuple[str, str]]) -> None:
        """Release the pages of sequences that have started after their return."""
        self.moves.release_started(news)

    def report(self) -> dict[str, object]:
        """Return the figures, as in ``docs/schemas/simulate.json``."""
        return self.moves.report()

    def after_news(self, place: int, news: Sequence[tuple[str, str]]) -> None:
        """Swap out what was preempted."""
        self._preempted += [(place, request) for request, what in news if what == "preempted"]
        if self._leaving:  # the call in progress removes them one by one
            return
        self._leaving = True
        while self._preempted:
            at, request = self._preempted.pop(0)
            if self._cluster.instances[at].state.parts.rows.find(request) is not None:  # else its last token was under way
                self._swap_out(at, request)
            if self._queues[at].left and not self._preempted:
                self._set_aside(at)
        self._leaving = False
        self._let_in(place)

    def _swap_out(self, place: int, request: str) -> None:
        taken, worker = self.moves.take(place, request), self._cluster.instances[place].name
        if not taken.pages:  # nothing is lost
            self._outside[place][request] = taken.submission
            return
        size = taken.pages * self.moves.page_bytes
        self.moves.record("swapped-out", worker, request=int(request[1:]), bytes=size)
        self._swapped[request] = taken, self._cluster.now
        self._queues[place].leave(SwappedSequence(request, taken.submission.arrival, taken.pages))
        self._send((worker, f"{worker}'s host"), size, partial(self._out, place, request))

    def _set_aside(self, place: int) -> None:
        """Remove the waiting sequences of an instance, which must wait behind the ones swapped out."""
        rows = self._cluster.instances[place].state.parts.rows
        for request in [rows.submission[s].request for status in WAITING for s in rows.with_status(status)]:
            if request not in self.moves.kept and (place, request) not in self._preempted:
                self._outside[place][request] = self.moves.take(place, request).submission
        self._show(place)

    def _out(self, place: int, request: str) -> None:
        self._queues[place].arrived(request)
        self._let_in(place)

    def _send(self, link: tuple[str, str], size: int, done: partial[None]) -> None:
        self.moves.moved += size
        self.moves.links.send(link, Traffic.KV, size, self._cluster.now, done)

    def _let_in(self, place: int) -> None:
        """Return swapped sequences that fit; once all are back, let in the sequences that wait behind them."""
        if not self._queues[place].left:
            outside, self._outside[place] = self._outside[place], {}
            for submission in sorted(outside.values(), key=lambda one: one.arrival):
                self._cluster.deliver(place, submission)
            self._show(place)
            return
        device, worker = self.moves.device(place), self._cluster.instances[place].name
        running = self._cluster.instances[place].candidate(self._cluster.now).running
        for sequence in self._queues[place].next(device.total - device.used, running):
            held = device.hold(sequence.pages)
            size = sequence.pages * self.moves.page_bytes
            self._send((f"{worker}'s host", worker), size, partial(self._back, place, sequence.request, held))

    def _back(self, place: int, request: str, held: list[int]) -> None:
        taken, since = self._swapped.pop(request)
        self._queues[place].returned(request)
        self.moves.stalls.append(self._cluster.now - since)
        self.moves.record(
            "swapped-in", self._cluster.instances[place].name, request=int(request[1:]), seconds=self._cluster.now - since
        )
        self.moves.resume(place, taken, held)
        self._show(place)
        self._let_in(place)

    def _show(self, place: int) -> None:
        """Show the sequences outside to dispatchers, which count them."""
        size = self._cluster.instances[place].state.config.page_size
        pages = [-(-len(one.tokens) // size) for one in self._outside[place].values()]
        self._cluster.gateway.outside[place] = (
            len(pages) + self._queues[place].left, sum(pages) + self._queues[place].pages
        )  # fmt: skip
