"""Charts: round numbers on axes, values at their places, gaps where nothing is known."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from blockwright.api.drawing.chart import (
    LEFT,
    PLOT,
    RIGHT,
    SQUARE,
    TOP,
    WIDTH,
    Curve,
    Plot,
    log_ticks,
    over_time,
    round_top,
    scatter,
    tick_step,
    ticks,
)

NAME = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    ("value", "top"), [(1, 1), (1.01, 2), (3, 5), (12, 20), (378, 500), (0.239, 0.5), (0.1, 0.1), (1000, 1000)]
)
def test_the_top_of_an_axis_is_round(value: float, top: float) -> None:
    assert round_top(value) == pytest.approx(top)


def test_ticks() -> None:
    assert ticks(43.6, tick_step(43.6, 8)) == [0, 10, 20, 30, 40]
    assert ticks(40, tick_step(40, 8)) == [5.0 * n for n in range(9)]
    assert log_ticks(0.8, 31) == pytest.approx([1, 3, 10, 30])


def curves(svg: str, kind: str) -> list[str]:
    return [path.get("d", "") for path in ElementTree.fromstring(svg).iter(f"{NAME}path") if path.get("class") == kind]


def test_a_curve_has_its_values_and_gaps() -> None:
    plot = Plot("t", [Curve("a", [0, 10, None, 5, 5], "blue"), Curve("b", [1] * 5, "orange")], "{:g}".format)
    svg = over_time("title", "d", [0, 1, 2, 3, 4], [plot])
    width = WIDTH - LEFT - RIGHT
    first, second = curves(svg, "curve blue")
    assert first == f"M{LEFT:g} {TOP + PLOT:g} L{LEFT + width / 4:.1f} {TOP:g}"
    assert second == f"M{LEFT + width * 3 / 4:.1f} {TOP + PLOT / 2:g} L{WIDTH - RIGHT:g} {TOP + PLOT / 2:g}"
    texts = [text.text for text in ElementTree.fromstring(svg).iter(f"{NAME}text")]
    assert {"0", "5", "10", "a", "b", "0 s", "4 s"} <= {*texts}


def test_a_run_of_one_moment_and_of_zeros_is_drawn() -> None:
    svg = over_time("t", "d", [0.0], [Plot("p", [Curve("c", [0.0], "green")], "{:g}".format, 1)])
    assert f'cx="{LEFT:g}" cy="{TOP + PLOT:g}"' in svg


def test_points_of_a_scatter() -> None:
    svg = scatter("t", "d", [(1.0, 1.0), (100.0, 100.0), (10.0, 1.0), (0.0, 3.0)], "{:g}".format)
    dots = [
        (float(dot.get("cx", "")) - LEFT, TOP + SQUARE - float(dot.get("cy", "")))
        for dot in ElementTree.fromstring(svg).iter(f"{NAME}circle")
    ]
    assert len(dots) == 3, "one has no logarithm"
    assert [across == pytest.approx(up, abs=0.2) for across, up in dots] == [True, True, False]
    assert dots[2][0] == dots[0][0]
    assert dots[2][1] == pytest.approx(SQUARE / 2, abs=0.2)
    assert ElementTree.fromstring(scatter("t", "d", [], "{:g}".format)) is not None
