"""A simulated cluster: jumping equals stepping, nobody is lost, equal seeds give equal logs."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockwright.simulator.description import DISPATCH
from blockwright.simulator.instances import NoCapacityError, sweep_configs
from blockwright.simulator.simulation import FEWEST_SAMPLES, SAMPLES, sample_count
from blockwright.simulator.workload import WorkloadRequest
from blockwright.tests.claims import claim
from blockwright.tests.parts import examples

from .clusters import described, run

HEURISTICS = [name for name in DISPATCH if not name.startswith("predicted") and name != "ours"]


def rounded(log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Times of a stretch are sums in another order than times of single sweeps."""
    return [{**entry, "at": round(entry["at"], 6)} for entry in log]


@claim("Simulated jumps equal single steps, and a seed gives the same outcome everywhere", of="simulator")
@given(
    seed=st.integers(0, 1000), ahead=st.booleans(), policy=st.sampled_from(HEURISTICS), models=st.sampled_from([1, 2]),
    blocks=st.sampled_from([31, 60, 200]), cache=st.booleans(), latency=st.sampled_from([0.0, 0.015]),
    timeout=st.sampled_from([0.0, 0.9]), rate=st.sampled_from([5.0, 40.0, 1000.0]), allowed=st.sampled_from([0, 60]),
)  # fmt: skip
@examples(40)
def test_jumping_equals_stepping_event_for_event(
    seed: int,
    ahead: bool,
    policy: str,
    models: int,
    blocks: int,
    cache: bool,
    latency: float,
    timeout: float,
    rate: float,
    allowed: int,
) -> None:
    """Decisions, their grounds (the loads that were compared) and times."""
    scenario = described(
        seed=seed, models=models, workload={"rate": rate, "count": 40, "max_tokens": allowed},
        instances={"blocks": blocks, "prefix_cache": cache, "ahead": ahead}, dispatch={"policy": policy},
        limits={"latency": latency, "request_timeout": timeout},
    )  # fmt: skip
    (jumping, one), (stepping, other) = run(scenario), run(scenario, jumps=False)
    assert rounded(one) == rounded(other)
    assert [i.sweeps for i in jumping.instances] == [i.sweeps for i in stepping.instances]
    assert all(request.ended >= request.demand.at for request in jumping.requests), "a request was lost"


def test_who_comes_in_the_middle_of_a_jump_cuts_it_short() -> None:
    """A sequence that decodes 100 tokens alone is joined in a sweep near its 50th."""
    first, second = WorkloadRequest(0, 0.0, "m0", 8, 100), WorkloadRequest(1, 0.505, "m0", 8, 10)
    for ahead, sweeps_later in ((False, 1), (True, 2)):
        scenario = described(instances={"count": 1, "ahead": ahead})
        simulation, log = run(scenario, arrivals=[first, second])
        started = next(entry["at"] for entry in log if entry["what"] == "started" and entry["request"] == 1)
        answered = simulation.requests[1].first - 0.505
        sweep = 0.01 + 1e-4 + 58e-6
        assert simulation.requests[0].preemptions == 0
        assert answered == pytest.approx(sweeps_later * sweep + 0.5 * sweep, abs=0.6 * sweep)
        assert 0 <= started - 0.505 <= sweep


@pytest.mark.parametrize("ahead", [False, True])
def test_forecasts_of_two_instances_drawn_at_random(ahead: bool) -> None:
    """They bring instances up to the present in the middle of a jump, and answers come sooner than with none."""
    latency: dict[str, float] = {}
    for policy in ("predicted-latency", "random"):
        scenario = described(
            seed=5, workload={"rate": 60.0, "count": 90}, dispatch={"policy": policy, "choices": 2},
            instances={"blocks": 60, "count": 3, "ahead": ahead, "prefix_cache": False},
        )  # fmt: skip
        (jumping, one), (_, other) = run(scenario), run(scenario, jumps=False)
        assert [e for e in rounded(one) if e["what"] != "dispatched"] == [
            e for e in rounded(other) if e["what"] != "dispatched"
        ]
        latency[policy] = sum(request.ended - request.demand.at for request in jumping.requests)
    assert latency["predicted-latency"] < latency["random"]


def test_a_stop_token_ends_an_answer_before_its_limit() -> None:
    """The machine does not know it beforehand: with a plan in hand the row is in one sweep more."""
    arrivals = [WorkloadRequest(0, 0.0, "m0", 8, 10, allowed=50)]
    for ahead in (False, True):
        simulation, log = run(described(instances={"count": 1, "ahead": ahead}), arrivals=arrivals)
        ended = simulation.requests[0].ended
        assert simulation.instances[0].sweeps == 10 + ahead
        assert log[-1]["what"] == "finished"
        assert ended == pytest.approx(0.01 + 8e-4 + 9 * (0.01 + 1e-4) + sum(1e-6 * n for n in range(9, 18)))


