"""Instances of a simulated cluster come when they are needed, take requests only while they are active, and go again."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from blockwright.simulator.description import ProvisioningSpec
from blockwright.simulator.provisioning import InstanceChange, PaidInstances
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


STEADY = [WorkloadRequest(60 + n, 6.0 + n * 0.1, "m0", 4, 20) for n in range(100)]  # each instance always has some


@pytest.mark.parametrize("grace", [30.0, 0.01])
def test_who_works_while_it_is_drained_ends_in_its_grace_or_elsewhere(grace: float) -> None:
    table = {"mode": "relief", "limit": 1.6, "start": 1, "most": 2, "window": 2.0, "grace": grace}
    spec = described(instances={"count": 2}, provisioning=table, dispatch={"policy": "round-robin"})
    simulation, log = run(spec, arrivals=[*BURST, *STEADY])
    assert not any(request.failed for request in simulation.requests)
    assert all(request.ended > request.first > 0 for request in simulation.requests)
    draining, stopped = (next(e for e in log if e["what"] == what) for what in ("draining", "stopped"))
    assert stopped["instance"] == draining["instance"] == "i-1"
    there = [e["at"] for e in log if e["what"] == "finished" and e["instance"] == "i-1"]
    moved = [request for request in simulation.requests if request.restarts]
    if grace > 1:
        assert (max(there), moved) == (stopped["at"], [])
        assert stopped["at"] > draining["at"]
    else:
        assert (stopped["at"], len(moved)) == (pytest.approx(draining["at"] + grace), 1)
        assert moved[0].instance == "i-0"


def test_the_account_of_paid_instances() -> None:
    paid = PaidInstances(ProvisioningSpec(mode="relief", limit=1.0, start=1, most=2, window=5.0), ["a", "b", "c"])
    assert (paid.names, paid.least, paid.peak) == (["a", "b"], 1, 1)
    for what, at in (("starting", 0.0), ("active", 0.0), ("draining", 6.0), ("stopped", 8.0)):
        assert paid.note(what, 1, at) == InstanceChange(at, what, 1)
    assert (paid.mean(10.0), paid.peak, paid.starting) == (1.8, 2, set())


def test_always_the_same() -> None:
    simulation, log = simulated("off", start=2)
    assert {entry["instance"] for entry in log} == {"i-0", "i-1"}
    assert (simulation.provisioner.peak, simulation.provisioner.mean(9.0)) == (2, 2.0)
