"""A log of messages in a file, one JSON object a line, for ``trace_reader.py``.

Owns the file, a bounded buffer and the thread that writes it: the event loop only appends to a list. What does not fit in
the buffer is counted and said in the file. Times are seconds since 1970, so that logs of several nodes can be read together.

    {"at": 1.5, "node": "w1#1", "what": "sent", "trace": "<32 hex>", "span": "<16 hex>", "parent": "<16 hex>",
     "to": "w2/store", "endpoint": "get"}             a call, cast or stream leaves this node, or begins in it
    {"at": ..., "node": ..., "what": "ran", ..., "seconds": 0.01, "outcome": "value"}       it was handled here
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

log = logging.getLogger("blockwright.runtime")
MOST = 10_000  # lines that may wait to be written
PAUSE = 0.1  # seconds between writes


class MessageLog:
    """Appends to ``path``."""

    def __init__(self, path: Path, node: str, now: Callable[[], float] = time.time) -> None:
        self.lost = 0  # lines that did not fit in the buffer
        self._node, self._now = node, now
        self._file = path.open("a", encoding="utf-8")  # here, so that a wrong path is the caller's error
        self._lines: list[dict[str, Any]] = []
        self._reported = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write_on, name=f"message log of {node}", daemon=True)
        self._thread.start()

    def sent(self, trace: bytes, parent: bytes, to: str, endpoint: str, kind: str) -> None:
        self._put(trace, {"what": "sent", "parent": parent[16:24].hex(), "to": to, "endpoint": endpoint, "kind": kind})

    def ran(self, trace: bytes, actor: str, endpoint: str, seconds: float, outcome: str) -> None:
        """Record that a message ran. ``outcome``: "value", "items", "cancelled", or the name of an error."""
        line = {"what": "ran", "actor": actor, "endpoint": endpoint, "seconds": round(seconds, 6), "outcome": outcome}
        self._put(trace, line)

    def close(self) -> None:
        """Write what waits. Idempotent."""
        if not self._over.is_set():
            self._over.set()
            self._thread.join()
            self._file.close()

    def _put(self, trace: bytes, line: dict[str, Any]) -> None:
        if len(self._lines) >= MOST:
            self.lost += 1
            return
        head = {"at": self._now(), "node": self._node, "trace": trace[:16].hex(), "span": trace[16:24].hex()}
        self._lines.append({**head, **line})

    def _write_on(self) -> None:
        while not self._over.wait(PAUSE):
            self._write()
        self._write()

    def _write(self) -> None:
        lines, self._lines = self._lines, []
        if self.lost != self._reported:
            lines.append({"at": self._now(), "node": self._node, "what": "lost", "count": self.lost - self._reported})
            self._reported = self.lost
        try:
            self._file.write("".join(json.dumps(line) + "\n" for line in lines))
            self._file.flush()
        except OSError:
            log.exception("the message log of %s cannot be written", self._node)
