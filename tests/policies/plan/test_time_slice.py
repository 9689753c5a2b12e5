"""How long loading may keep the device."""

from __future__ import annotations

from blockwright.policies.plan.time_slice import SHARE, time_slice


def test_loading_makes_a_sweep_longer_by_a_part_at_most() -> None:
    assert time_slice(0.04) == 0.04 * SHARE < 0.04
    assert time_slice(0.0) == 0.0, "before the first sweep a step at a time"
