"""The benchmark of a burst runs every system and ablation, and lookahead batches idle less than equal token counts."""

from __future__ import annotations

import overload
import pytest


@pytest.mark.parametrize("system", [*overload.SYSTEMS, *overload.ABLATIONS])
def test_every_system_is_simulated(system: str) -> None:
    demands = overload.Load([(300, 30), (900, 12)], 4.0, shorter=60.0).demands(1)
    changes = overload.SYSTEMS.get(system) or overload.ABLATIONS.get(system, {})
    found = overload.simulate(system, changes, demands, 2)
    assert 0 < found["ttft_p50"] <= found["ttft_p99"]
    assert ("drops" in found) == (system not in ("preempt", "pipelines"))


def test_the_quiet_load_is_what_memory_is_to_be_used() -> None:
    """Twice the share is less than twice the rate: what runs slows all down."""
    rates = [overload.rate_of([(1000, 200)], share) for share in (0.3, 0.6)]
    assert rates[0] < rates[1] < 2 * rates[0]
    load = overload.Load([(10, 5)], 20.0)
    times = [demand.at for demand in load.demands(3)]
    assert sum(40 <= at < 70 for at in times) == pytest.approx(2 * 20 * 30, rel=0.1)
    assert sum(at < 40 for at in times) == pytest.approx(20 * 40, rel=0.1)


def test_lookahead_batches_idle_least() -> None:
    for stages in (2, 4):
        found = overload.look_ahead(stages, 12)
        assert found[overload.OURS]["seconds"] < found["token-count"]["seconds"]
        assert found[overload.OURS]["idle"] < min(found["token-count"]["idle"], found["greedy"]["idle"])
