"""Batches actor: runs batches from a store. One in each process with a gateway; only one at a time works on a store.

Polls the store a few times a second (any process may create or cancel batches), asks the state machine for the next actions,
and does them in tasks: one for each batch that is checked, run or written. Owns nothing that its death would lose.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
import time
from array import array
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from ...policies.offline.feed import OfflineFeed, PlacedRequest
from ...policies.offline.job_account import FeedProgress
from ...policies.requests.load_failure import without_folders
from ...runtime.actor.actor import Actor
from ...runtime.actor.endpoint import endpoint
from ...runtime.base.clock import Timer
from .driver import NOMINAL, FeedDriver
from .messages import (
    BatchChecked,
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
from .port import Answered, BatchEnding, BatchService, LineJob, LoadedBatch, RetryLater
from .state import BatchesState

log = logging.getLogger(__name__)
LOOK = 0.25  # seconds between polls of the store
TELL = 4  # polls between two progress reports of the batches
ROOM = "free some space below batch_dir"  # the remedy if the store cannot be written
MOST = 4  # batches that run at a time, each of another account


class Batches(Actor):
    """Batches actor (see the module). ``now``: seconds of the epoch."""

    def __init__(self, batch_service: BatchService, now: Callable[[], float] = time.time) -> None:
        self._batch_service, self._now = batch_service, now
        self._state = BatchesState(MOST)
        self._loaded: dict[str, LoadedBatch] = {}
        self._drivers: dict[str, dict[str, FeedDriver]] = {}  # by batch and application
        self._tasks: dict[str, asyncio.Task[BatchEvent]] = {}  # by batch
        self._waits: dict[str, str] = {}  # batch -> why its last step has to be repeated
        self._trouble = ""  # why the last poll of the store failed, or ""
        self._looks = 0
        self._stopping = False
        self._timer: Timer | None = None

    async def on_start(self) -> None:
        self._tick()

    async def on_stop(self) -> None:
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
        tasks = [*self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._batch_service.resign()

    @endpoint
    async def look(self) -> None:
        """Poll the store and act on the batches found there, if this process has the claim on it."""
        if not self._batch_service.claim():
            return
        try:
            self._handle(BatchesSeen(tuple(await self._batch_service.seen())))
            self._looks += 1
            if self._looks % TELL == 0:
                await self._tell(*self._drivers)
            self._trouble = ""
        except OSError as error:
            if not self._trouble:
                log.warning("the store of batches cannot be used now: %s", error)
            self._trouble = f"{error}; {ROOM}"
        self._show_waits()

    def _tick(self) -> None:
        self._timer = self.node.clock.call_at(self.node.clock.now() + LOOK, self._tick)
        self.ref.look.cast()

    def _handle(self, event: BatchEvent) -> None:
        for effect in self._state.handle(event, self._now()):
            match effect:
                case LoadBatch(batch):
                    self._begin(batch, partial(self._load, batch))
                case RunBatch(batch):
                    self._begin(batch, partial(self._run, batch))
                case StopBatch(batch):
                    self._tasks[batch].cancel()
                case WriteBatch(batch, ending):
                    self._loaded.pop(batch, None)
                    self._begin(batch, partial(self._write, batch, ending))

    def _begin(self, batch: str, work: Callable[[], Coroutine[Any, Any, BatchEvent]]) -> None:
        """Start a task for a batch. A batch has one task at a time, and the task's end is an event."""
        task = self._tasks[batch] = asyncio.create_task(work())
        task.add_done_callback(partial(self._over, batch))

    def _over(self, batch: str, task: asyncio.Task[BatchEvent]) -> None:
        """Handle the end of a task, even of one that was stopped before its first turn."""
        if self._stopping:
            return
        if self._tasks.get(batch) is task:
            del self._tasks[batch]
        event: BatchEvent = BatchStuck(batch)
        if task.cancelled():
            event = BatchEnded(batch)
            self._waits.pop(batch, None)
        elif (error := task.exception()) is None:
            event = task.result()
            self._waits.pop(batch, None)
        elif isinstance(error, (OSError, RetryLater)):
            why = f"{error}; {ROOM}" if isinstance(error, OSError) else str(error)
            self._wait(batch, why)
        else:
            log.error("batch %s is stuck; it is tried again", batch, exc_info=error)
            self._waits[batch] = "internal error; the server's log has the details, and it is tried again"
        self._handle(event)
        self._show_waits()

    def _show_waits(self) -> None:
        self._batch_service.waits({"": self._trouble} if self._trouble else self._state.turns() | self._waits)

    def _wait(self, batch: str, why: str) -> None:
        """Keep the reason why a batch waits. Warn of it once, however often it recurs."""
        log.log(logging.INFO if batch in self._waits else logging.WARNING, "batch %s waits: %s", batch, why)
        self._waits[batch] = without_folders(why, ())

    async def _load(self, batch: str) -> BatchEvent:
        loaded = await self._batch_service.load(batch)
        if loaded is None:
            return BatchEnded(batch, failed=True)
        self._loaded[batch] = loaded
        return BatchChecked(batch)

    async def _run(self, batch: str) -> BatchEvent:
        drivers = self._drivers[batch] = {}
        try:
            await self._order(batch)
            async with asyncio.TaskGroup() as group:
                for driver in drivers.values():
                    group.create_task(driver.run())
            await self._tell(batch)
        finally:
            del self._drivers[batch]
        return BatchEnded(batch)

    async def _order(self, batch: str) -> None:
        """Make the batch's drivers. The loaded lines, with all prompts, are released."""
        loaded = self._loaded.pop(batch)
        for application, jobs in loaded.jobs.items():
            if any(job.line not in loaded.known for job in jobs):
                self._drivers[batch][application] = await self._driver(batch, application, jobs, loaded.known)

    async def _write(self, batch: str, ending: BatchEnding) -> BatchEvent:
        await self._batch_service.write(batch, ending)
        return BatchWritten(batch)

    async def _driver(self, batch: str, application: str, jobs: Sequence[LineJob], known: Mapping[int, int]) -> FeedDriver:
        feed = await asyncio.to_thread(_feed, f"{batch} {application}", jobs, known)
        lines = array("q", [job.line for job in jobs])

        async def answer(placed: PlacedRequest, sent: Callable[[], None]) -> Answered:
            return await self._batch_service.answer(batch, lines[placed.request], placed.worker, placed.side, sent)

        return FeedDriver(self._batch_service.port, application, feed, answer, self.node.clock)

    async def _tell(self, *batches: str) -> None:
        for batch in batches:
            drivers = self._drivers.get(batch, {})
            if drivers:
                waits = {name: without_folders(driver.reason, ()) for name, driver in drivers.items()}
                figures = figures_of({name: driver.progress() for name, driver in drivers.items()}, waits)
                await self._batch_service.record_figures(batch, figures)


