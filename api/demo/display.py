"""The output of the demo: a line for each request, updated in place on a terminal, and the tables at the end.

Plain ANSI, no library. If the output is not a terminal, each request is one line at its end. No network access here.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TextIO

from .client import ExampleOutcome
from .tasks import HELD_OUT, LONGER, accuracy

_UP, _CLEAR = "\x1b[{}A", "\x1b[2K"


@dataclass(frozen=True, slots=True)
class TourCheck:
    """One condition for the demo's success."""

    text: str
    passed: bool


def status_line(outcome: ExampleOutcome, width: int) -> str:
    """Return state, prompt and the answer so far, cut to ``width`` columns."""
    if outcome.error:
        mark = "failed "
    elif outcome.finish:
        mark = f"{outcome.verdict}  "
    else:
        mark = "stream " if outcome.text else "waiting"
    shown = outcome.error or outcome.text
    return f"  {mark} {outcome.example.prompt} {shown}".replace("\n", " ")[:width]


class LiveDisplay:
    """A display of outcomes while they change."""

    def __init__(self, outcomes: Sequence[ExampleOutcome], out: TextIO) -> None:
        self._outcomes, self._out = outcomes, out
        self._terminal = out.isatty()
        self._drawn = False
        self._printed: set[int] = set()  # outcomes whose end was printed, if the output is not a terminal

    def changed(self, outcome: ExampleOutcome) -> None:
        """Draw again. ``outcome`` is the one that changed."""
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            lines = "".join(f"{_CLEAR}{status_line(item, width)}\n" for item in self._outcomes)
            self._out.write((_UP.format(len(self._outcomes)) if self._drawn else "") + lines)
            self._drawn = True
        elif (outcome.ended or outcome.error) and id(outcome) not in self._printed:
            self._printed.add(id(outcome))
            self._out.write(status_line(outcome, 79) + "\n")
        self._out.flush()


class DeferredOutput:
    """The output of a part that runs beside others: held until its turn, then shown as it comes."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._kept: list[str] | None = []

    def say(self, line: str) -> None:
        if self._kept is not None:
            self._kept.append(line)
        else:
            self._out.write(f"{line}\n")
            self._out.flush()

    def turn(self) -> None:
        """Show the held lines, and hold no more."""
        kept, self._kept = self._kept or [], None
        for line in kept:
            self.say(line)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table with columns as wide as their widest cell; the first aligned left, the others right."""
    cells = [list(head), *(list(row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    lines = []
    for row in cells:
        rest = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        lines.append("  ".join((row[0].ljust(widths[0]), *rest)).rstrip())
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def request_table(outcomes: Iterable[ExampleOutcome]) -> str:
    """Return one row for each request: time to first token, tokens per second, route, verdict on the answer."""
    rows = [
        (
            f"{item.model} {item.example.task}",
            "-" if not item.first else f"{item.first_ms:.0f}",
            str(item.tokens),
            f"{item.rate:.0f}",
            " > ".join(item.route) or "unknown",
            "failed" if item.error else item.verdict,
        )
        for item in outcomes
    ]
    return table(("request", "first ms", "tokens", "tokens/s", "route", "answer"), rows)


def accuracy_table(outcomes: Iterable[ExampleOutcome]) -> str:
    """Return the right answers by task: prompts of trained length, and longer ones."""
    counts = accuracy((item.example, "" if item.error else item.text) for item in outcomes)
    tasks = [*dict.fromkeys(task for task, _ in counts if task != "all"), "all"]

    def cell(task: str, split: str) -> str:
        right, total = counts.get((task, split), (0, 0))
        return f"{right}/{total}" if total else "-"

    return table(
        ("held-out prompts", "as long as trained", "longer than trained"),
        [(task, cell(task, HELD_OUT), cell(task, LONGER)) for task in tasks],
    )
