"""Bytes as people read them: with a binary unit."""

from __future__ import annotations

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def binary_size(amount: float) -> str:
    """One digit after the point, but for whole bytes: ``1.5 GiB``, ``1.0 MiB``, ``1023 B``."""
    unit = 0
    while unit < len(UNITS) - 1 and abs(float(f"{amount:.1f}" if unit else f"{amount:.0f}")) >= 1024:
        amount /= 1024
        unit += 1
    return f"{amount:.1f} {UNITS[unit]}" if unit else f"{amount:.0f} B"
