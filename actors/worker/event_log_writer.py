"""Event log writer: writes the event log of a worker or controller to files of bounded size, on its own thread.

A log has at most two parts, each a file that starts with a snapshot of the machine. When the current part reaches half the
bound, it becomes the previous part and a new one starts; the part before it is deleted. So the last minutes can always be
replayed. An I/O error ends the log, never the writer.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import BinaryIO, Protocol

from ...policies.plain import Plain
from ...policies.sweep.event_log import Began, Ended
from .event_log_file import Header, encode_header, entry_encoder

log = logging.getLogger(__name__)
SUFFIX = ".events"
STARTING = ".starting"  # replaces SUFFIX until the state that the log begins with is written
MOST_WAITING = 100  # batches queued for the disk, worth 10 s; beyond this the log ends
CLOSE_TIMEOUT = 5.0  # seconds that closing waits for the disk


class LoggedState(Protocol):
    """A copy of a state machine's state."""

    def snapshot(self) -> dict[str, Plain]: ...

    def digest(self) -> bytes: ...


class EventLogWriter:
    """Writer of the files ``WORKER-TIME-INCARNATION.PART.events`` in ``directory``.

    Keeps the files of the worker's previous life and deletes older ones. ``bound`` is the size in bytes of both parts
    together. ``machine``: as in ``Header``. Raises OSError if the directory cannot be used.
    """

    def __init__(self, directory: Path, worker: str, incarnation: int, bound: int, machine: str = "sweep") -> None:
        self._begun = 0  # parts, as counted on the event loop
        self._full = 0  # set by the thread: number of the part that reached half the bound
        self._directory = directory
        self._worker = worker
        self._incarnation = incarnation
        self._bound = bound
        self._machine = machine
        self._name = f"{worker}-{time.strftime('%Y%m%dT%H%M%S')}-{incarnation}"
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_older(directory, worker)
        self._part = self._size = self._previous_size = 0
        self._previous = self._path = Path()
        self._file: BinaryIO | None = None
        self._encode = entry_encoder()
        self._over = False
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"event log of {worker}", daemon=True)
        self._thread.start()

    # on the event loop ----------------------------------------------------------------------------------------------

    @property
    def half_full(self) -> bool:
        """True if the current part has reached half the bound, so that ``begin`` is due."""
        return self._full == self._begun

    def begin(self, state: LoggedState) -> None:
        """Start another part with ``state``, a copy made after all entries so far. The thread owns it from now on."""
        self._begun += 1
        self._give(partial(self._begin, state))

    def write(self, entries: Sequence[object]) -> None:
        self._give(partial(self._write, entries))

    def close(self, state: LoggedState | None) -> None:
        """Flush, then write the digest of ``state`` if one is given. Idempotent."""
        if self._thread.is_alive() and not self._over:
            if state is not None:
                self._give(partial(self._finish, state))
            self._work.put(None)
            self._thread.join(CLOSE_TIMEOUT)
        self._over = True

    def _give(self, work: Callable[[], None]) -> None:
        if self._work.qsize() > MOST_WAITING:
            self._give_up("the disk is too slow")
        if not self._over:
            self._work.put(work)

    def _give_up(self, reason: str) -> None:
        if not self._over:
            log.warning("the event log of %s is stopped: %s", self._worker, reason)
        self._over = True

    # on the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                if not self._over:
                    work()
            except Exception as error:
                self._give_up(str(error))
        if self._file is not None:
            self._file.close()

    def _begin(self, state: LoggedState) -> None:
        if self._file is not None:
            self._finish(state)
            self._file.close()
        self._drop_previous()
        self._previous, self._previous_size = self._path, self._size
        self._part += 1
        self._path, self._size = self._directory / f"{self._name}.{self._part}{SUFFIX}", 0
        new = self._path.with_suffix(STARTING)
        self._file = os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")
        header = Header(
            version=version("blockwright"),
            worker=self._worker,
            incarnation=self._incarnation,
            part=self._part,
            written=time.time(),
            machine=self._machine,
        )
        start = encode_header(header) + self._encode(Began(state.snapshot()))
        if len(start) > self._bound // 4:
            raise OSError(f"its state has {len(start)} bytes, over a quarter of event_log_size ({self._bound}); raise that")
        self._append(start)
        new.rename(self._path)  # a process killed before this leaves no log, rather than one without a beginning

    def _finish(self, state: LoggedState) -> None:
        self._append(self._encode(Ended(state.digest())))

    def _write(self, entries: Sequence[object]) -> None:
        self._append(b"".join(map(self._encode, entries)))
        if self._size > self._bound // 2:
            self._full = self._part

    def _append(self, data: bytes) -> None:
        """Append bytes. A large batch keeps the bound too: it deletes the previous part early."""
        assert self._file is not None, "begun before"
        if self._previous_size + self._size + len(data) > self._bound:
            self._drop_previous()
        if self._size + len(data) > self._bound:
            raise OSError(f"{len(data)} bytes more do not fit event_log_size ({self._bound}); raise it")
        self._file.write(data)
        self._file.flush()
        self._size += len(data)

    def _drop_previous(self) -> None:
        if self._previous_size:
            self._previous.unlink(missing_ok=True)
            self._previous_size = 0


def _remove_older(directory: Path, worker: str) -> None:
    """Delete all files except the last life's."""
    for path in directory.glob(f"{worker}-*{STARTING}"):
        path.unlink(missing_ok=True)
    found = sorted(directory.glob(f"{worker}-*{SUFFIX}"), key=lambda path: path.stat().st_mtime_ns)
    for path in found:
        if path.name.partition(".")[0] != found[-1].name.partition(".")[0]:
            path.unlink(missing_ok=True)
