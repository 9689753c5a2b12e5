"""Distribution: loads that wait until workers are named which give their parameters.

A worker that has no files of a block says what it lacks; its load stays in progress, and is asked for again with sources
(``policies/cluster/parameter_sources.py``). Nothing else waits for it but the worker's own next loads.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ..cluster.parameter_sources import ParameterSources
from .events import Event, Load, Loaded, LoadFailed, LoadLacks, LoadRefused, WorkerDown
from .holdings import Holdings
from .reconcile import Reconcile


class Distribution:
    """The loads of one cluster that need sources (see the module)."""

    def __init__(self) -> None:
        self.sources = ParameterSources()

    def handle(self, event: Event, holdings: Holdings, reconcile: Reconcile) -> None:
        """Take news of a load or of a worker's end, and ask for the loads that can go on."""
        match event:
            case LoadLacks(worker, _, _, components) if self._current(event, holdings):
                self.sources.ask(worker, components)
            case Loaded() | LoadFailed() | LoadRefused() if holdings.current(event.worker, event.incarnation):
                self.sources.end(event.worker)
            case WorkerDown(worker) if not (worker in holdings.workers and holdings.workers[worker].alive):
                self.sources.end(worker)
            case _:
                return
        holders = self._holders(holdings) if self.sources.waiting else {}
        while (found := self.sources.next(holders)) is not None:
            worker, given = found
            record, residency = holdings.workers.get(worker), holdings.residency.get(worker)
            if record is None or residency is None or residency.loading is None:
                self.sources.end(worker)
                continue
            residency.loading = load = replace(residency.loading, sources=list(given.sources))
            reconcile.perform(Load(worker, record.incarnation, load))

    @staticmethod
    def _current(lacks: LoadLacks, holdings: Holdings) -> bool:
        """Return whether a worker still lives that says what it lacks, and loads that."""
        residency = holdings.residency.get(lacks.worker)
        return holdings.current(lacks.worker, lacks.incarnation) and residency is not None and residency.loading is not None

    @staticmethod
    def _holders(holdings: Holdings) -> dict[str, Collection[bytes]]:
        """Return the components and deltas that live workers hold."""
        found = dict[str, Collection[bytes]]()
        for name, residency in holdings.residency.items():
            if holdings.workers[name].well:
                found[name] = set[bytes]().union(*(residency.parts(one) for one in residency.resident))
        return found
