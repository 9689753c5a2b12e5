"""Requests that begin on an equivalent model while their own is loaded on demand, by the code of the live cluster."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from blockwright.simulator.description import DescriptionError
from blockwright.simulator.simulation import ClusterSimulation
from blockwright.simulator.workload import WorkloadRequest
from blockwright.tests.claims import claim

from .clusters import described, run
from .test_control import BODY, PAGE, sound
from .test_simulation import rounded

LOAD = 0.2  # seconds; the answer is far from its end then


def cluster(*, rooms: int = 2, equivalents: bool = True, **more: Any) -> Any:
    """Three models of which an instance holds two; "m1" and "m2" are on demand, and "m0" may serve in their place."""
    sizes = {"kv_bytes": 8, "context": 150, "parameters": BODY, "hidden_bytes": 4}
    models = [{"name": f"m{n}", **sizes, "on_demand": n > 0} for n in range(3)]
    for model in models[1:] if equivalents else ():
        model["equivalents"] = ["m0"]
    kind = {"count": 1, "blocks": 0, "memory": rooms * BODY + 60 * PAGE, "memory_chunk": PAGE}
    return described(models=models, instances=kind, loading={"disk": BODY / LOAD}, **more)


def requests(*wanted: tuple[float, str], output: int = 90) -> list[WorkloadRequest]:
    return [WorkloadRequest(n, at, model, 8, output) for n, (at, model) in enumerate(wanted)]


def dispatched(log: list[dict[str, Any]]) -> list[tuple[int, str]]:
    """Return the request and the equivalent of each attempt."""
    return [(one["request"], one.get("serves", "")) for one in log if one["what"] == "dispatched"]


def check(simulation: ClusterSimulation) -> None:
    sound(simulation)
    assert simulation.policy is not None
    assert not simulation.policy._bridges._on  # type: ignore[attr-defined]


@claim(
    "The simulator has requests begin on an equivalent while their model is loaded, as a live cluster does", of="adaptive"
)
def test_a_request_begins_on_an_equivalent_and_goes_over_once_its_model_is_loaded() -> None:
    simulation, log = run(cluster(), arrivals=requests((1.0, "m1")))
    check(simulation)
    assert dispatched(log) == [(0, "m0"), (0, "")]
    (request,) = simulation.requests
    assert request.first < 1.0 + LOAD / 2, "its first token came before the load ended"
    (switch,) = [one for one in log if one["what"] == "switched"]
    assert 1.0 + LOAD <= switch["at"] <= 1.0 + LOAD + 0.2
    assert (request.serves, request.switches) == ("", 1)
    (waited,) = run(cluster(equivalents=False), arrivals=requests((1.0, "m1")))[0].requests
    assert waited.first > 1.0 + LOAD


def test_a_request_that_has_nearly_ended_stays_and_so_does_one_that_may_not_switch() -> None:
    for scenario, output in ((cluster(), 3), (cluster(dispatch={"switches": 0}), 90)):
        simulation, log = run(scenario, arrivals=requests((1.0, "m1"), output=output))
        check(simulation)
        assert [one for one in log if one["what"] == "switched"] == []
        assert simulation.requests[0].serves == "m0"


@claim("A simulated request waits for its model where that needs the memory of the equivalent", of="adaptive")
def test_the_equivalent_gives_way_for_the_load() -> None:
    simulation, log = run(cluster(rooms=1), arrivals=requests((1.0, "m1")))
    check(simulation)
    (request,) = simulation.requests
    assert request.serves == ""
    assert dispatched(log) == [(0, "m0"), (0, "")]
    assert request.restarts == 1
    assert request.ended > 1.0 + LOAD


def test_jumps_change_nothing() -> None:
    wanted = requests((1.0, "m1"), (1.1, "m0"), (1.3, "m2"), (2.0, "m1"))
    (fast, one), (slow, other) = (run(cluster(), arrivals=wanted, jumps=jumps) for jumps in (True, False))
    assert rounded(one) == rounded(other)
    check(fast)
    check(slow)


@pytest.mark.parametrize("seed", range(8))
def test_every_request_ends(seed: int) -> None:
    draw = Random(seed)
    at, wanted = 0.0, []
    for _ in range(25):
        at += draw.choice([0.01, 0.1, 1.0])
        wanted.append((at, draw.choice(["m0", "m1", "m2"])))
    scenario = cluster(rooms=draw.choice([1, 2]), dispatch={"switches": draw.choice([0, 1, 2])}, limits={"latency": 0.01})
    simulation, log = run(scenario, arrivals=requests(*wanted, output=draw.choice([5, 40])))
    check(simulation)
    assert any(serves for _, serves in dispatched(log))


def test_free_switches_are_refused_by_name() -> None:
    with pytest.raises(
        DescriptionError, match="free_switches is given, and models are on_demand; leave out one or the other"
    ):
        cluster(dispatch={"free_switches": True})
