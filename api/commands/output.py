"""The output of commands: tables that fit their terminal, JSON, and files of figures."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import CommandError

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.measure import Measurement

# characters: names up to the first length are shown whole; longer ones are folded to at least the second
WHOLE_NAME, LEAST_NAME = 36, 14
_GAP = 2


@dataclass(frozen=True, slots=True)
class FittedTable:
    """A table that fits its terminal, with names in its first column.

    Names are never cut off. The last ``numbers`` columns are aligned to the right. ``least``: columns that a narrow terminal
    leaves out, in that order.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: int
    least: Sequence[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.table import Table

        shown = self.shown(options.max_width)
        widths = self._widths()
        rest = sum(widths[place] + _GAP for place in shown[1:])
        name = max(min(widths[0], options.max_width - rest), min(widths[0], LEAST_NAME))
        made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
        for place in shown:
            right = place >= len(self.columns) - self.numbers
            if place:
                made.add_column(self.columns[place], justify="right" if right else "left", no_wrap=True)
            else:
                made.add_column(self.columns[0], justify="right" if right else "left", overflow="fold", width=name)
        for row in self.rows:
            made.add_row(*(row[place] for place in shown))
        yield made

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        from rich.measure import Measurement

        return Measurement(min(20, options.max_width), options.max_width)

    def shown(self, width: int) -> list[int]:
        """Return the places of the columns that fit into ``width`` characters, in order."""
        widths, gone = self._widths(), [self.columns.index(name) for name in self.least]
        kept = set(range(len(self.columns)))

        def fits(places: Collection[int]) -> bool:
            return min(widths[0], WHOLE_NAME) + sum(widths[place] + _GAP for place in places if place) <= width

        while gone and not fits(kept):
            kept.remove(gone.pop(0))
        for name in reversed(self.least):  # a narrow column may come back if a wide one was dropped after it
            if fits(kept | {self.columns.index(name)}):
                kept.add(self.columns.index(name))
        return sorted(kept)

    def _widths(self) -> list[int]:
        from rich.cells import cell_len

        return [max(cell_len(row[place]) for row in (self.columns, *self.rows)) for place in range(len(self.columns))]


def console_of(width: int) -> Console:
    """Return a console on standard output; it is ``width`` characters wide if that is no terminal."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else width)


def print_tables(*tables: RenderableType, width: int = 200) -> None:
    console = console_of(width)
    for one in tables:
        console.print(one)


def as_json(found: object) -> str:
    import json

    return json.dumps(found, indent=1)


def print_json(found: object) -> None:
    print(as_json(found))


class FiguresFile:
    """A file in which a command stores figures or a picture: checked before the measurement, written after it.

    ``flag``: the flag that names it. The constructor and ``store`` raise CommandError if writing fails.
    """

    def __init__(self, flag: str, name: str) -> None:
        self._flag, self._path = flag, Path(name)
        if not self._path.absolute().parent.is_dir():
            raise CommandError(f"{flag} {name} lies in no folder; make {self._path.absolute().parent}", 2)
        if self._path.is_dir():
            raise CommandError(f"{flag} {name} is a folder; name a file in it", 2)

    def store(self, found: dict[str, Any] | list[dict[str, Any]]) -> None:
        self.write(as_json(found) + "\n")

    def write(self, content: str | bytes) -> None:
        try:
            self._path.write_bytes(content.encode() if isinstance(content, str) else content)
        except OSError as error:
            raise CommandError(f"{self._path} cannot be written ({error.strerror}); check {self._flag}") from None


def similarity_text(found: Mapping[str, Any], listed: str) -> str:
    """Return how similar answers of other chains are to those of the listed one."""
    which = f"{found['agreed']:.1%} of {found['tokens']:,} tokens are the likeliest of {listed}"
    return f"{which}, mean log-probability {found['logprob']:.3f}"
