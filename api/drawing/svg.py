"""SVG files from rectangles, lines, dots and texts, with colors for light and dark pages.

A file is self-contained: its style is inside, and it follows the reader's color scheme. Coordinates are pixels from the
upper left corner. The output is deterministic.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal
from xml.sax.saxutils import escape, quoteattr

Point = tuple[float, float]
Anchor = Literal["start", "middle", "end"]
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1c1d1a; }
.small { font-size: 11px; } .quiet { fill: #62645c; } .bold { font-weight: 600; }
.page { fill: #fff; } .on { fill: #fff; } .free { fill: #ecece6; }
.frame { fill: none; stroke: #c9c9c0; } .grid { fill: none; stroke: #e2e2db; }
.line { fill: none; stroke: #62645c; } .dash { stroke-dasharray: 3 3; } .head { fill: #62645c; }
.blue { fill: #41699f; } .red { fill: #9f4149; } .green { fill: #2f7f3c; }
.violet { fill: #71419f; } .orange { fill: #b5620f; }
.dot { opacity: .75; } .curve { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
.curve.blue { stroke: #41699f; } .curve.green { stroke: #2f7f3c; }
.curve.violet { stroke: #71419f; } .curve.orange { stroke: #b5620f; }
@media (prefers-color-scheme: dark) {
text { fill: #ececf0; } .quiet { fill: #a3a6b4; } text.on { fill: #fff; }
.page { fill: #15171e; } .free { fill: #343742; } .frame { stroke: #4a4e5c; } .grid { stroke: #2c2f39; }
.line { stroke: #a3a6b4; } .head { fill: #a3a6b4; } .dot.blue { fill: #7aa5e0; } .dot.orange { fill: #e89a4f; }
.curve.blue { stroke: #7aa5e0; } .curve.green { stroke: #6cbf7a; }
.curve.violet { stroke: #b38be0; } .curve.orange { stroke: #e89a4f; }
}
"""
ARROW = (
    '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto-start-reverse"><path d="M0 0 L8 4 L0 8 z" class="head"/></marker></defs>'
)


class Drawing:
    """A picture that grows by its methods. ``kind``: one or more classes of ``STYLE``."""

    def __init__(self, width: float, height: float, title: str, description: str) -> None:
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_n(width)}" height="{_n(height)}" '
            f'viewBox="0 0 {_n(width)} {_n(height)}" role="img" aria-labelledby="title description">',
            f'<title id="title">{escape(title)}</title>',
            f'<desc id="description">{escape(description)}</desc>',
            f"<style>{STYLE}</style>",
            ARROW,
        ]
        self.rectangle(0, 0, width, height, "page", radius=6)

    def rectangle(self, x: float, y: float, width: float, height: float, kind: str, *, radius: float = 3) -> None:
        placed = f'x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}" rx="{_n(radius)}"'
        self._parts.append(f"<rect {placed} class={quoteattr(kind)}/>")

    def text(self, x: float, y: float, content: str, kind: str = "", *, anchor: Anchor = "start") -> None:
        """Write a line of text. ``y``: its baseline."""
        placed = f'x="{_n(x)}" y="{_n(y)}"' + (f' text-anchor="{anchor}"' if anchor != "start" else "")
        self._parts.append(f"<text {placed} class={quoteattr(kind)}>{escape(content)}</text>")

    def block(self, x: float, y: float, width: float, height: float, kind: str, label: str) -> None:
        """Draw a filled rectangle with a label in its middle."""
        self.rectangle(x, y, width, height, kind)
        self.text(x + width / 2, y + height / 2 + 4, label, "small quiet" if kind == "free" else "small on", anchor="middle")

    def line(self, points: Iterable[Point], kind: str = "line") -> None:
        path = " L".join(f"{_n(x)} {_n(y)}" for x, y in points)
        self._parts.append(f'<path d="M{path}" class={quoteattr(kind)}/>')

    def arrow(self, start: Point, end: Point, kind: str = "line", *, both: bool = False) -> None:
        ends = ' marker-end="url(#arrow)"' + (' marker-start="url(#arrow)"' if both else "")
        (x, y), (to_x, to_y) = start, end
        self._parts.append(f'<path d="M{_n(x)} {_n(y)} L{_n(to_x)} {_n(to_y)}" class={quoteattr(kind)}{ends}/>')

    def dot(self, x: float, y: float, kind: str, radius: float = 3) -> None:
        self._parts.append(f'<circle cx="{_n(x)}" cy="{_n(y)}" r="{_n(radius)}" class={quoteattr(f"dot {kind}")}/>')

    def svg(self) -> str:
        """Return the text of the file."""
        return "\n".join([*self._parts, "</svg>"]) + "\n"


def _n(value: float) -> str:
    """Return a coordinate with one decimal, or none."""
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text
