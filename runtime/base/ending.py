"""The end of a process whose threads may hang: it comes all the same."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress

GRACE = 5.0  # seconds


def end_within(seconds: float, code: int) -> threading.Timer:
    """End this process with ``code`` after ``seconds``, unless it has ended by itself.

    The interpreter waits at its end for threads of pools, also for one that reads from a file which never ends.
    """
    timer = threading.Timer(seconds, _end, (code,))
    timer.daemon = True
    timer.start()
    return timer


def _end(code: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code)
