"""Live migration by load: running sequences move to another instance, with their KV, to compare parameter dropping with.

After Llumnix (OSDI 2024) and the thresholds of its public code. An instance's *freeness* is how many pages each of its
sequences could still take. The first in its queue counts as if it ran (virtual usage): where it does not fit, freeness is
negative, and running sequences make space for it. Instances below ``LEAST`` are sources, the others destinations; the least
free source is paired with the freest destination, and so on. Each instance takes part in one migration at a time; the
shortest sequence goes, which has least to copy.

As in Llumnix a sequence continues to decode while its KV is copied, round by round. The last round, of one page at most, is
copied while it is stopped; then it continues at its destination. If the source preempts or finishes it, the migration ends.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from blockwright.policies.cluster.chunk_order import Traffic
from blockwright.policies.overload.demand import PERIOD
from blockwright.policies.sweep.columns import Status
from blockwright.policies.sweep.events import Submission
from blockwright.simulator.devices import RemovedSequence
from blockwright.simulator.moving import KvMoves
from blockwright.simulator.simulation import ClusterPolicy, ClusterSimulation

LEAST = 3.0  # free pages for each sequence
WORTH = 2  # least pages of a sequence that is worth a migration


@dataclass(frozen=True, slots=True, kw_only=True)
class FreenessReading:
    """The KV of one instance, in pages. ``head``: pages that the first in its queue needs; 0: the queue is empty."""

    free: int
    running: int
    head: int = 0

    @property
    def freeness(self) -> float:
        """The free pages for each sequence; infinite if there is none."""
        sequences = self.running + (self.head > 0)
        return (self.free - self.head) / sequences if sequences else float("inf")


@dataclass(frozen=True, slots=True)
class MigrationPair:
    """The decision to move one sequence from one instance to another."""

    source: str
    destination: str


def migration_pairs(
    readings: Mapping[str, FreenessReading], busy: Collection[str] = (), *, least: float = LEAST
) -> list[MigrationPair]:
    """Return the instances that should hand a sequence over, with their destinations.

    Args:
        readings: of all instances of a model, by name.
        busy: instances that take part in a migration already.
        least: freeness below which sequences leave.
    """
    order = sorted((reading.freeness, name) for name, reading in readings.items() if name not in busy)
    sources = [name for free, name in order if free < least and readings[name].running]
    destinations = [name for free, name in reversed(order) if free >= least]
    return [MigrationPair(*pair) for pair in zip(sources, destinations, strict=False)]


def migrated(pages: Mapping[str, int], reading: FreenessReading, *, least: float = LEAST) -> str | None:
    """Return the sequence to move: the shortest. None: none is worth it, or the destination would be short itself.

    Args:
        pages: of the sequences that decode at the source, by request.
        reading: of the destination.
    """
    request = min(
        (name for name, count in pages.items() if count >= WORTH), key=lambda name: (pages[name], name), default=None
    )
    if request is None or (reading.free - reading.head - pages[request]) / (reading.running + 1) < least:
        return None
    return request


class MigrationPolicy(ClusterPolicy):
    """Policy that migrates running sequences between instances by load (see the module)."""

    def __init__(self, cluster: ClusterSimulation) -> None:
        self._cluster = cluster
        self.places = [*range(len(cluster.instances))]
        self.moves = KvMoves(cluster, cluster.scenario.links.bandwidth)
        self._busy: set[str] = set()  # instances that take part in a migration
        self._cluster.call(0.0, self._read)

    def redirect(self, place: int, submission: Submission) -> tuple[int, Submission] | None:
        """Send a submission where the dispatcher or a migration sends it."""
        return place, self.moves.routed(place, submission)

    def before_news(self, place: int, news: Sequence[tuple[str, str]]) -> None:
        """Release the pages of sequences that have started at their destination."""
        self.moves.release_started(news)

    def report(self) -> dict[str, object]:
        """Return the figures, as in ``docs/schemas/simulate.json``."""
        return self.moves.report()

    def _read(self) -> None:
        readings = {instance.name: self._reading(place) for place, instance in enumerate(self._cluster.instances)}
        for pair in migration_pairs(readings, self._busy):
            decoding = self._decoding(self.moves.places[pair.source])
            if (request := migrated(decoding, readings[pair.destination])) is not None:
                self._busy |= {pair.source, pair.destination}
                self.moves.record("migrate", pair.source, request=int(request[1:]), to=pair.destination)
                self._copy(pair, request, [])
        if not self._cluster.ended:
            self._cluster.call(self._cluster.now + PERIOD, self._read)

    def _reading(self, place: int) -> FreenessReading:
        instance, state = self._cluster.instances[place], self._cluster.instances[place].state
        candidate = instance.candidate(self._cluster.now)
        head = -(-state.parts.rows.length[state.parts.queue.first()] // state.config.page_size) if state.waiting else 0
        return FreenessReading(free=candidate.free_blocks, running=candidate.running, head=head)

    def _decoding(self, place: int) -> dict[str, int]:
        """Return the number of full pages of each decoding sequence, by request."""
        self.moves.touch(self._cluster.instances[place].name)
        rows = self._cluster.instances[place].state.parts.rows
        running = [s for s in rows.with_status(Status.RUNNING) if rows.known[s] == rows.planned[s] + 1]
        return {rows.submission[s].request: rows.computed[s] // rows.page_size for s in running}

    def _copy(self, pair: MigrationPair, request: str, held: list[int]) -> None:
        """Copy the next round: all pages that are full by now. It is the last round if that is one page at most."""
        source, destination = self.moves.places[pair.source], self.moves.places[pair.destination]
        pages = self._decoding(source).get(request)
        more = self.moves.device(destination).hold(pages - len(held)) if pages is not None else []
        if pages is None or len(held) + len(more) < pages:
            self.moves.device(destination).release(held + more)
            self.moves.record("abandoned", pair.source, request=int(request[1:]))
            self._busy -= {pair.source, pair.destination}
            return
        done = partial(self._copy, pair, request, held + more)
        if len(more) <= 1:
            taken = self.moves.take(source, request)
            done = partial(self._arrived, pair, taken, held + more, self._cluster.now)
        size = max(len(more), 1) * self.moves.page_bytes
        self.moves.moved += size
        self.moves.links.send((pair.source, pair.destination), Traffic.KV, size, self._cluster.now, done)

    def _arrived(self, pair: MigrationPair, taken: RemovedSequence, held: list[int], since: float) -> None:
        self.moves.stalls.append(self._cluster.now - since)
        self.moves.record(
            "migrated",
            pair.source,
            request=int(taken.submission.request[1:]),
            to=pair.destination,
            seconds=self._cluster.now - since,
        )
        self._busy -= {pair.source, pair.destination}
        self.moves.resume(self.moves.places[pair.destination], taken, held)
