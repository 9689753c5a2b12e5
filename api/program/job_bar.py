"""The progress bar of an offline batch: finished lines, tokens per second, and an estimate of the time left.

The estimate is the job's own, by the work that is left. Lines alone would mislead, since their lengths differ a
thousandfold. Only the display is here.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from ...policies.offline.job_account import FeedProgress
from .duration import duration

SECONDS = 0.5  # seconds between two updates of the estimate


class JobBar:
    """The bar. Use as ``with``; nothing is written if ``shown`` is false."""

    def __init__(self, total: int, shown: bool) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[more]}"))
        console = Console(file=sys.stderr, force_terminal=shown or None, force_jupyter=False)
        self._progress = Progress(*columns, console=console, disable=not shown)
        self._task = self._progress.add_task("starting", total=total, more="")
        self._began = self._looked = 0.0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, what: str, done: int = 0) -> None:
        """Begin another stage, of which ``done`` lines are finished already; seconds count from now."""
        self._began = self._looked = time.monotonic()
        self._progress.update(self._task, description=what, completed=done, more="")

    def advance(self, steps: int) -> None:
        """Count ``steps`` more finished lines."""
        self._progress.update(self._task, advance=steps)

    def show(self, jobs: Sequence[FeedProgress]) -> None:
        """Show the progress of the jobs, which all run at once. Calls in quick succession are skipped."""
        now = time.monotonic()
        if now - self._looked >= SECONDS:
            self._looked = now
            self._progress.update(self._task, more=progress_text(jobs, now - self._began))


def progress_text(jobs: Sequence[FeedProgress], seconds: float) -> str:
    """Return the text beside the bar: ``812 tok/s, about 3 min 20 s left``."""
    rate = sum(job.done_tokens for job in jobs) / max(seconds, 1e-9)
    left = [job.remaining_seconds for job in jobs if job.remaining_seconds is not None]
    return f"{rate:.0f} tok/s" + (f", about {duration(max(left))} left" if left else "")
