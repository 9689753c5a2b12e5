"""Durations for people."""

from __future__ import annotations


def duration(seconds: float | None) -> str:
    """Return a duration like ``1 h 05 min``, ``3 min 20 s`` or ``40 s``; empty if unknown."""
    if seconds is None:
        return ""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
