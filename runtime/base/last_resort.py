"""The log format of a process without logging set up: time, level and process name, instead of the bare text.

Owns ``logging.lastResort``, which Python uses only while no handler is there: a program that sets logging up is not touched.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO


class _LastResort(logging.Handler):
    """The handler that writes to the current standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            stream: TextIO = sys.stderr
            stream.write(self.format(record) + "\n")
            stream.flush()
        except Exception:
            self.handleError(record)


MAIN = "main"  # the program that has started others, whatever its nodes are called


def log_as_main() -> None:
    """Log as MAIN, unless the process already logs under another name."""
    if not isinstance(logging.lastResort, _LastResort):
        log_as(MAIN)


def log_as(process: str) -> None:
    """Log under the name of a process. ``process``: a node's name, or ``MAIN``."""
    handler = _LastResort(logging.WARNING)
    handler.setFormatter(logging.Formatter(f"%(asctime)s {process} %(levelname)s %(name)s: %(message)s"))
    logging.lastResort = handler
