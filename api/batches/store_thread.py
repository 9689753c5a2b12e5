"""Access to the store from an event loop: one thread, and results that arrive together stored together."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

from ...actors.settings.errors import SettingsError
from ...actors.settings.offline import OfflineSettings
from .database import StoreError
from .records import ResultRecord
from .store import BatchStore

P = ParamSpec("P")
T = TypeVar("T")


class StoreThread:
    """The store's thread (see the module). ``store`` is used only through ``call``. The constructor raises StoreError."""

    def __init__(self, folder: Path) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batches")
        try:
            self.store = self._thread.submit(BatchStore, folder).result()
        except BaseException:
            self._thread.shutdown(wait=False)
            raise
        self._waiting: list[tuple[ResultRecord, asyncio.Future[None]]] = []  # results and the futures that wait for them
        self._commit: asyncio.Task[None] | None = None  # the pending commit of the waiting results, not begun yet

    async def call(self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a method on the thread; a cancellation does not stop it. Raise OSError for errors of the disk."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: method(*args, **kwargs))
        except sqlite3.Error as error:
            raise OSError(f"the store does not answer ({error})") from error

    async def add_result(self, result: ResultRecord) -> None:
        """Return when a result is on the disk, in one transaction with all that arrived meanwhile.

        Raise OSError if it is not stored. If the disk cannot take all of them, it takes the small ones.
        """
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((result, stored))
        if self._commit is None:
            self._commit = asyncio.create_task(self._store())
        await asyncio.shield(stored)

    async def _store(self) -> None:
        await self.call(lambda: None)  # one turn of the thread; results that arrive until then join the transaction
        waiting = self._waiting
        self._waiting = []
        self._commit = None
        error = await self._stored([result for result, _ in waiting])
        if error is None or len(waiting) == 1:
            _tell(waiting, error)
            return
        error = None
        for one in sorted(waiting, key=lambda one: len(one[0].text)):
            error = error or await self._stored([one[0]])  # all that follow one that is too large are too large
            _tell([one], error)

    async def _stored(self, results: Sequence[ResultRecord]) -> OSError | None:
        """Store results; return the error, or None."""
        try:
            await self.call(self.store.add_results, results)
        except OSError as error:
            return error
        return None

    async def close(self) -> None:
        """Close the store when all pending calls are done."""
        with contextlib.suppress(OSError):
            await self.call(self.store.close)
        self._thread.shutdown()


def _tell(waiting: Sequence[tuple[ResultRecord, asyncio.Future[None]]], error: OSError | None) -> None:
    for _, stored in waiting:
        if error is None:
            stored.set_result(None)
        else:
            stored.set_exception(error)


def open_store(offline: OfflineSettings) -> StoreThread | None:
    """Return the store, or None if no folder is configured. Raise SettingsError."""
    if not offline.batch_dir:
        return None
    try:
        return StoreThread(Path(offline.batch_dir).expanduser())
    except StoreError as error:
        raise SettingsError(f"batch_dir: {error}") from None
