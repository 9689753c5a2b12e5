"""Bytes for people."""

import pytest

from blockwright.policies.binary_size import binary_size, parse_size


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), ((1 << 20) - 1, "1.0 MiB"), (3 << 30, "3.0 GiB"),
        (2_000_000_000_000, "1.8 TiB"), (5 << 50, "5120.0 TiB"), (-1536, "-1.5 KiB"),
    ],
)  # fmt: skip
def test_units(amount: int, text: str) -> None:
    assert binary_size(amount) == text


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("0", 0), (" 4096 ", 4096), ("2GiB", 2 << 30), ("1.5 gib", 3 << 29), ("2GB", 2_000_000_000), ("1_000 kB", 1_000_000),
        ("7B", 7), ("9007199254740993", (1 << 53) + 1), ("", None), ("GiB", None), ("-1", None), ("2 giga", None),
        ("1e9", None), ("9" * 5000, None), ("\u0663", None),
    ],
)  # fmt: skip
def test_written_sizes(text: str, amount: int | None) -> None:
    assert parse_size(text) == amount
