"""The progress bar of ``blockwright.generate`` and of simulations: finished items, speed, time left.

Only the display is here. It is one line, so that it also works in a notebook.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .results import Answer


class Bar:
    """The bar. Use as ``with``; nothing is written if ``shown`` is false."""

    def __init__(self, total: int, shown: bool) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))
        console = Console(file=sys.stderr, force_terminal=shown or None, force_jupyter=False)
        self._progress = Progress(*columns, TimeRemainingColumn(), console=console, disable=not shown)
        self._task = self._progress.add_task("starting", total=total, rate="")
        self._tokens, self._began = 0, 0.0
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, what: str = "generating") -> None:
        """Begin the work after the start-up; seconds count from now."""
        self._began = time.monotonic()
        self._progress.update(self._task, description=what)

    def advance(self, steps: int) -> None:
        """Count ``steps`` more finished items."""
        self._progress.update(self._task, advance=steps)

    def done(self, answer: Answer) -> None:
        """Count one more answered prompt."""
        with self._lock:
            self._tokens += answer.completion_tokens
            rate = f"{self._tokens / (time.monotonic() - self._began):.0f} tok/s"
            self._progress.update(self._task, advance=1, rate=rate)
