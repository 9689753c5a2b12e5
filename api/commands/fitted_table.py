"""A table that fits its terminal: names are never cut off, and the least important columns are dropped first."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table

# characters: names up to the first length are shown whole; longer ones are folded to at least the second
WHOLE_NAME, LEAST_NAME = 36, 14
_GAP = 2


@dataclass(frozen=True, slots=True)
class FittedTable:
    """A table with names in its first column.

    The last ``numbers`` columns are aligned to the right. ``least``: columns that a narrow terminal leaves out, in that
    order.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: int
    least: Sequence[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
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
        return [max(cell_len(row[place]) for row in (self.columns, *self.rows)) for place in range(len(self.columns))]
