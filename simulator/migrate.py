"""Simulated cluster that migrates running sequences between instances by load (``policies/overload/migrating.py``).

As in Llumnix a sequence continues to decode while its KV is copied, round by round. The last round, of one page at most, is
copied while it is stopped; then it continues at its destination. If the source preempts or finishes it, the migration ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ..policies.cluster.chunk_order import Traffic
from ..policies.overload.demand import PERIOD
from ..policies.overload.migrating import FreenessReading, MigrationPair, migrated, migration_pairs
from ..policies.plan.coefficients import Coefficients
from ..policies.sweep.columns import Status
from .description import Scenario
from .groups import Taken
from .moving import MovingSimulation
from .simulation import Note
from .workload import Demand


class MigrateSimulation(MovingSimulation):
    """Simulation with migration (see the module)."""

    def __init__(
        self,
        scenario: Scenario,
        coefficients: Sequence[Coefficients],
        demands: Sequence[Demand],
        *,
        jumps: bool = True,
        note: Note | None = None,
    ) -> None:
        super().__init__(scenario, coefficients, demands, bandwidth=scenario.links.bandwidth, jumps=jumps, note=note)
        self._busy: set[str] = set()  # instances that take part in a migration
        self.call(0.0, self._read)

    def _read(self) -> None:
        readings = {instance.name: self._reading(place) for place, instance in enumerate(self.instances)}
        for pair in migration_pairs(readings, self._busy):
            decoding = self._decoding(self._places[pair.source])
            if (request := migrated(decoding, readings[pair.destination])) is not None:
                self._busy |= {pair.source, pair.destination}
                self._log("migrate", pair.source, request=int(request[1:]), to=pair.destination)
                self._copy(pair, request, [])
        if self._again():
            self.call(self.now + PERIOD, self._read)

    def _reading(self, place: int) -> FreenessReading:
        instance, state = self.instances[place], self.instances[place].state
        candidate = instance.candidate(self.now)
        head = -(-state.parts.rows.length[state.parts.queue.first()] // state.config.page_size) if state.waiting else 0
        return FreenessReading(free=candidate.free_blocks, running=candidate.running, head=head)

    def _decoding(self, place: int) -> dict[str, int]:
        """Return the number of full pages of each decoding sequence, by request."""
        self._touch(self.instances[place].name)
        rows = self.instances[place].state.parts.rows
        running = [s for s in rows.with_status(Status.RUNNING) if rows.known[s] == rows.planned[s] + 1]
        return {rows.submission[s].request: rows.computed[s] // rows.page_size for s in running}

    def _copy(self, pair: MigrationPair, request: str, held: list[int]) -> None:
        """Copy the next round: all pages that are full by now. It is the last round if that is one page at most."""
        source, destination = self._places[pair.source], self._places[pair.destination]
        pages = self._decoding(source).get(request)
        more = self._device(destination).hold(pages - len(held)) if pages is not None else []
        if pages is None or len(held) + len(more) < pages:
            self._device(destination).release(held + more)
            self._log("abandoned", pair.source, request=int(request[1:]))
            self._busy -= {pair.source, pair.destination}
            return
        done = partial(self._copy, pair, request, held + more)
        if len(more) <= 1:
            taken = self._take(source, request)
            done = partial(self._arrived, pair, taken, held + more, self.now)
        size = max(len(more), 1) * self._page_bytes
        self.moved += size
        self.links.send((pair.source, pair.destination), Traffic.KV, size, self.now, done)

    def _arrived(self, pair: MigrationPair, taken: Taken, held: list[int], since: float) -> None:
        self.stalls.append(self.now - since)
        self._log(
            "migrated", pair.source, request=int(taken.submission.request[1:]), to=pair.destination, seconds=self.now - since
        )
        self._busy -= {pair.source, pair.destination}
        self._go_on(self._places[pair.destination], taken, held)
