"""The store for whoever runs on an event loop: one thread, and results that come together stored together."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

from ...actors.config import Settings, SettingsError
from .database import StoreError
from .records import ResultRecord
from .store import BatchStore

P = ParamSpec("P")
T = TypeVar("T")


class StoreThread:
    """See the module. ``store`` is used through ``call`` alone. Raises StoreError when made."""

    def __init__(self, folder: Path) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batches")
        try:
            self.store = self._thread.submit(BatchStore, folder).result()
        except BaseException:
            self._thread.shutdown(wait=False)
            raise
        self._waiting: list[tuple[ResultRecord, asyncio.Future[None]]] = []  # and who waits for it
        self._commit: asyncio.Task[None] | None = None  # of what waits now; it has not begun

    async def call(self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """On the thread; what was begun is done, whoever leaves. Raises OSError for what the disk does not do."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: method(*args, **kwargs))
        except sqlite3.Error as error:
            raise OSError(f"the store does not answer ({error})") from error

    async def add_result(self, result: ResultRecord) -> None:
        """Returns when it is on the disk: with all that came meanwhile, in one transaction. Raises OSError, and then it is
        not there. Where the disk does not take all, it takes the small ones."""
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((result, stored))
        if self._commit is None:
            self._commit = asyncio.create_task(self._store())
        await asyncio.shield(stored)

    async def _store(self) -> None:
        await self.call(lambda: None)  # a turn of the thread: what comes until then goes with it
        waiting, self._waiting, self._commit = self._waiting, [], None
        error = await self._stored([result for result, _ in waiting])
        if error is None or len(waiting) == 1:
            _tell(waiting, error)
            return
        error = None
        for one in sorted(waiting, key=lambda one: len(one[0].text)):
            error = error or await self._stored([one[0]])  # after one that is too large all are
            _tell([one], error)

    async def _stored(self, results: Sequence[ResultRecord]) -> OSError | None:
        """Why not; None: they are."""
        try:
            await self.call(self.store.add_results, results)
        except OSError as error:
            return error
        return None

    async def close(self) -> None:
        """When all that was asked for is done."""
        with contextlib.suppress(OSError):
            await self.call(self.store.close)
        self._thread.shutdown()


def _tell(waiting: Sequence[tuple[ResultRecord, asyncio.Future[None]]], error: OSError | None) -> None:
    for _, stored in waiting:
        if error is None:
            stored.set_result(None)
        else:
            stored.set_exception(error)


def open_store(settings: Settings) -> StoreThread | None:
    """None where no folder is set. Raises SettingsError."""
    if not settings.batch_dir:
        return None
    try:
        return StoreThread(Path(settings.batch_dir).expanduser())
    except StoreError as error:
        raise SettingsError(f"batch_dir: {error}") from None
