"""The sweep benchmark measures what it says: rows that all decode, each of which takes one page in a window."""

from __future__ import annotations

import sweep

from blockwright.policies.plan.sweep_plan import SweepResult


def test_every_measured_sweep_decodes_all_rows() -> None:
    state = sweep.decoding(48, 4 << 30)
    generated, free = state.counters["generated_tokens"], state.parts.memory.free_bytes
    for _ in range(sweep.PAGE):
        plan = state.plan(0.0)
        assert len(plan.sample) == 48
        assert plan.tokens == 48
        state.commit(plan, SweepResult(plan.number, [7] * 48), 0.0)
    assert state.counters["generated_tokens"] == generated + 48 * sweep.PAGE
    assert free - state.parts.memory.free_bytes > 0
    state.check()


def test_the_parts_of_a_sweep_and_those_at_once_are_timed() -> None:
    found = sweep.sweeps(4, 2)
    assert sorted(found) == ["commit_us", "plan_us", "sweep_us"]
    assert min(found.values()) > 0
    assert sweep.jumps(2)["sweep_us"] > 0
    assert sweep.publications(2)["p50_us"] > 0
