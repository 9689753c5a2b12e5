"""Charts as SVG: curves over a common time axis, and scatter plots of predicted against measured times."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from .svg import Drawing

LEFT = 62.0  # pixels beside the plots
RIGHT = 20.0
TOP = 54.0  # pixels above the plots
PLOT, GAP = 92.0, 34.0  # height of a plot of curves, and the space between two
WIDTH = 720.0
SQUARE = 400.0  # pixels of a scatter's side
Format = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve: a value at each time, or None for a gap. ``kind``: its color."""

    name: str
    values: Sequence[float | None]
    kind: str


@dataclass(frozen=True, slots=True)
class Plot:
    """Curves with one vertical axis, which begins at 0. ``least``: the lowest value of the axis's top."""

    title: str
    curves: Sequence[Curve]
    format: Format
    least: float = 0.0


def over_time(title: str, description: str, times: Sequence[float], plots: Sequence[Plot], note: str = "") -> str:
    """Return an SVG of plots below each other. ``times``: seconds, at least one."""
    height = TOP + len(plots) * (PLOT + GAP) + 12
    drawing = Drawing(WIDTH, height, title, description)
    drawing.text(20, 26, title, "bold")
    if note:
        drawing.text(WIDTH - RIGHT, 26, note, "small quiet", anchor="end")
    end = max(times[-1], 1e-9)
    step = tick_step(end, 8)

    def across(at: float) -> float:
        return LEFT + at / end * (WIDTH - LEFT - RIGHT)

    for number, plot in enumerate(plots):
        top = TOP + number * (PLOT + GAP)
        for at in ticks(end, step):
            drawing.line([(across(at), top), (across(at), top + PLOT)], "grid")
            if number == len(plots) - 1:
                drawing.text(across(at), top + PLOT + 17, f"{at:g} s", "small quiet", anchor="middle")
        _plot(drawing, plot, top, times, across)
    return drawing.svg()


def _plot(drawing: Drawing, plot: Plot, top: float, times: Sequence[float], across: Callable[[float], float]) -> None:
    known = [value for curve in plot.curves for value in curve.values if value is not None]
    limit = round_top(max([plot.least, *known]))
    bottom = top + PLOT
    for share in (0.0, 0.5, 1.0):
        y = bottom - share * PLOT
        drawing.line([(LEFT, y), (WIDTH - RIGHT, y)], "grid")
        drawing.text(LEFT - 6, y + 4, plot.format(share * limit), "small quiet", anchor="end")
    drawing.text(LEFT, top - 7, plot.title, "small")
    at = WIDTH - RIGHT
    for curve in reversed(plot.curves if len(plot.curves) > 1 else ()):
        drawing.text(at, top - 7, curve.name, "small quiet", anchor="end")
        at -= 6 * len(curve.name) + 6
        drawing.dot(at, top - 11, curve.kind)
        at -= 14
    for curve in plot.curves:
        for piece in _pieces(curve.values):
            points = [(across(times[n]), bottom - value / limit * PLOT) for n, value in piece]
            if len(points) == 1:
                drawing.dot(*points[0], curve.kind, 1.5)
            else:
                drawing.line(points, f"curve {curve.kind}")


def _pieces(values: Sequence[float | None]) -> Iterator[list[tuple[int, float]]]:
    """Yield the runs of values between gaps, with their numbers."""
    piece: list[tuple[int, float]] = []
    for number, value in enumerate(values):
        if value is None:
            if piece:
                yield piece
            piece = []
        else:
            piece.append((number, value))
    if piece:
        yield piece


def scatter(title: str, description: str, points: Sequence[tuple[float, float]], format: Format, note: str = "") -> str:
    """Return an SVG of (predicted, measured) on logarithmic axes, with the line of equality.

    Points with a value of 0 or less are left out.
    """
    shown = [point for point in points if min(point) > 0]
    drawing = Drawing(LEFT + SQUARE + RIGHT + 20, TOP + SQUARE + 52, title, description)
    drawing.text(20, 26, title, "bold")
    drawing.text(20, 43, note, "small quiet")
    values = [value for point in shown for value in point]
    low, high = (min(values) / 1.25, max(values) * 1.25) if values else (0.001, 1.0)
    bottom = TOP + SQUARE

    def part(value: float) -> float:
        return math.log(value / low) / math.log(high / low) * SQUARE

    for tick in log_ticks(low, high):
        at = part(tick)
        drawing.line([(LEFT + at, TOP), (LEFT + at, bottom)], "grid")
        drawing.line([(LEFT, bottom - at), (LEFT + SQUARE, bottom - at)], "grid")
        drawing.text(LEFT + at, bottom + 16, format(tick), "small quiet", anchor="middle")
        drawing.text(LEFT - 6, bottom - at + 4, format(tick), "small quiet", anchor="end")
    drawing.rectangle(LEFT, TOP, SQUARE, SQUARE, "frame", radius=0)
    drawing.line([(LEFT, bottom), (LEFT + SQUARE, TOP)], "line dash")
    for predicted, measured in shown:
        drawing.dot(LEFT + part(measured), bottom - part(predicted), "blue")
    drawing.text(LEFT + 8, TOP + 16, "predicted, upwards", "small quiet")
    drawing.text(LEFT + SQUARE - 8, bottom - 8, "measured, to the right", "small quiet", anchor="end")
    return drawing.svg()


def round_top(value: float) -> float:
    """Return the first of 1, 2, 5, 10, ... (and their tenths) that is not below the value."""
    ten = 10.0 ** math.floor(math.log10(max(value, 1e-9)))
    return next(n * ten for n in (1, 2, 5, 10) if n * ten >= value * (1 - 1e-9))


def tick_step(end: float, limit: int) -> float:
    """Return a round distance at which an axis from 0 to ``end`` has at limit ``limit`` ticks after 0."""
    return round_top(end / limit)


def ticks(end: float, step: float) -> list[float]:
    return [n * step for n in range(math.floor(end / step * (1 + 1e-9)) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return the powers of ten, and three times each, between two values."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [tick for n in powers for tick in (10.0**n, 3 * 10.0**n) if low < tick < high]
