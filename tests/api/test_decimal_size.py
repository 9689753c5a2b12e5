"""Sizes in decimal units."""

from __future__ import annotations

from blockwright.api.decimal_size import decimal_size


def test_sizes_for_people() -> None:
    assert [decimal_size(n) for n in (7, 86_272, 21_000_000, 3_210_000_000)] == ["7 B", "86.3 kB", "21 MB", "3.21 GB"]
