"""The store of files, batches and results: a database and a folder of files below ``batch_dir``.

A batch continues from it after a crash (``open_batches``, ``answered``). Each method is one transaction or one read. None
uses asyncio, lines or HTTP (``store_service.py`` calls them on one thread). A result is stored once: a second one for the
same line changes nothing. Times are seconds since the epoch and are passed in.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ...actors.batches.port import OpenBatch
from .database import StoreError, open_database, transaction
from .folder import sweep
from .records import BatchRecord, FileRecord, ResultRecord
from .status import ENDING, OPEN, BatchStatus

DATABASE = "batches.sqlite3"
_OPEN = ", ".join(f"'{status.value}'" for status in OPEN)
_FILE = [field.name for field in dataclasses.fields(FileRecord)]
_BATCH = [field.name for field in dataclasses.fields(BatchRecord)]
_JSON = ("at", "metadata", "errors", "figures")


class FileInUse(Exception):
    """The refusal to delete the input of an open batch."""

    def __init__(self, batch: str, status: BatchStatus) -> None:
        super().__init__(f"batch {batch}, which is {status.value}, reads this file; cancel it, or wait for its end")


class BatchStore:
    """The store (see the module), created and used on one thread.

    The constructor raises StoreError; methods that write raise OSError.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.files = folder, folder / "files"
        try:
            self.files.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{folder} cannot be made ({error.strerror}); name another folder in batch_dir") from None
        self._database = open_database(folder / DATABASE)

    def close(self) -> None:
        self._database.close()

    def path(self, file: str) -> Path:
        return self.files / file

    # files

    def add_file(self, file: FileRecord) -> None:
        """Register a file that is already in its place."""
        with transaction(self._database):
            self._insert_file(file)

    def file(self, tenant: str, id: str) -> FileRecord | None:
        return self._file("tenant = ? AND id = ?", tenant, id)

    def list_files(
        self, tenant: str, *, purpose: str, after: str, limit: int, descending: bool
    ) -> tuple[list[FileRecord], bool]:
        """Return a page, and True if there is more. ``purpose``, ``after``: empty for all, from the beginning."""
        where, values = "tenant = ?", [tenant]
        if purpose:
            where, values = where + " AND purpose = ?", [*values, purpose]
        rows, more = self._page("files", where, values, after, limit, descending)
        return [_made_file(row) for row in rows], more

    def delete_file(self, tenant: str, id: str) -> bool:
        """Delete a file; return False if there is none. Raise FileInUse."""
        with transaction(self._database):
            used = self._database.execute(
                f"SELECT id, status FROM batches WHERE input_file = ? AND tenant = ? AND status IN ({_OPEN})", (id, tenant)
            ).fetchone()
            if used is not None:
                raise FileInUse(used["id"], BatchStatus(used["status"]))
            gone = self._database.execute("DELETE FROM files WHERE tenant = ? AND id = ?", (tenant, id)).rowcount
        if gone:
            self.path(id).unlink(missing_ok=True)
        return bool(gone)

    def expire_files(self, now: float) -> list[str]:
        """Delete expired files except inputs of open batches; return their ids."""
        late = self._database.execute("SELECT tenant, id FROM files WHERE expires_at <= ?", (now,)).fetchall()
        gone = []
        for row in late:
            with contextlib.suppress(FileInUse):
                self.delete_file(row["tenant"], row["id"])
                gone.append(row["id"])
        return gone

    def sweep(self) -> list[str]:
        """Delete files that a dead process left in the folder; return their names."""
        return sweep(self.files, lambda name: self._file("id = ?", name) is not None)

    # batches

    def add_batch(self, batch: BatchRecord) -> bool:
        """Add a batch; return False if its input file no longer exists."""
        with transaction(self._database):
            marks = ", ".join("?" * len(_BATCH))
            values = [_plain(name, getattr(batch, name)) for name in _BATCH]
            added = self._database.execute(
                f"INSERT INTO batches({', '.join(_BATCH)}) SELECT {marks} WHERE EXISTS (SELECT 1 FROM files WHERE id = ?)",
                (*values, batch.input_file),
            ).rowcount
        return bool(added)

    def batch(self, id: str, tenant: str | None = None) -> BatchRecord | None:
        """Return a batch. ``tenant``: its required owner; None: any."""
        where, values = "id = ?", [id]
        if tenant is not None:
            where, values = where + " AND tenant = ?", [*values, tenant]
        row = self._database.execute(f"SELECT * FROM batches WHERE {where}", values).fetchone()
        return None if row is None else _made_batch(row)

    def list_batches(self, tenant: str, *, after: str, limit: int) -> tuple[list[BatchRecord], bool]:
        """Return a page, the newest first, and True if there is more."""
        rows, more = self._page("batches", "tenant = ?", [tenant], after, limit, True)
        return [_made_batch(row) for row in rows], more

    def open_batches(self) -> list[OpenBatch]:
        """Return the batches to run, also those of before a crash, the oldest first."""
        rows = self._database.execute(f"SELECT * FROM batches WHERE status IN ({_OPEN}) ORDER BY serial")
        return [
            OpenBatch(
                id=row["id"],
                account=row["tenant"],
                expires_at=row["expires_at"],
                ending=ENDING.get(BatchStatus(row["status"])),
            )
            for row in rows
        ]

    def begin(self, id: str, total: int, errors: Sequence[dict[str, Any]], now: float) -> BatchRecord | None:
        """Record that the lines are checked; return the batch, in progress unless it was cancelled meanwhile."""
        with transaction(self._database):
            self._move(id, (BatchStatus.VALIDATING,), BatchStatus.IN_PROGRESS, now, total=total, errors=json.dumps(errors))
        return self.batch(id)

    def fail(self, id: str, errors: Sequence[dict[str, Any]], now: float) -> None:
        """Record that the batch cannot be run, or not any further. If there are results, their files are written next."""
        with transaction(self._database):
            open_ones = (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS)
            begun = self._database.execute("SELECT 1 FROM results WHERE batch = ?", (id,)).fetchone()
            status, ending = (BatchStatus.FINALIZING, BatchStatus.FAILED.value) if begun else (BatchStatus.FAILED, None)
            self._move(id, open_ones, status, now, errors=json.dumps(errors), ending=ending)

    def cancel(self, id: str, now: float) -> None:
        """Cancel a batch. Has no effect on one that is cancelled or over, or whose files are being written."""
        with transaction(self._database):
            self._move(id, (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS), BatchStatus.CANCELLING, now)

    def finalize(self, id: str, ending: BatchStatus, now: float) -> BatchRecord | None:
        """Record the end of the computation and return the batch. An earlier cancellation or other ending stays."""
        with transaction(self._database):
            open_ones = (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS)
            self._move(id, open_ones, BatchStatus.FINALIZING, now, ending=ending.value)
        return self.batch(id)

    def finish(self, id: str, status: BatchStatus, files: Sequence[FileRecord], now: float, **values: Any) -> None:
        """Record that the files are in their places, and delete the results. ``values``: further columns."""
        with transaction(self._database):
            if self._move(id, (BatchStatus.FINALIZING, BatchStatus.CANCELLING), status, now, **values):
                for file in files:
                    self._database.execute("DELETE FROM files WHERE id = ?", (file.id,))
                    self._insert_file(file)
                self._database.execute("DELETE FROM results WHERE batch = ?", (id,))

    def record_figures(self, id: str, figures: dict[str, Any]) -> None:
        with transaction(self._database):
            self._database.execute("UPDATE batches SET figures = ? WHERE id = ?", (json.dumps(figures), id))

    # results

    def add_results(self, results: Sequence[ResultRecord]) -> int:
        """Add results and the batches' counts in one transaction; return the number of new ones. Existing results stay."""
        new = 0
        with transaction(self._database):
            for one in results:
                row = (one.batch, one.line, one.failed, one.output_tokens, one.cached_tokens, one.text)
                added = self._database.execute(
                    "INSERT OR IGNORE INTO results(batch, line, failed, output_tokens, cached_tokens, text)"
                    f" SELECT ?, ?, ?, ?, ?, ? WHERE EXISTS (SELECT 1 FROM batches WHERE id = ? AND status IN ({_OPEN}))",
                    (*row, one.batch),
                ).rowcount
                if added:
                    new += 1
                    self._count(one)
        return new

    def answered(self, batch: str) -> dict[int, tuple[int, int]]:
        """Return the lines that have a result and are not run again: tokens of the answer, and cached ones of the prompt."""
        rows = self._database.execute("SELECT line, output_tokens, cached_tokens FROM results WHERE batch = ?", (batch,))
        return {row[0]: (row[1], row[2]) for row in rows}

    def texts(self, batch: str, *, failed: bool) -> Iterable[tuple[int, bytes]]:
        """Return line and text of the results, in the file's order; to be consumed before the next call."""
        rows = self._database.execute(
            "SELECT line, text FROM results WHERE batch = ? AND failed = ? ORDER BY line", (batch, failed)
        )
        return ((row[0], row[1]) for row in rows)

    # rows

    def _count(self, one: ResultRecord) -> None:
        column = "failed" if one.failed else "completed"
        self._database.execute(
            f"UPDATE batches SET {column} = {column} + 1, prompt_tokens = prompt_tokens + ?, "
            "output_tokens = output_tokens + ?, cached_tokens = cached_tokens + ?, model = COALESCE(model, ?) WHERE id = ?",
            (one.prompt_tokens, one.output_tokens, one.cached_tokens, one.model or None, one.batch),
        )

    def _move(self, id: str, before: Sequence[BatchStatus], after: BatchStatus, now: float, **values: Any) -> bool:
        """Change the status of a batch if it is one of ``before``; within a transaction."""
        batch = self.batch(id)
        if batch is None or batch.status not in before:
            return False
        at = json.dumps({**batch.at, after.value: int(now)})
        columns = {"status": after.value, "at": at, **values}
        sets = ", ".join(f"{name} = ?" for name in columns)
        self._database.execute(f"UPDATE batches SET {sets} WHERE id = ?", (*columns.values(), id))
        return True

    def _insert_file(self, file: FileRecord) -> None:
        marks = ", ".join("?" * len(_FILE))
        values = [getattr(file, name) for name in _FILE]
        self._database.execute(f"INSERT INTO files({', '.join(_FILE)}) VALUES({marks})", values)

    def _file(self, where: str, *values: str) -> FileRecord | None:
        row = self._database.execute(f"SELECT * FROM files WHERE {where}", values).fetchone()
        return None if row is None else _made_file(row)

    def _page(
        self, table: str, where: str, values: list[str], after: str, limit: int, descending: bool
    ) -> tuple[list[sqlite3.Row], bool]:
        """Return a page of rows; raise KeyError if there is no row ``after``."""
        bounds: list[Any] = [*values]
        if after:
            found = self._database.execute(
                f"SELECT serial FROM {table} WHERE {where} AND id = ?", (*values, after)
            ).fetchone()
            if found is None:
                raise KeyError(after)
            where += f" AND serial {'<' if descending else '>'} ?"
            bounds.append(found["serial"])
        order = "DESC" if descending else "ASC"
        rows = self._database.execute(
            f"SELECT * FROM {table} WHERE {where} ORDER BY serial {order} LIMIT ?", (*bounds, limit + 1)
        ).fetchall()
        return rows[:limit], len(rows) > limit


def _plain(name: str, value: Any) -> Any:
    if name in _JSON:
        return None if value is None else json.dumps(value)
    return value.value if isinstance(value, BatchStatus) else value


def _made_file(row: sqlite3.Row) -> FileRecord:
    return FileRecord(**{name: row[name] for name in _FILE})


def _made_batch(row: sqlite3.Row) -> BatchRecord:
    values = {name: row[name] for name in _BATCH}
    values |= {name: json.loads(row[name]) if row[name] is not None else None for name in _JSON}
    values |= {"status": BatchStatus(row["status"]), "ending": BatchStatus(row["ending"]) if row["ending"] else None}
    return BatchRecord(**values)
