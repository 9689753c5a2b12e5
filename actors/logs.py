"""Logging setup of a process: text for people, or one JSON object on each line for collectors. Standard library only.

Owns the root logger's one handler. Never decides what is logged.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from typing import Any

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Formatter of log records as JSON.

    The fields are ``time`` (UTC), ``level``, ``logger``, ``process`` (the name within the cluster), ``message``, the fields
    of ``extra``, and ``exception`` with its traceback.
    """

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        more = {name: value for name, value in vars(record).items() if name not in _OWN}
        if record.exc_info:
            more["exception"] = self.formatException(record.exc_info)
        level, text = record.levelname.lower(), record.getMessage()
        return json_line(self._process, record.name, level, text, record.created, **more)


def json_line(process: str, logger: str, level: str, message: str, at: float, **more: Any) -> str:
    """Return one line of JSON. ``at``: seconds since 1970."""
    made = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f".{int(at % 1 * 1000):03d}Z",
        "level": level,
        "logger": logger,
        "process": process,
        "message": message,
    }
    return json.dumps(made | more, default=str)


def set_up(form: str, level: str, process: str) -> None:
    """Set up logging for this process, replacing an earlier setup.

    ``form`` is "text" or "json", ``level`` is "debug" to "error", ``process`` is "head" or a worker's name.
    """
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter(f"%(asctime)s {process} %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter(process) if form == "json" else text)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    hub = "error" if level != "debug" else "debug"  # our own messages say it better
    logging.getLogger("huggingface_hub").setLevel(hub.upper())
    os.environ["HF_HUB_VERBOSITY"] = hub  # read by the library when it is imported; it then sets its level itself
