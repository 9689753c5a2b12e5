"""Redundant pages of a simulated cluster: the decisions of the live actor (``actors/memory/copies.py``) in virtual time."""

from __future__ import annotations

from collections.abc import Mapping

from ..policies.memory.redundant import RedundantPages
from ..policies.prediction.instance import Instance
from ..policies.prediction.pipeline_instance import PipelineInstance
from ..policies.sweep.state import SweepState
from .devices import states


class SimulatedCopies:
    """The marks of redundant pages in a cluster (see the module). marked: pages that were marked."""

    def __init__(self) -> None:
        self._pages = RedundantPages()
        self._read: dict[str, tuple[SweepState, int]] = {}  # worker -> its machine, number of its last report
        self.marked = 0

    def look(self, instances: Mapping[int, Instance | PipelineInstance], now: float) -> set[int]:
        """Ask all current instances, given by place, and change marks; return the places whose instances have changed."""
        workers = {worker: (place, state) for place, one in instances.items() for worker, state in states(one).items()}
        for worker in [worker for worker in self._read if worker not in workers]:
            self._pages.lose(worker)
            del self._read[worker]
        for worker, (_, state) in workers.items():
            self._take(worker, state, now)
        changed = set()
        for worker, marks in self._pages.decide().items():
            place, state = workers[worker]
            instance = instances[place]
            if isinstance(instance, Instance):
                instance.catch_up(now)
            else:
                instance.mark_changed()
            state.apply(state.unused_since(marks), now)
            unmarked = state.unmarked(marks)
            self.marked += len(marks.redundant) - len(unmarked)
            self._pages.unmarked(worker, unmarked)
            changed.add(place)
        return changed

    def _take(self, worker: str, state: SweepState, now: float) -> None:
        """Take all that a worker reports."""
        if state.parts.memory.pages.news is None:
            state.note_cache()
        known, after = self._read.get(worker, (None, 0))
        after = after if known is state else 0
        while (report := state.cache_report(after, now)) is not None:
            self._pages.report(worker, report, now)
            after = report.number
            self._read[worker] = state, after
            if not report.left:
                return
