"""The benchmark of deltas measures what it says: sweeps with the deltas of all tenants, and the bytes that they add."""

from __future__ import annotations

import deltas


def test_sweeps_and_bytes_of_a_small_model_with_all_tenants() -> None:
    found = dict(deltas.measure("tiny/f32", 1, 1, 1))
    assert list(found) == [f"tiny/f32/{targets}" for targets in deltas.TARGETS]
    assert min(min(metrics.values()) for metrics in found.values()) > 0
    bytes_ratios = [metrics["bytes_ratio"] for metrics in found.values()]
    assert 1 < bytes_ratios[0] < bytes_ratios[1] < bytes_ratios[2]
