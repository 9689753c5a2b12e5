"""Bytes for people, with a decimal unit, as disks and models are sold."""

from __future__ import annotations


def decimal_size(nbytes: int) -> str:
    """Bytes for people."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if nbytes >= scale:
            return f"{nbytes / scale:.3g} {unit}"
    return f"{nbytes} B"
