"""Log of served requests that a tagger is trained on: one line of JSON each, in files of bounded size.

A line has the ``Features`` and the length of the answer; no text and no token of a prompt or an answer. A gateway writes
``GATEWAY.jsonl`` on a thread of its own. When that file reaches half the bound it becomes ``GATEWAY.1.jsonl``, and the
previous one is deleted. An I/O error ends the log, never the gateway.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO

from ...policies.prediction.lengths import TERMS, Features, LengthSample

log = logging.getLogger(__name__)
FORMAT = 1
SUFFIX = ".jsonl"
MOST_WAITING = 100  # batches queued for the disk; beyond this the log ends
CLOSE_TIMEOUT = 5.0  # seconds that closing waits for the disk
MOST = 10**12  # largest count or number of seconds; a larger one was not written here
_COUNTS = {"prompt": 0, "max_tokens": 1, "min_tokens": 0, "length": 0, "expected": 0}  # each with its minimum


class RequestLogError(Exception):
    """A log that cannot be read: path, line, reason, remedy."""


class RequestLog:
    """Writer of one gateway's log (see the module). ``bound``: bytes of both files together."""

    def __init__(self, directory: Path, gateway: str, bound: int) -> None:
        self._path, self._bound = directory / f"{gateway}{SUFFIX}", bound
        self._file: BinaryIO | None = None
        self._over = False
        self._work: queue.SimpleQueue[tuple[float, list[LengthSample]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"request log of {gateway}", daemon=True)
        self._thread.start()

    def write(self, lessons: list[LengthSample]) -> None:
        """Queue lessons for the disk and return at once."""
        if self._work.qsize() > MOST_WAITING:
            self._give_up("the disk is too slow")
        if not self._over:
            self._work.put((time.time(), lessons))

    def close(self) -> None:
        """Return when everything is written. Idempotent."""
        self._work.put(None)
        self._thread.join(CLOSE_TIMEOUT)

    def _give_up(self, reason: str) -> None:
        if not self._over:
            log.warning("the request log %s is stopped: %s", self._path, reason)
        self._over = True

    # on the thread

    def _run(self) -> None:
        while (work := self._work.get()) is not None and not self._over:
            try:
                self._append(b"".join(line(lesson, work[0]) for lesson in work[1]))
            except OSError as error:
                self._give_up(str(error))
        if self._file is not None:
            self._file.close()

    def _append(self, data: bytes) -> None:
        if self._file is None:
            self._file = _opened(self._path)
        elif self._file.tell() + len(data) > self._bound // 2:
            self._file.close()
            self._path.replace(self._path.with_suffix(f".1{SUFFIX}"))
            self._file = _opened(self._path)
        self._file.write(data)
        self._file.flush()


def _opened(path: Path) -> BinaryIO:
    """Open a file to append to it. A line torn by a killed process is removed."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b")
    file.truncate(file.read().rfind(b"\n") + 1)
    file.seek(0, os.SEEK_END)
    return file


def line(lesson: LengthSample, at: float) -> bytes:
    """Return the line of a lesson. ``at``: seconds since 1970."""
    features = lesson.features
    fields = {
        "format": FORMAT,
        "at": round(at, 3),
        "application": features.application,
        "prompt": features.prompt,
        "max_tokens": features.max_tokens,
        "min_tokens": features.min_tokens,
        "length": lesson.length,
        "whole": lesson.whole,
        "expected": lesson.expected,
        "terms": features.terms,
    }
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def read_requests(path: Path) -> list[LengthSample]:
    """Read the lessons of one file, or of all gateways' files in a folder, in the order in which the requests ended.

    A torn last line is left out. Raises RequestLogError.
    """
    try:
        files = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]
        texts = [(file, file.read_bytes().split(b"\n")[:-1]) for file in files]
    except OSError as error:
        raise RequestLogError(f"{error.filename or path}: {error.strerror}; name a file or folder of request_log") from None
    found = [
        _parsed(text, f"{file}, line {number}") for file, lines in texts for number, text in enumerate(lines, 1) if text
    ]
    return [lesson for _, lesson in sorted(found, key=lambda entry: entry[0])]


def _parsed(text: bytes, where: str) -> tuple[float, LengthSample]:
    try:
        fields: Any = json.loads(text)
        if not isinstance(fields, dict) or fields.get("format") != FORMAT:
            raise ValueError(f"format is {fields.get('format') if isinstance(fields, dict) else None!r}, not {FORMAT}")
        for name, least in _COUNTS.items():
            value = fields.get(name)
            if type(value) is not int or value < least:
                raise ValueError(f"{name} is {value!r:.40}, not a whole number of at least {least}")
            if value > MOST:
                raise ValueError(f"{name} is {value!r:.40}, more than {MOST:,}")
        kinds: dict[str, Any] = {"application": str, "whole": bool, "terms": list, "at": (int, float)}
        for name, kind in kinds.items():
            if not isinstance(fields.get(name), kind) or (name == "at" and not 0 <= fields[name] <= MOST):
                raise ValueError(f"{name} is {fields.get(name)!r:.40}, which is of another type")
        for number, term in enumerate(fields["terms"]):
            if type(term) is not int or not 0 <= term < TERMS:
                raise ValueError(f"terms[{number}] is {term!r:.40}, not a whole number from 0 to {TERMS - 1}")
    except (ValueError, RecursionError) as error:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
        raise RequestLogError(f"{where}: {error}; delete the line, or name another log") from None
    names = ("application", "prompt", "max_tokens", "min_tokens")
    features = Features(**{name: fields[name] for name in names}, terms=tuple(fields["terms"]))
    return float(fields["at"]), LengthSample(features, fields["length"], fields["whole"], fields["expected"])
