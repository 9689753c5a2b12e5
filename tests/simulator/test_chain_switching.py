"""Running requests that go over to an equivalent's chain, as on a live cluster."""

from __future__ import annotations

from typing import Any

import pytest

from blockwright.policies.requests.chain_switch import HOLD
from blockwright.simulator.simulation import ClusterSimulation
from blockwright.simulator.workload import WorkloadRequest
from blockwright.tests.claims import claim

from .clusters import described, run
from .test_simulation import rounded
from .test_variants import PLACES, models

ROOMY = {"blocks": 2000, "max_rows": 2, "chunk_size": 16}


def left_behind(*, jumps: bool = True, instances: dict[str, Any] | None = None, **dispatch: Any) -> Any:
    """Requests whose own instance is behind, since the other one looked busy and ended early."""
    made = [{**one, "context": 1000} for one in models("m1")]
    scenario = described(models=made, entries=PLACES, instances={**ROOMY, **(instances or {})}, dispatch=dispatch)
    early = [WorkloadRequest(n, 0.0, "m1", 8, 20, allowed=900) for n in range(3)]
    late = [WorkloadRequest(n, n * 1e-3, "m0", 100, 200) for n in range(3, 9)]
    return run(scenario, arrivals=[*early, *late], jumps=jumps)


def last(simulation: ClusterSimulation) -> float:
    return max(one.ended for one in simulation.requests)


@claim("The simulator switches running requests by the rules of a live gateway", of="adaptive")
def test_a_request_goes_over_after_a_second_if_it_gains_a_third() -> None:
    simulation, log = left_behind()
    switched = [one for one in log if one["what"] == "switched"]
    freed = min(one.ended for one in simulation.requests if one.demand.model == "m1")
    assert switched
    for one in switched:
        assert one["from"] == "left"
        assert 3 * one["go"] < 2 * one["stay"]
        assert one["at"] >= freed + HOLD, "until then the other route had as much work ahead"
    gone = {one["request"] for one in switched}
    assert gone == {n for n, one in enumerate(simulation.requests) if one.serves == "m1"}
    assert simulation.variants() == {"requests": len(gone), "switches": len(switched)}
    assert not any(one.failed for one in simulation.requests)
    stayed, _ = left_behind(switches=0)
    assert last(simulation) < last(stayed)
    assert stayed.variants() == {"requests": 0, "switches": 0}


def test_the_latest_requests_go_first_and_no_more_often_than_allowed() -> None:
    simulation, log = left_behind(switches=1)
    order = [one["request"] for one in log if one["what"] == "switched"]
    assert order[0] == 8
    assert len(order) == len({*order})
    assert max(one.switches for one in simulation.requests) == 1


def test_jumps_change_nothing_about_switches() -> None:
    (_, fast), (_, slow) = left_behind(), left_behind(jumps=False)
    assert any(one["what"] == "switched" for one in fast)
    assert rounded(fast) == rounded(slow)


def running(**dispatch: Any) -> Any:
    """The same with room for all at once, so that those who go over have KV."""
    return left_behind(instances={"max_rows": 16, "sweep_tokens": 64}, **dispatch)


def test_kv_is_computed_again_on_the_other_chain_unless_switches_are_free() -> None:
    (costly, log), (free, _) = running(), running(free_switches=True)
    assert [one for one in log if one["what"] == "switched"]
    found = [one.instances[1].state.counters["shared_pages"] for one in (costly, free)]
    assert found[0] == 0 < found[1]
    for instance in free.instances:
        assert instance.state.parts.memory.pages is not None
        instance.state.check()
    assert last(free) == pytest.approx(min(last(free), last(costly)))
