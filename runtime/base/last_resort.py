"""How a process logs where nobody has set logging up: with time, level and who speaks, instead of the bare text.

Owns ``logging.lastResort``, which Python uses only while no handler is there: whoever sets logging up is not touched.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO


class _LastResort(logging.Handler):
    """On standard error, as that is at the time."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            stream: TextIO = sys.stderr
            stream.write(self.format(record) + "\n")
            stream.flush()
        except Exception:
            self.handleError(record)


MAIN = "main"  # the program that has started others, whatever its nodes are called


def log_as_main() -> None:
    """As ``log_as(MAIN)``, but for a process that speaks under another name already."""
    if not isinstance(logging.lastResort, _LastResort):
        log_as(MAIN)


def log_as(process: str) -> None:
    """``process``: a node's name, or ``MAIN``."""
    handler = _LastResort(logging.WARNING)
    handler.setFormatter(logging.Formatter(f"%(asctime)s {process} %(levelname)s %(name)s: %(message)s"))
    logging.lastResort = handler