def _feed(seed: str, jobs: Sequence[LineJob], known: Mapping[int, int]) -> OfflineFeed:
    """Return the feed of a batch's lines for one application.

    ``seed`` seeds the draw of samples, so that it is the same after a restart.
    """
    drawn = random.Random(seed)
    return OfflineFeed(
        [job.request for job in jobs],
        NOMINAL,
        draws=[drawn.random() for _ in jobs],
        known={number: known[job.line] for number, job in enumerate(jobs) if job.line in known},
    )


def figures_of(progress: Mapping[str, FeedProgress], waits: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
    """Return sums over the models, and each model's progress, as plain data.

    ``progress`` is by model. ``waits`` says why the last request sent could not be answered.
    """
    seconds = [one.remaining_seconds for one in progress.values()]
    known = [one for one in seconds if one is not None]
    return {
        "running": sum(one.running for one in progress.values()),
        "remaining_tokens": round(sum(one.remaining_tokens for one in progress.values())),
        "remaining_seconds": round(max(known), 1) if known and len(known) == len(seconds) else None,
        "models": {n: {**_rounded(dataclasses.asdict(one)), "waits": waits.get(n, "")} for n, one in progress.items()},
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(inner) for name, inner in value.items()}
    return round(value, 4) if isinstance(value, float) else value
