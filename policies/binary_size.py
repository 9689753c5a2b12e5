"""Byte counts as people read and write them: with a unit."""

from __future__ import annotations

import re

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_SIZE = re.compile(r"(\d[\d_]{0,29}(?:\.\d+)?)\s*([KMGT]i?B|B)?", re.IGNORECASE | re.ASCII)
_FACTORS = {"": 1, "b": 1}
_FACTORS |= {f"{letter}ib": 1 << (10 * i) for i, letter in enumerate("kmgt", 1)}
_FACTORS |= {f"{letter}b": 10 ** (3 * i) for i, letter in enumerate("kmgt", 1)}


def binary_size(amount: float) -> str:
    """Format a byte count: whole bytes, or one digit after the point: ``1.5 GiB``, ``1.0 MiB``, ``1023 B``."""
    unit = 0
    while unit < len(UNITS) - 1 and abs(float(f"{amount:.1f}" if unit else f"{amount:.0f}")) >= 1024:
        amount /= 1024
        unit += 1
    return f"{amount:.1f} {UNITS[unit]}" if unit else f"{amount:.0f} B"


def parse_size(text: str) -> int | None:
    """Return the bytes of a text such as ``2GiB``, ``1.5 GB`` or ``4096``; None for any other text."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    number, factor = match[1].replace("_", ""), _FACTORS[(match[2] or "").lower()]
    return int(float(number) * factor) if "." in number else int(number) * factor
