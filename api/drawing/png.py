"""PNG files from rectangles and short texts, by zlib alone: for viewers that show no SVG.

Coordinates are pixels from the upper left corner. The output is deterministic. Letters are shown in capitals.
"""

from __future__ import annotations

import struct
import zlib

Color = tuple[int, int, int]

SIGNATURE = b"\x89PNG\r\n\x1a\n"
GLYPH_WIDTH, GLYPH_HEIGHT = 5, 7
ADVANCE = GLYPH_WIDTH + 1  # from one letter to the next
# characters, and the columns of each from the left: a bit for each pixel, the lowest bit at the top
_FONT = """
0 3e5149453e|1 00427f4000|2 4261514946|3 2141454b31|4 1814127f10|5 2745454539|6 3c4a494930|7 0171090503|8 3649494936|
9 064949291e|A 7e1111117e|B 7f49494936|C 3e41414122|D 7f4141221c|E 7f49494941|F 7f09090901|G 3e4149497a|H 7f0808087f|
I 00417f4100|J 2040413f01|K 7f08142241|L 7f40404040|M 7f020c027f|N 7f0408107f|O 3e4141413e|P 7f09090906|Q 3e4151215e|
R 7f09192946|S 4649494931|T 01017f0101|U 3f4040403f|V 1f2040201f|W 3f4038403f|X 6314081463|Y 0708700807|Z 6151494543|
. 0060600000|, 0050300000|: 0036360000|- 0808080808|_ 4040404040|% 2313086462|/ 2010080402|( 001c224100|) 0041221c00|
+ 08083e0808|= 1414141414|< 0814224100|> 0041221408|* 14083e0814|! 00005f0000"""
GLYPHS = {entry[0]: bytes.fromhex(entry[2:]) for entry in _FONT.replace("\n", "").split("|")}


class Canvas:
    """A picture of ``width`` x ``height`` pixels, filled with one color at first."""

    def __init__(self, width: int, height: int, color: Color = (255, 255, 255)) -> None:
        self.width, self.height = width, height
        self._rows = [bytearray(bytes(color) * width) for _ in range(height)]

    def fill(self, x: int, y: int, width: int, height: int, color: Color) -> None:
        """Fill a rectangle; what lies outside the picture is cut off."""
        first, last = max(x, 0), min(x + width, self.width)
        for row in self._rows[max(y, 0) : max(y + height, 0)]:
            row[3 * first : 3 * last] = bytes(color) * max(last - first, 0)

    def outline(self, x: int, y: int, width: int, height: int, color: Color, thick: int = 2) -> None:
        """Draw the border of a rectangle, inside it."""
        for top in (y, y + height - thick):
            self.fill(x, top, width, thick, color)
        for left in (x, x + width - thick):
            self.fill(left, y, thick, height, color)

    def text(self, x: int, y: int, content: str, color: Color, *, upward: bool = False) -> None:
        """Write a line whose upper left corner is given; ``upward``: it runs up from its lower left corner instead."""
        for place, char in enumerate(content.upper()):
            for column, bits in enumerate(GLYPHS.get(char, bytes(GLYPH_WIDTH))):
                for row in range(GLYPH_HEIGHT):
                    if bits >> row & 1:
                        along = place * ADVANCE + column
                        left, top = (x + row, y - along) if upward else (x + along, y + row)
                        self.fill(left, top, 1, 1, color)

    def pixel(self, x: int, y: int) -> Color:
        red, green, blue = self._rows[y][3 * x : 3 * x + 3]
        return red, green, blue

    def png(self) -> bytes:
        """Return the file: 8 bits of red, green and blue, no filters."""
        header = struct.pack(">IIBBBBB", self.width, self.height, 8, 2, 0, 0, 0)
        content = zlib.compress(b"".join(b"\0" + row for row in self._rows), 9)
        return SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", content) + _chunk(b"IEND", b"")


def text_width(content: str) -> int:
    """Return the pixels that a line takes."""
    return max(len(content) * ADVANCE - 1, 0)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
