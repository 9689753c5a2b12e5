"""Bytes for people."""

import pytest

from blockwright.policies.binary_size import binary_size


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), ((1 << 20) - 1, "1.0 MiB"), (3 << 30, "3.0 GiB"),
        (2_000_000_000_000, "1.8 TiB"), (5 << 50, "5120.0 TiB"), (-1536, "-1.5 KiB"),
    ],
)  # fmt: skip
def test_units(amount: int, text: str) -> None:
    assert binary_size(amount) == text