def test_memory_that_runs_out_preempts() -> None:
    simulation, log = run(described(instances={"blocks": 32}, workload={"rate": 1000.0}))
    assert sum(request.preemptions for request in simulation.requests) > 0
    assert sum(entry["what"] == "preempted" for entry in log) == sum(r.preemptions for r in simulation.requests)
    assert sum(instance.preemptions for instance in simulation.instances) == sum(r.preemptions for r in simulation.requests)
    assert not any(request.failed for request in simulation.requests)


def test_a_request_that_cannot_be_served_is_refused_with_the_reason() -> None:
    arrivals = [
        WorkloadRequest(0, 0.0, "m0", 8, 200),
        WorkloadRequest(1, 0.0, "m0", 100, 30),
        WorkloadRequest(2, 0.1, "m0", 8, 8),
    ]
    simulation, _ = run(described(instances={"blocks": 30}), arrivals=arrivals)
    assert [bool(request.failed) for request in simulation.requests] == [True, True, False]
    assert "more than the 150" in simulation.requests[0].failed
    assert "memory for 120" in simulation.requests[1].failed


@pytest.mark.parametrize(
    ("instances", "requests", "samples"),
    [(1, 1, SAMPLES), (100, 10, SAMPLES), (1000, 10, FEWEST_SAMPLES), (1000, 20_000, 20), (1000, 10**6, SAMPLES)],
)
def test_samples_are_fewer_where_instances_are_many(instances: int, requests: int, samples: int) -> None:
    assert sample_count(instances, requests) == samples


def test_samples_go_from_the_beginning_to_the_last_arrival() -> None:
    simulation, _ = run(described(instances={"count": 500}))
    last = simulation.requests[-1].demand.at
    assert [one.at for one in simulation.samples] == pytest.approx([last * n / 24 for n in range(25)])
    assert all(len(one.memory) == 500 for one in simulation.samples)


def test_a_front_that_is_full_refuses() -> None:
    simulation, _ = run(described(limits={"max_waiting": 5}, workload={"rate": 10_000.0}))
    refused = [request for request in simulation.requests if "its limit" in request.failed]
    assert 0 < len(refused) < 56


PROGRAM = """
from blockwright.tests.simulator.clusters import described, run
for policy in ("random", "llumnix-minus-code"):
    print(run(described(seed=7, dispatch={"policy": policy, "choices": 2}, instances={"count": 5}))[0].digest())
"""


@claim("Simulated jumps equal single steps, and a seed gives the same outcome everywhere", of="simulator")
def test_equal_seeds_give_equal_outcomes_whatever_hashes_are() -> None:
    seen = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert seen[0] == seen[1]
    assert run(described(seed=7))[0].digest() == run(described(seed=7))[0].digest() != run(described(seed=8))[0].digest()


def test_shared_parameters_are_in_memory_once() -> None:
    base = {"name": "base", "kv_bytes": 8, "parameters": 8000, "context": 150}
    adapters = [{"name": f"a{n}", "shares": "base", "own": 100} for n in range(20)]
    made = described(instances={"memory": 8000 + 20 * 100 + 3200, "blocks": 0, "memory_chunk": 32}, models=[base, *adapters])
    (config,) = sweep_configs("i", made.instances[0], made.models)
    assert config.budget == 3200
    simulation, _ = run(made)
    assert not any(one.failed for one in simulation.requests)
    whole = [{**base, "name": f"m{n}"} for n in range(21)]
    with pytest.raises(NoCapacityError):
        run(described(instances={"memory": 13200, "blocks": 0, "memory_chunk": 32}, models=whole))


@claim("The simulator marks redundant cached pages by the policy of the live cluster", of="simulator")
def test_cached_pages_that_several_instances_have_are_marked_and_jumping_equals_stepping() -> None:
    scenario = described(
        redundant_pages=0.5, workload={"rate": 40.0, "count": 120},
        instances={"blocks": 60, "count": 3, "prefix_cache": True},
    )  # fmt: skip
    marked, outcomes = [], []
    for jumps in (True, False):
        tokens = [(*[n % 5 + 7] * 32, *[100 + n] * 8) for n in range(120)]
        demands = [WorkloadRequest(n, n / 40, "m0", 40, 8, tokens=tokens[n]) for n in range(120)]
        simulation, log = run(scenario, arrivals=demands, jumps=jumps)
        for instance in simulation.instances:
            instance.state.check()
        assert simulation.copies is not None
        marked.append(simulation.copies.marked)
        outcomes.append(rounded(log))
    assert outcomes[0] == outcomes[1]
    assert marked[0] == marked[1] > 20
