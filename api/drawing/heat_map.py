"""Heat maps of similarities: rows and columns with names, a color and a number in each cell, as a picture or as text.

A cell may be marked: as one that counts (``GOOD``) or that only looks so (``BAD``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .png import GLYPH_HEIGHT, Canvas, Color, text_width

if TYPE_CHECKING:
    from rich.text import Text

GOOD, BAD = "*", "!"
CELL, MARGIN = 24, 12  # pixels
COLUMN = 4  # characters of a cell
INK: Color = (28, 29, 26)
PALE: Color = (255, 255, 255)
MARKS: dict[str, Color] = {GOOD: (47, 127, 60), BAD: (159, 65, 73)}
LOW_COLOR, HIGH_COLOR = (244, 244, 238), (65, 105, 159)
CONTRAST = 4  # power of a value that sets its color: most similarities lie near 1
DARK = 0.55  # of a color, from which a number on it is white

Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Values from 0 to 1 by row and column. ``marks``: GOOD or BAD, by row and column."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float]]
    marks: Mapping[Place, str] = field(default_factory=dict)

    def canvas(self) -> Canvas:
        """Return the picture: names of rows at the left and of columns, upward, at the top."""
        left = MARGIN + max(map(text_width, self.rows)) + MARGIN // 2
        top = 2 * MARGIN + GLYPH_HEIGHT + max(map(text_width, self.columns)) + MARGIN // 2
        width = max(left + CELL * len(self.columns), MARGIN + text_width(self.title)) + MARGIN
        drawn = Canvas(width, top + CELL * len(self.rows) + MARGIN)
        drawn.text(MARGIN, MARGIN, self.title, INK)
        inset = (CELL - GLYPH_HEIGHT) // 2
        for column, name in enumerate(self.columns):
            drawn.text(left + column * CELL + inset, top - MARGIN // 2, name, INK, upward=True)
        for row, name in enumerate(self.rows):
            drawn.text(left - MARGIN // 2 - text_width(name), top + row * CELL + inset, name, INK)
            for column, value in enumerate(self.values[row]):
                x, y = left + column * CELL, top + row * CELL
                shown = percent(value)
                drawn.fill(x, y, CELL - 1, CELL - 1, color_of(value))
                ink = PALE if weight_of(value) > DARK else INK
                drawn.text(x + (CELL - text_width(shown)) // 2, y + inset, shown, ink)
                if mark := self.marks.get((row, column)):
                    drawn.outline(x, y, CELL - 1, CELL - 1, MARKS[mark])
        return drawn

    def lines(self) -> list[Text]:
        """Return the map as text for a terminal; columns have the numbers of the rows below if the names are the same."""
        from rich.text import Text

        numbered = list(self.rows) == list(self.columns)
        wide = max(len(name) for name in self.rows) + 1
        heads = [str(i) for i in range(len(self.columns))] if numbered else [_short(name) for name in self.columns]
        made = [Text(" " * (wide + 4) + "".join(f"{head:>{COLUMN - 1}} " for head in heads))]
        for row, name in enumerate(self.rows):
            line = Text(f"{name:<{wide}}{row if numbered else '':>3} ")
            for column, value in enumerate(self.values[row]):
                red, green, blue = color_of(value)
                ink = "white" if weight_of(value) > DARK else "black"
                shown = f"{percent(value):>{COLUMN - 1}}{self.marks.get((row, column), ' ')}"
                line.append(shown, f"{ink} on rgb({red},{green},{blue})")
            made.append(line)
        return made

    @property
    def width(self) -> int:
        """The characters of a line of text."""
        return max(len(name) for name in self.rows) + 5 + COLUMN * len(self.columns)


def percent(value: float) -> str:
    """Return a value in whole hundredths, rounded down, so that only 1 is 100."""
    return str(int(100 * value + 1e-3))


def weight_of(value: float) -> float:
    """Return the part of the strong color, 0 to 1."""
    return float(min(max(value, 0.0), 1.0) ** CONTRAST)


def color_of(value: float) -> Color:
    part = weight_of(value)
    red, green, blue = (round(low + part * (high - low)) for low, high in zip(LOW_COLOR, HIGH_COLOR, strict=True))
    return red, green, blue


def _short(name: str) -> str:
    """Return the number in a name, or its first letters."""
    digits = "".join(char for char in name if char.isdigit())
    return digits or name[: COLUMN - 1]
