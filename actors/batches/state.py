"""Which batches are checked, run, stopped and written, and when: a state machine without a store or a clock.

What a batch is lies in the store; this is what one runner does about it. A batch is checked, waits for its turn, runs, and
is written. Of each account the oldest one runs, and ``most`` at a time, so that nobody's long job keeps the others waiting.
A batch that is checked has its prompts in memory and its file open, so that not many are ahead of their turn: of an account
the one that follows, of all as many again as may run.
Cancel and expiry stop it wherever it is, and keep what is done. What could not be done is tried again after a while.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from blockwright.actors.batches.messages import (
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
from blockwright.actors.batches.port import BatchStatus, OpenBatch

RETRY, LONGEST = 1.0, 8.0  # seconds until the first try again; each is twice as long as the one before, up to this


class BatchStage(Enum):
    QUEUED = auto()  # nothing is done about it yet, or for now
    LOADING = auto()
    WAITING = auto()  # for its turn
    RUNNING = auto()
    STOPPING = auto()
    WRITING = auto()


@dataclass(slots=True)
class BatchWork:
    """What this runner does about one batch. ``again``: when to try once more what could not be done, if that is so."""

    batch: OpenBatch
    stage: BatchStage
    ending: BatchStatus = BatchStatus.COMPLETED
    again: float | None = None
    tries: int = 0  # that failed


class BatchesState:
    """See the module."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.works: dict[str, BatchWork] = {}  # in the order in which batches were made

    def handle(self, event: BatchEvent, now: float) -> list[BatchEffect]:
        """``now``: seconds of the epoch."""
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
                work.again = now + min(LONGEST, RETRY * 2**work.tries)
                work.tries += 1
                if work.stage is not BatchStage.WRITING:  # what was stored stays; the rest is looked at anew
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
    def _over(batch: OpenBatch, now: float) -> BatchStatus | None:
        """How it ends, if nothing of it is to be computed any more."""
        if batch.status is BatchStatus.CANCELLING:
            return BatchStatus.CANCELLED
        if batch.status is BatchStatus.FINALIZING:
            return BatchStatus.COMPLETED  # or what the store has noted
        return BatchStatus.EXPIRED if now >= batch.expires_at else None

    @staticmethod
    def _write(work: BatchWork) -> BatchEffect:
        work.stage, work.again = BatchStage.WRITING, None
        return WriteBatch(work.batch.id, work.ending)

    def _tries(self, now: float) -> Iterator[BatchEffect]:
        for work in self.works.values():
            if work.stage is BatchStage.WRITING and work.again is not None and _due(work, now):
                yield self._write(work)

    def _loads(self, now: float) -> Iterator[BatchEffect]:
        """Who is checked next: what cannot be checked now keeps nobody from it."""
        accounts = Counter(work.batch.account for work in self.works.values() if work.stage in _AHEAD)
        left = 2 * self._most - accounts.total()
        for work in self.works.values():
            if left <= 0:
                break
            if work.stage is BatchStage.QUEUED and accounts[work.batch.account] < 2 and _due(work, now):
                work.stage, work.again = BatchStage.LOADING, None
                accounts[work.batch.account] += 1
                left -= 1
                yield LoadBatch(work.batch.id)

    def _turns(self) -> Iterator[BatchEffect]:
        running = [work for work in self.works.values() if work.stage in (BatchStage.RUNNING, BatchStage.STOPPING)]
        accounts = {work.batch.account for work in running}
        count = len(running)
        for work in self.works.values():
            if count < self._most and work.stage is BatchStage.WAITING and work.batch.account not in accounts:
                work.stage = BatchStage.RUNNING
                accounts.add(work.batch.account)
                count += 1
                yield RunBatch(work.batch.id)


_AHEAD = (BatchStage.LOADING, BatchStage.WAITING, BatchStage.RUNNING, BatchStage.STOPPING)


def _due(work: BatchWork, now: float) -> bool:
    """Whether what could not be done is tried again. A clock that was put back keeps nobody waiting."""
    return work.again is None or not now < work.again <= now + LONGEST
