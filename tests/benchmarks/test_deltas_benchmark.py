"""The benchmark of deltas measures what it says: sweeps with the deltas of all tenants, and the bytes that they add."""

from __future__ import annotations

import deltas


def test_sweeps_and_bytes_of_a_small_model_with_all_tenants() -> None:
    few, more = (deltas.measure("tiny/f32", targets, 0.01, 1) for targets in ("qv", "all"))
    assert min(few.values()) > 0
    assert 1 < few["bytes_ratio"] < more["bytes_ratio"]
