"""The progress bar of ``blockwright.generate``, of simulations and of offline batches: finished items, speed, time left.

Only the display is here. It is one line, so that it also works in a notebook.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ...policies.offline.job_account import FeedProgress
from .duration import duration
from .results import Answer

SECONDS = 0.5  # seconds between two updates of the estimates of jobs


class Bar:
    """The bar. Use as ``with``; nothing is written if ``shown`` is false.

    ``estimated``: the time left follows from the finished items. An offline batch has its own estimate, by the work that is
    left: its lines differ in length a thousandfold.
    """

    def __init__(self, total: int, shown: bool, *, estimated: bool = True) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[more]}"))
        left = [TimeRemainingColumn()] if estimated else []
        console = Console(file=sys.stderr, force_terminal=shown or None, force_jupyter=False)
        self._progress = Progress(*columns, *left, console=console, disable=not shown)
        self._task = self._progress.add_task("starting", total=total, more="")
        self._tokens = 0
        self._began = 0.0
        self._looked = 0.0
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, what: str = "generating", done: int = 0) -> None:
        """Begin another stage, of which ``done`` items are finished already; seconds count from now."""
        self._began = self._looked = time.monotonic()
        self._progress.update(self._task, description=what, completed=done, more="")

    def advance(self, steps: int) -> None:
        """Count ``steps`` more finished items."""
        self._progress.update(self._task, advance=steps)

    def done(self, answer: Answer) -> None:
        """Count one more answered prompt."""
        with self._lock:
            self._tokens += answer.completion_tokens
            rate = f"{self._tokens / (time.monotonic() - self._began):.0f} tok/s"
            self._progress.update(self._task, advance=1, more=rate)

    def show(self, jobs: Sequence[FeedProgress]) -> None:
        """Show the progress of offline jobs, which all run at once. Calls in quick succession are skipped."""
        now = time.monotonic()
        if now - self._looked >= SECONDS:
            self._looked = now
            self._progress.update(self._task, more=progress_text(jobs, now - self._began))


def progress_text(jobs: Sequence[FeedProgress], seconds: float) -> str:
    """Return the text beside the bar: ``812 tok/s, about 3 min 20 s left``."""
    rate = sum(job.done_tokens for job in jobs) / max(seconds, 1e-9)
    left = [job.remaining_seconds for job in jobs if job.remaining_seconds is not None]
    return f"{rate:.0f} tok/s" + (f", about {duration(max(left))} left" if left else "")
