"""The sweep benchmark measures what it says: 256 rows that all decode."""

from __future__ import annotations

import sweep


def test_every_measured_sweep_decodes_all_rows() -> None:
    state, seconds = sweep.decoding(), dict[str, list[float]]()
    generated = state.counters["generated_tokens"]
    for _ in range(3):
        sweep.sweep(state, seconds)
    assert state.counters["generated_tokens"] == generated + 3 * sweep.ROWS
    assert {name: len(values) for name, values in seconds.items()} == {"plan": 3, "commit": 3}
    state.check()
