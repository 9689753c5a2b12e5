"""Instances of a simulated cluster come when they are needed, take requests only while they are active, and go again."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from blockwright.simulator.description import ProvisioningSpec
from blockwright.simulator.provisioning import InstanceChange, Provisioner
from blockwright.simulator.simulation import ClusterSimulation
from blockwright.simulator.workload import WorkloadRequest
from blockwright.tests.parts import some

from .clusters import described, run

BURST = [WorkloadRequest(n, n * 0.04, "m0", 20, 30) for n in range(60)]  # more than one instance can take
LULL = [WorkloadRequest(60 + n, 20.0 + n, "m0", 4, 4) for n in range(30)]


def simulated(mode: str, *, jumps: bool = True, **spec: Any) -> tuple[ClusterSimulation, list[dict[str, Any]]]:
    table = {"mode": mode, "limit": 1.0, "start": 1, "most": 3, "window": 5.0, **spec}
    policy = {"policy": "predicted-latency" if mode == "preemptive" else "round-robin"}
    return run(described(instances={"count": 4}, provisioning=table, dispatch=policy), arrivals=BURST + LULL, jumps=jumps)


MODES = product(("preemptive", "relief"), (0.0, 0.7))


@pytest.mark.parametrize(("mode", "cold_start"), some(MODES, ("preemptive", 0.7), ("relief", 0.0)))
def test_instances_come_and_go(mode: str, cold_start: float) -> None:
    simulation, log = simulated(mode, cold_start=cold_start)
    assert log == simulated(mode, cold_start=cold_start, jumps=False)[1]
    assert not any(request.failed for request in simulation.requests)
    active = {"i-0"}
    at = dict[str, float]()
    answered = 0
    for entry in log:
        name, what = entry["instance"], entry["what"]
        if what == "starting":
            at[name] = entry["at"]
            assert "the limit is 1 s" in entry["why"]
        elif what == "active":
            assert entry["at"] == pytest.approx(at[name] + cold_start)
            active.add(name)
        elif what == "draining":
            active.remove(name)
        elif what == "dispatched":
            assert name in active
        elif what == "finished":
            answered += 1
        assert len(active) <= 3
    assert (answered, active) == (90, {"i-0"}), "in the lull one is enough"
    assert simulation.provisioner.peak in (2, 3)
    assert 1.0 < simulation.provisioner.mean(log[-1]["at"]) < 3.0


def test_a_request_that_starts_an_instance_at_once_is_sent_there() -> None:
    _, log = simulated("preemptive")
    first = next(n for n, entry in enumerate(log) if entry["what"] == "active")
    asked = next(entry for entry in log[first:] if entry["what"] == "dispatched")
    assert (asked["instance"], asked["at"]) == (log[first]["instance"], log[first]["at"])
    *others, last = asked["loads"]
    assert min(load[0] for load in others) >= 1.0
    assert (asked["compared"][len(others) :], last) == ([asked["instance"]], None), "nobody forecast for what was not there"


def test_who_works_while_it_is_drained_finishes_and_is_paid_for_until_then() -> None:
    spec = ProvisioningSpec(mode="relief", limit=1.0, start=1, most=2, window=5.0)
    made = Provisioner(spec, ["a", "b", "c"])
    assert [change.what for change in made.tick(0.0, measured=2.0)] == ["starting", "active"]
    for place in (0, 0, 1):
        made.dispatched(place)
    assert [(change.what, change.place) for change in made.tick(6.0, measured=0.1)] == [("draining", 1)]
    assert made.active == [0]
    assert made.ended(0, 7.0) is None
    assert made.ended(1, 8.0) == InstanceChange(8.0, "stopped", 1)
    assert (made.mean(10.0), made.peak) == (1.8, 2)


def test_always_the_same() -> None:
    simulation, log = simulated("off", start=2)
    assert {entry["instance"] for entry in log} == {"i-0", "i-1"}
    assert (simulation.provisioner.peak, simulation.provisioner.mean(9.0)) == (2, 2.0)
