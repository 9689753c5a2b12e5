"""Pipelines in a simulated cluster: what they cost, what links add, and what is forecast for them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blockwright.policies.memory.packed_tensor import PackedTensor, WantedComponent
from blockwright.policies.plan.coefficients import Coefficients
from blockwright.policies.prediction.instance import IDLE
from blockwright.policies.prediction.pipeline_instance import PipelineInstance
from blockwright.policies.sweep.events import ComponentsWanted
from blockwright.simulator.description import DescriptionError, DescriptionSource, Scenario, scenario
from blockwright.simulator.devices import devices
from blockwright.simulator.instances import InstanceMaker
from blockwright.simulator.simulation import ClusterSimulation
from blockwright.simulator.workload import WorkloadRequest

COSTS = Coefficients(base=0.01, read=0.02, token=0.001)


def described(*, stages: int = 2, latency: float = 0.0, bandwidth: float = 0.0, count: int = 1, **more: Any) -> Scenario:
    table = {
        "workload": {"arrivals": "log"},
        "models": [{"name": "m", "kv_bytes": 16, "parameters": 1000, "hidden_bytes": 100, "context": 400}],
        "instances": [
            {"name": "i", "count": count, "stages": stages, "profile": "p", "blocks": 100, "page_size": 4, "max_rows": 8}
        ],
        "links": {"latency": latency, "bandwidth": bandwidth},
        **more,
    }
    return scenario(table, DescriptionSource(Path("test.toml"), ""))


def run(described: Scenario, arrivals: list[WorkloadRequest]) -> ClusterSimulation:
    simulation = ClusterSimulation(described, [COSTS], arrivals)
    simulation.run()
    assert not any(request.failed for request in simulation.requests)
    for instance in simulation.instances:
        for machine in getattr(instance, "machines", {}).values():
            machine.state.check()
            assert not machine.open
    return simulation


def test_each_device_takes_its_part_of_the_model_and_links_add_their_time() -> None:
    """A prompt of 5 tokens and an answer of 3, alone: three passes of both devices."""
    alone = [WorkloadRequest(0, 0.0, "m", 5, 3)]
    whole = run(described(stages=1), alone).requests[0].ended
    prompt, token = 0.01 + 0.02 + 0.005, 0.01 + 0.02 + 0.001
    assert whole == pytest.approx(prompt + 2 * token)
    halves = prompt + 0.01 + 2 * (token + 0.01)
    assert run(described(), alone).requests[0].ended == pytest.approx(halves)
    # a lease is asked for and granted, then each pass sends hidden states there and a token back
    linked = run(described(latency=0.003), alone).requests[0].ended
    assert linked == pytest.approx(halves + 0.003 * (2 + 2 * 3))
    narrow = run(described(latency=0.003, bandwidth=1e5), alone).requests[0].ended
    assert narrow == pytest.approx(linked + (5 + 1 + 1) * 100 / 1e5)


def test_parameters_that_come_before_the_first_sequence_leave_no_device_idle_for_it() -> None:
    """A pipeline that begins again after a death, with no request left for it."""
    spec = described()
    spec = replace(spec, instances=(replace(spec.instances[0], blocks=0, memory=8000, memory_chunk=32),))
    instance, _ = InstanceMaker(spec, [COSTS], loaded=False).make(0)
    assert isinstance(instance, PipelineInstance)
    devices(instance)["i.1"].hold(3)
    wanted = [WantedComponent(b"layer", [PackedTensor(b"layer", 500)])]
    assert instance.change_parameters("i.1", ComponentsWanted(1, "m", wanted), 1.0) is None
    assert instance.due < IDLE, "memory is mapped"
    while instance.due < IDLE:
        assert instance.finish() == []
    assert instance.bubbles == 0.0


def test_stages_work_at_the_same_time() -> None:
    """Many requests take less than twice the time of the slowest device, and more memory needs more devices."""
    arrivals = [WorkloadRequest(n, 0.001 * n, "m", 8, 20) for n in range(16)]
    two, one = run(described(), arrivals), run(described(stages=1), arrivals)
    assert two.instances[0].total_blocks == one.instances[0].total_blocks == 100
    assert two.instances[0].busy > 1.5 * max(request.ended for request in two.requests), "both were busy most of the time"
    assert two.digest() == run(described(), arrivals).digest()


@pytest.mark.parametrize("latency", [0.0, 0.004])
def test_a_forecast_is_what_then_happens(latency: float) -> None:
    """Into the middle of what others do, with hidden states and messages on their way."""
    arrivals = [WorkloadRequest(n, 0.05 * n, "m", 6 + n, 10 + 3 * n, expected=10 + 3 * n) for n in range(6)]
    arrivals.append(WorkloadRequest(6, 0.333, "m", 9, 12, expected=12))
    log: list[dict[str, Any]] = []
    dispatch = {"dispatch": {"policy": "predicted-latency"}}
    simulation = ClusterSimulation(described(latency=latency, bandwidth=1e6, **dispatch), [COSTS], arrivals, note=log.append)
    simulation.run()
    (forecast,) = [entry["loads"][0][0] for entry in log if entry["what"] == "dispatched" and entry["request"] == 6]
    last = simulation.requests[6]
    assert forecast == pytest.approx(last.ended - last.demand.at, rel=1e-9)


def test_of_two_pipelines_the_one_that_is_free_is_taken() -> None:
    arrivals = [
        WorkloadRequest(0, 0.0, "m", 50, 90),
        WorkloadRequest(1, 0.1, "m", 50, 90),
        WorkloadRequest(2, 0.2, "m", 5, 5),
    ]
    for policy in ("least-work", "predicted-latency"):
        simulation = run(described(count=2, dispatch={"policy": policy}), arrivals)
        assert simulation.requests[0].instance != simulation.requests[1].instance


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kv_bytes": 20}, "kv_bytes is 20; give a multiple of 8, for 2 stages"),
        ({"parameters": 0}, "parameters is missing; devices of a pipeline"),
        ({"head": 1001}, "parameters is less than embedding and head"),
    ],
)
def test_what_cannot_be_shared_is_refused(change: dict[str, Any], says: str) -> None:
    model = {"name": "m", "kv_bytes": 16, "parameters": 1000, **change}
    with pytest.raises(DescriptionError, match=says.replace("(", r"\(")):
        described(models=[model])
