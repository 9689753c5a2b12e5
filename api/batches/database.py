"""The SQLite database of files, batches and results: its tables, how it is opened, and errors of a full disk.

Several processes share it, each with one connection on one thread. WAL with full synchronization: a committed transaction
survives kill -9 and a loss of power, and readers never wait.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

FORMAT = 1
BUSY_SECONDS = 30.0  # seconds that a writer waits for another process
TABLES = """
CREATE TABLE files(
    serial INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL, purpose TEXT NOT NULL,
    filename TEXT NOT NULL, nbytes INTEGER NOT NULL, created_at INTEGER NOT NULL, expires_at INTEGER,
    lines INTEGER NOT NULL);
CREATE INDEX files_of ON files(tenant, serial);
CREATE INDEX files_late ON files(expires_at) WHERE expires_at IS NOT NULL;
CREATE TABLE batches(
    serial INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL, key TEXT NOT NULL,
    endpoint TEXT NOT NULL, input_file TEXT NOT NULL, window TEXT NOT NULL, created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL, status TEXT NOT NULL, ending TEXT, at TEXT NOT NULL, metadata TEXT,
    total INTEGER NOT NULL DEFAULT 0, completed INTEGER NOT NULL DEFAULT 0, failed INTEGER NOT NULL DEFAULT 0,
    prompt_tokens INTEGER NOT NULL DEFAULT 0, output_tokens INTEGER NOT NULL DEFAULT 0,
    cached_tokens INTEGER NOT NULL DEFAULT 0, model TEXT, errors TEXT NOT NULL DEFAULT '[]',
    figures TEXT NOT NULL DEFAULT '{}', output_file TEXT NOT NULL DEFAULT '', error_file TEXT NOT NULL DEFAULT '',
    keep_outputs INTEGER);
CREATE INDEX batches_of ON batches(tenant, serial);
CREATE INDEX batches_open ON batches(status);
CREATE TABLE results(
    serial INTEGER PRIMARY KEY, batch TEXT NOT NULL, line INTEGER NOT NULL, failed INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL, text BLOB NOT NULL, UNIQUE(batch, line));
"""


class StoreError(Exception):
    """An unusable folder; one sentence with its name and the remedy."""


def open_database(path: Path) -> sqlite3.Connection:
    """Open the database, creating it if necessary, for use on the calling thread. Raise StoreError."""
    try:
        connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
        connection.row_factory = sqlite3.Row
        for pragma in ("journal_mode = WAL", "synchronous = FULL"):
            connection.execute(f"PRAGMA {pragma}")
        with transaction(connection):
            (found,) = connection.execute("PRAGMA user_version").fetchone()
            if found == 0:
                for statement in TABLES.split(";\n"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {FORMAT}")
    except sqlite3.Error as error:
        raise StoreError(f"{path} cannot be used ({error}); name another folder in batch_dir, or mend it") from None
    if found not in (0, FORMAT):
        connection.close()
        raise StoreError(f"{path} is of format {found}, this version writes {FORMAT}; name another folder in batch_dir")
    return connection


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Run the block as one transaction, all or nothing; raise OSError if the disk is full or fails."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    except sqlite3.OperationalError as error:
        raise OSError(f"the store cannot be written ({error})") from error
