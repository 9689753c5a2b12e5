"""State machine of batches: decides when each batch is checked, run, stopped and written. No store and no clock.

The store keeps what a batch is; this machine keeps what one runner does about it. A batch is checked, waits for its turn,
runs, and is written. ``policies/offline/batch_turns.py`` decides the turns. Cancel and expiry stop a batch at any stage and
keep the finished results. A step that could not be done is tried again after a while.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from ...policies.offline.batch_turns import again, due, next_to_prepare, next_to_run
from .messages import (
    BatchChecked,
    BatchEffect,
    BatchEnded,
    BatchesSeen,
    BatchEvent,
    BatchStuck,
    BatchWritten,
    LoadBatch,
    RunBatch,
    StopBatch,
    WriteBatch,
)
from .port import BatchEnding, OpenBatch


class BatchStage(Enum):
    """The stage of a batch in this runner."""

    QUEUED = auto()  # nothing is done about it yet, or for now
    LOADING = auto()
    WAITING = auto()  # waits for its turn
    RUNNING = auto()
    STOPPING = auto()
    WRITING = auto()


@dataclass(slots=True)
class BatchWork:
    """The work of this runner on one batch. ``again`` is when to repeat a step that could not be done."""

    batch: OpenBatch
    stage: BatchStage
    ending: BatchEnding = BatchEnding.COMPLETED
    again: float | None = None
    tries: int = 0  # failed tries


class BatchesState:
    """State machine of batches (see the module)."""

    def __init__(self, limit: int) -> None:
        self._most = limit
        self.works: dict[str, BatchWork] = {}  # in order of the batches' creation

    def handle(self, event: BatchEvent, now: float) -> list[BatchEffect]:
        """Handle an event and return the effects. ``now``: seconds of the epoch."""
        effects = list(self._take(event, now))
        effects += self._tries(now)
        effects += self._turns()
        effects += self._loads(now)
        return effects

    def _take(self, event: BatchEvent, now: float) -> Iterator[BatchEffect]:
        if isinstance(event, BatchesSeen):
            for batch in event.batches:
                yield from self._see(batch, now)
            return
        work = self.works.get(event.batch)
        if work is None:
            return
        match event:
            case BatchChecked() if work.stage is BatchStage.LOADING:
                work.stage = BatchStage.WAITING
            case BatchEnded(failed=True):
                del self.works[event.batch]
            case BatchChecked() | BatchEnded():
                yield self._write(work)
            case BatchWritten():
                del self.works[event.batch]
            case BatchStuck() if work.stage is BatchStage.STOPPING:
                yield self._write(work)
            case BatchStuck():
                work.again = again(work.tries, now)
                work.tries += 1
                if work.stage is not BatchStage.WRITING:  # stored results stay; the rest is checked again
                    work.stage = BatchStage.QUEUED

    def _see(self, batch: OpenBatch, now: float) -> Iterator[BatchEffect]:
        work = self.works.get(batch.id)
        over = self._over(batch, now)
        if work is None:
            work = self.works[batch.id] = BatchWork(batch, BatchStage.QUEUED)
        work.batch = batch
        if over is None or work.stage in (BatchStage.STOPPING, BatchStage.WRITING):
            return
        work.ending = over
        if work.stage in (BatchStage.QUEUED, BatchStage.WAITING):
            yield self._write(work)
        else:
            work.stage = BatchStage.STOPPING
            yield StopBatch(batch.id)

    @staticmethod
    def _over(batch: OpenBatch, now: float) -> BatchEnding | None:
        """Return how the batch ends, or None if it may still compute."""
        return batch.ending or (BatchEnding.EXPIRED if now >= batch.expires_at else None)

    @staticmethod
    def _write(work: BatchWork) -> BatchEffect:
        work.stage, work.again = BatchStage.WRITING, None
        return WriteBatch(work.batch.id, work.ending)

    def _tries(self, now: float) -> Iterator[BatchEffect]:
        for work in self.works.values():
            if work.stage is BatchStage.WRITING and work.again is not None and due(work.again, now):
                yield self._write(work)

    def _loads(self, now: float) -> Iterator[BatchEffect]:
        """Check the next batches. One that cannot be checked now does not block the others."""
        ready = [work for work in self._in(BatchStage.QUEUED) if due(work.again, now)]
        for batch in next_to_prepare(_accounts(ready), (work.batch.account for work in self._in(*_AHEAD)), self._most):
            work = self.works[batch]
            work.stage, work.again = BatchStage.LOADING, None
            yield LoadBatch(batch)

    def _turns(self) -> Iterator[BatchEffect]:
        running = [work.batch.account for work in self._in(BatchStage.RUNNING, BatchStage.STOPPING)]
        for batch in next_to_run(_accounts(self._in(BatchStage.WAITING)), running, self._most):
            self.works[batch].stage = BatchStage.RUNNING
            yield RunBatch(batch)

    def turns(self) -> dict[str, str]:
        """Return why each batch waits that is neither looked at nor run, because others are."""
        running = len(self._in(BatchStage.RUNNING, BatchStage.STOPPING))
        runs = f"{running} batch{'es run' if running != 1 else ' runs'}"
        why = f"its turn has not come: {runs}, at most {self._most} at a time and one of each tenant"
        return {work.batch.id: why for work in self._in(BatchStage.QUEUED, BatchStage.WAITING)}

    def _in(self, *stages: BatchStage) -> list[BatchWork]:
        return [work for work in self.works.values() if work.stage in stages]


_AHEAD = (BatchStage.LOADING, BatchStage.WAITING, BatchStage.RUNNING, BatchStage.STOPPING)


def _accounts(works: list[BatchWork]) -> list[tuple[str, str]]:
    """Return (batch, account) of each."""
    return [(work.batch.id, work.batch.account) for work in works]
