"""Drawings: well-formed files with both color schemes, whatever their texts say."""

from __future__ import annotations

from xml.etree import ElementTree

from blockwright.api.drawing.svg import STYLE, Drawing

NAME = "{http://www.w3.org/2000/svg}"


def parsed(drawing: Drawing) -> ElementTree.Element:
    return ElementTree.fromstring(drawing.svg())


def test_texts_are_escaped() -> None:
    drawing = Drawing(10, 20, "a < b & c", '<script>"')
    drawing.text(1, 2, "</text><b>")
    root = parsed(drawing)
    assert [root.findtext(f"{NAME}{tag}") for tag in ("title", "desc", "text")] == ["a < b & c", '<script>"', "</text><b>"]
    assert root.get("viewBox") == "0 0 10 20"


def test_a_background_and_both_colour_schemes() -> None:
    root = parsed(Drawing(10, 20, "t", "d"))
    assert root.find(f"{NAME}rect[@class='page'][@width='10'][@height='20']") is not None
    light, dark = STYLE.split("@media (prefers-color-scheme: dark)")
    assert ".page" in light
    assert ".page" in dark


def test_coordinates_have_a_digit_at_most() -> None:
    drawing = Drawing(10, 20, "t", "d")
    drawing.line([(1 / 3, 2.0), (-0.01, 5.25)])
    assert 'd="M0.3 2 L0 5.2"' in drawing.svg()
