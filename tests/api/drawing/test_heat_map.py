"""Heat maps: a picture that a reader of PNG opens, colors and marks at their places, and the same numbers as text."""

from __future__ import annotations

import struct
import zlib

from blockwright.api.drawing.heat_map import BAD, CELL, GOOD, INK, MARKS, HeatMap, color_of, percent
from blockwright.api.drawing.png import GLYPHS, SIGNATURE, Canvas, Color, text_width

VALUES = [[1.0, 0.5, 0.0], [0.9799, 0.98, 0.999]]
MAP = HeatMap("a and b", ["layer 0", "layer 1"], ["x 0", "x 1", "x 2"], VALUES, {(0, 0): GOOD, (1, 2): BAD})


def opened(content: bytes) -> tuple[int, int, list[bytes]]:
    """Read a PNG by its specification: width, height, rows of pixels."""
    assert content.startswith(SIGNATURE)
    at, parts = len(SIGNATURE), {}
    while at < len(content):
        (length,), kind = struct.unpack(">I", content[at : at + 4]), content[at + 4 : at + 8]
        body = content[at + 8 : at + 8 + length]
        assert struct.unpack(">I", content[at + 8 + length : at + 12 + length]) == (zlib.crc32(kind + body),)
        parts[kind] = body
        at += 12 + length
    assert [*parts] == [b"IHDR", b"IDAT", b"IEND"]
    width, height, depth, color, *rest = struct.unpack(">IIBBBBB", parts[b"IHDR"])
    assert (depth, color, rest) == (8, 2, [0, 0, 0])
    rows = zlib.decompress(parts[b"IDAT"])
    lines = [rows[i : i + 1 + 3 * width] for i in range(0, len(rows), 1 + 3 * width)]
    assert {line[0] for line in lines} == {0}
    return width, height, [line[1:] for line in lines]


def test_a_picture_is_a_png() -> None:
    canvas = MAP.canvas()
    width, height, rows = opened(canvas.png())
    assert (width, height) == (canvas.width, canvas.height)
    for x, y in ((0, 0), (width // 2, height // 2), (width - 30, height - 20)):
        assert color_at(rows[y], x) == canvas.pixel(x, y)
    assert canvas.png() == MAP.canvas().png(), "the same map, the same bytes"


def color_at(row: bytes, x: int) -> Color:
    red, green, blue = row[3 * x : 3 * x + 3]
    return red, green, blue


def test_cells_have_their_colors_and_marks() -> None:
    canvas = MAP.canvas()
    left, top = canvas.width - 12 - 3 * CELL, canvas.height - 12 - 2 * CELL
    for row in range(2):
        for column in range(3):
            x, y = left + column * CELL, top + row * CELL
            mark = MAP.marks.get((row, column))
            assert canvas.pixel(x, y) == (MARKS[mark] if mark else color_of(VALUES[row][column]))
            assert canvas.pixel(x + 3, y + 3) == color_of(VALUES[row][column])
    weights = [sum(color_of(value)) for value in (0.0, 0.5, 0.9, 0.98, 1.0)]
    assert weights == sorted(weights, reverse=True)


def test_letters_are_drawn() -> None:
    canvas = Canvas(40, 40)
    canvas.text(1, 1, "1i", INK)
    drawn = ["".join("#" if canvas.pixel(x, y) == INK else "." for x in range(1, 12)) for y in range(1, 8)]
    assert drawn == [
        "..#....###.",
        ".##.....#..",
        "..#.....#..",
        "..#.....#..",
        "..#.....#..",
        "..#.....#..",
        ".###...###.",
    ]
    upward = Canvas(40, 40)
    upward.text(1, 30, "1i", INK, upward=True)
    assert all(
        upward.pixel(1 + row, 30 - column) == canvas.pixel(1 + column, 1 + row) for row in range(7) for column in range(11)
    )
    assert all(len(columns) == 5 and max(columns) < 128 for columns in GLYPHS.values())
    assert {*"ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_"} <= GLYPHS.keys(), "names of applications"
    assert text_width("ab") == 11


def test_what_lies_outside_is_cut_off() -> None:
    canvas = Canvas(4, 3)
    canvas.fill(-2, -2, 4, 4, INK)
    canvas.fill(3, 2, 9, 9, INK)
    canvas.fill(7, 7, 2, 2, INK)
    drawn = ["".join("#" if canvas.pixel(x, y) == INK else "." for x in range(4)) for y in range(3)]
    assert drawn == ["##..", "##..", "...#"]


def test_the_text_has_the_numbers_and_marks() -> None:
    assert [line.plain for line in MAP.lines()] == [
        "              0   1   2 ",
        "layer 0     100* 50   0 ",
        "layer 1      97  98  99!",
    ]
    assert all(len(line.plain) == MAP.width for line in MAP.lines())
    same = HeatMap("a", ["x", "y"], ["x", "y"], [[1.0, 0.0], [0.0, 1.0]])
    assert [line.plain for line in same.lines()] == ["        0   1 ", "x   0 100   0 ", "y   1   0 100 "]
    assert [percent(value) for value in (1, 0.999995, 0.98, -1e-7)] == ["100", "100", "98", "0"]
    assert percent(0.9998) == "99", "only what rounds to 1.0000 is 100"
