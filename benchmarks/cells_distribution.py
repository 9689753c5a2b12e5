"""Distribution of one model's parameters to workers without files, by the live controller; part of ``cells.py``.

Each worker says what it lacks, and is named sources. A transfer takes one round, whoever gives: a worker gives to two at a
time.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter
from itertools import count
from math import ceil, log2

from controller_step import ROOM, application

from blockwright.policies.control import events
from blockwright.policies.control.state import ControllerState


class Distribution:
    """The distribution to some workers (see the module)."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.rounds = 0
        self.head_seconds = 0.0  # of the processor, for all that the controller does
        self.most_given = 0  # workers that one gave to at a time
        self.origin = Counter[bytes]()  # how often each component came from there
        self._model = application(0)
        self._state = ControllerState([f"w{n}" for n in range(workers)], stall_timeout=60.0)
        self._numbers = count()
        self._arriving: list[tuple[int, int, events.Load]] = []  # round, number
        self._giving = Counter[str]()

    def run(self) -> None:
        """Serve the model on workers that are all up at once."""
        self._handle(events.Serve((self._model,)))
        for name in self._state.workers:
            self._handle(events.WorkerUp(name, 1))
        while self._arriving:
            self.rounds, _, load = heapq.heappop(self._arriving)
            self._giving.subtract(load.load.sources or ())
            self._handle(events.Loaded(load.worker, 1, load.load))
        assert self._state.whole, "every worker serves"

    @property
    def origin_share(self) -> float:
        """Bytes from the origin over those of the model."""
        sizes = {one.id: one.nbytes for one in self._model.components}
        return sum(sizes[id] * often for id, often in self.origin.items()) / sum(sizes.values())

    @property
    def bound(self) -> int:
        """The most rounds that it should take."""
        return ceil(log2(self.workers)) + 2

    def _handle(self, event: events.Event) -> None:
        began = time.process_time()
        effects = self._state.handle(event, float(self.rounds))
        self.head_seconds += time.process_time() - began
        for effect in effects:
            if isinstance(effect, events.AskCapacity):
                self._handle(events.KvCapacity(effect.worker, 1, ROOM))
            elif isinstance(effect, events.Load):
                self._load(effect)

    def _load(self, effect: events.Load) -> None:
        load = effect.load
        if load.sources is None:
            self._handle(events.LoadLacks(effect.worker, 1, load, tuple(load.ids)))
            return
        if not load.sources:
            self.origin.update(load.ids)
        self._giving.update(load.sources)
        self.most_given = max(self.most_given, *self._giving.values(), 0)
        heapq.heappush(self._arriving, (self.rounds + 1, next(self._numbers), effect))
