"""The batch service over the store: checks and answers lines, stores results and writes files for the batch runner.

It makes no decisions about order or time. An answer is never lost unless the process dies: while the disk is full it waits
in memory, and nothing new is begun until it is stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...actors.batches.port import Answered, BatchEnding, LoadedBatch, OpenBatch, RetryLater
from ...actors.gateway.port import GatewayPort
from ...policies.offline.load_tries import LoadTries
from ..errors import ApiError
from ..http.auth import ApiCaller
from ..http.context import Front, OfflinePlace
from . import checking, lines
from .folder import RUNNER, FolderLock
from .input_file import InputFile
from .records import BatchRecord, ResultRecord
from .results import make_result, write_files
from .status import LAST, BatchStatus
from .store_thread import StoreThread

log = logging.getLogger(__name__)
AGAIN = 1.0  # seconds between two attempts to write to a full disk
TRIES = 300  # attempts, after which a line gets an error if that fits on the disk and its answer does not


@dataclass(slots=True)
class _OpenedBatch:
    """A batch in progress. ``keeping``: tasks that store results. ``tries``: attempts to load its models."""

    record: BatchRecord
    file: InputFile
    keeping: set[asyncio.Task[None]] = field(default_factory=set)
    tries: defaultdict[str, LoadTries] = field(default_factory=lambda: defaultdict(LoadTries))


class BatchStoreService:
    """The implementation of ``BatchService`` (see the module). ``now``: returns seconds since the epoch."""

    def __init__(self, front: Front, thread: StoreThread, now: Callable[[], float] = time.time) -> None:
        self._front = front
        self._thread = thread
        self._store = thread.store
        self._now = now
        self._lock = FolderLock(self._store.folder, RUNNER)
        self._swept = False
        self._opened: dict[str, _OpenedBatch] = {}
        self.figures: dict[str, dict[str, Any]] = {}
        self.trouble = ""  # reason nothing can be stored now
        self._reasons: dict[str, str] = {}  # batch -> reason for its wait, from the runner
        self._unkept: set[tuple[str, int]] = set()  # (batch, line) of the answers that wait to be stored

    @property
    def port(self) -> GatewayPort:
        return self._front.port

    def claim(self) -> bool:
        return self._lock.claim()

    def resign(self) -> None:
        for opened in self._opened.values():
            opened.file.close()
        self._opened.clear()
        self.figures.clear()
        self._lock.release()

    async def seen(self) -> list[OpenBatch]:
        if not self._swept:
            gone = await self._thread.call(self._store.sweep)
            self._swept = True
            if gone:
                log.info("unfinished files are deleted: %s", ", ".join(gone))
        await self._thread.call(self._store.expire_files, self._now())
        return await self._thread.call(self._store.open_batches)

    async def load(self, batch: str) -> LoadedBatch | None:
        """Open a batch (see ``BatchService``). Results stored earlier are not computed again."""
        record = await self._thread.call(self._store.batch, batch)
        if record is None or record.status not in (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS):
            return None
        self._close(batch)
        try:
            file = await asyncio.to_thread(InputFile, self._store.path(record.input_file))
        except FileNotFoundError:
            return await self._failed(batch, "input_file_missing", f"file {record.input_file} is not there any more")
        self._opened[batch] = _OpenedBatch(record, file)
        if not len(file):
            return await self._failed(batch, "empty_file", f"file {record.input_file} has no lines")
        if len(file) > (limit := self._front.settings.offline.batch_requests):
            message = f"file {record.input_file} has {len(file)} requests, more than the limit of {limit} (batch_requests)"
            return await self._failed(batch, "too_many_requests", f"{message}; split it")
        answered = await self._thread.call(self._store.answered, batch)
        found = await checking.check(self._front, record, file, answered)
        if found.none_is_a_request:
            await self._thread.call(self._store.fail, batch, found.errors, self._now())
            self._close(batch)
            return None
        for i in range(0, len(found.refused), checking.TOGETHER):
            await self._thread.call(self._store.add_results, found.refused[i : i + checking.TOGETHER])
        await self._thread.call(self._store.begin, batch, len(file), found.errors, self._now())
        known = {line: tokens for line, (tokens, _) in answered.items()}
        return LoadedBatch(found.jobs, known)

    async def answer(self, batch: str, line: int, home: str, side: str, sent: Callable[[], None]) -> Answered:
        """Answer a line (see ``BatchService``). A cancellation during the write does not stop the write."""
        if self.trouble:
            raise RetryLater(self.trouble, AGAIN)
        opened = self._opened[batch]
        record = opened.record
        parsed = await lines.parse_here(opened.file[line], record.endpoint)
        try:
            prepared = await lines.prepare(self._front, ApiCaller(record.tenant, record.key), parsed)
        except ApiError as error:  # for example, the model has been removed
            found, model = lines.refused(error), ""
        else:
            sent()
            model, place = prepared.application, OfflinePlace(home, side)
            found = await lines.answer(prepared, place, opened.tries[model])
        result = make_result(batch, line, parsed.custom_id, found, model)
        keeping = asyncio.create_task(self._keep(result, parsed.custom_id))
        opened.keeping.add(keeping)
        keeping.add_done_callback(opened.keeping.discard)
        await asyncio.shield(keeping)
        return Answered(found.output_tokens, found.cached)

    async def write(self, batch: str, ending: BatchEnding) -> None:
        opened = self._opened.get(batch)
        if opened is not None and opened.keeping:
            await asyncio.wait(opened.keeping)
        record = await self._thread.call(self._store.finalize, batch, LAST[ending], self._now())
        if record is not None and record.status in (BatchStatus.FINALIZING, BatchStatus.CANCELLING):
            await self._thread.call(write_files, self._store, record, self._now())
        self._close(batch)

    async def record_figures(self, batch: str, figures: dict[str, Any]) -> None:
        self.figures[batch] = figures
        with contextlib.suppress(OSError):  # the next report follows soon
            await self._thread.call(self._store.record_figures, batch, figures)

    def waits(self, reasons: Mapping[str, str]) -> None:
        self._reasons = dict(reasons)

    def reason(self, batch: str) -> str:
        """Return the reason a batch makes no progress, as far as this process knows, or an empty text."""
        if any(of == batch for of, _ in self._unkept):
            return self.trouble
        return self._reasons.get(batch) or self._reasons.get("", "")

    async def _failed(self, batch: str, code: str, message: str) -> LoadedBatch | None:
        error = {"code": code, "message": message, "param": "input_file_id", "line": None}
        await self._thread.call(self._store.fail, batch, [error], self._now())
        self._close(batch)  # existing answers stay: the files of such a batch are written next
        return None

    def _close(self, batch: str) -> None:
        self.figures.pop(batch, None)
        opened = self._opened.pop(batch, None)
        if opened is not None:
            opened.file.close()

    async def _keep(self, result: ResultRecord, custom_id: str) -> None:
        """Store a result, retrying until it is stored; after ``TRIES`` attempts store its error instead, if that fits."""
        tries = 0
        while True:
            try:
                await self._thread.add_result(result)
            except OSError as error:
                self._full(result, f"{error}; free some space below batch_dir")
                tries += 1
                if tries >= TRIES and await self._given_up(result, custom_id, error):
                    break
                await asyncio.sleep(AGAIN)
            else:
                break
        self._unkept.discard((result.batch, result.line))
        if not self._unkept:
            self.trouble = ""

    def _full(self, result: ResultRecord, trouble: str) -> None:
        if not self._unkept:
            log.warning("answers of batches wait in memory: %s (%s)", trouble, self._store.folder)
        self._unkept.add((result.batch, result.line))
        self.trouble = trouble

    async def _given_up(self, result: ResultRecord, custom_id: str, error: OSError) -> bool:
        """Store an error in place of a line's answer. If that does not fit either, return False: the answer is retried."""
        message = f"the disk of batch_dir had no room for this answer, {len(result.text)} bytes, in {TRIES * AGAIN:g} s"
        refused = ApiError(507, f"{message} ({error}); free some space and send it again", code="insufficient_storage")
        try:
            await self._thread.add_result(make_result(result.batch, result.line, custom_id, lines.refused(refused)))
        except OSError:
            return False
        log.warning("batch %s, line %d: %s", result.batch, result.line, message)
        return True
