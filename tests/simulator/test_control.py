"""Simulated clusters under the live controller: models on demand, deaths, and the same decisions as on a live cluster."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockwright.policies.control import events
from blockwright.simulator.control_step import ControlStep
from blockwright.simulator.description import DescriptionError
from blockwright.simulator.simulation import ClusterSimulation
from blockwright.simulator.workload import WorkloadRequest
from blockwright.tests.claims import claim
from blockwright.tests.parts import examples

from .clusters import described, run

BODY = 4000  # bytes of parameters
PAGE = 8 * 4  # bytes


def three(**more: Any) -> Any:
    """Three models of which an instance holds two, with 40 pages of KV beside them."""
    sizes = {"kv_bytes": 8, "context": 150, "parameters": BODY, "hidden_bytes": 4}
    models = [{"name": f"m{n}", **sizes, "on_demand": n > 0} for n in range(3)]
    kind = {"count": 1, "blocks": 0, "memory": 2 * BODY + 40 * PAGE, "memory_chunk": PAGE}
    return described(models=models, instances={**kind, **more.pop("instances", {})}, **more)


def piped(**more: Any) -> Any:
    """The same on instances of two devices, each of which holds half of the models."""
    halves = {"stages": 2, "memory": BODY + 20 * PAGE, "memory_chunk": PAGE // 2}
    return three(**{**more, "instances": {**halves, **more.get("instances", {})}})


def requests(*wanted: tuple[float, str], prompt: int = 8, output: int = 8) -> list[WorkloadRequest]:
    return [WorkloadRequest(n, at, model, prompt, output) for n, (at, model) in enumerate(wanted)]


def effects(tape: list[ControlStep], kind: type[Any]) -> list[Any]:
    return [effect for step in tape for effect in step.effects if isinstance(effect, kind)]


def sound(simulation: ClusterSimulation) -> None:
    for request in simulation.requests:
        assert not request.failed, request.failed
        assert request.demand.at < request.first <= request.ended
    assert simulation.policy is not None
    simulation.policy.state.check()  # type: ignore[attr-defined]


@claim("The simulator loads models on demand by the code of the live controller", of="simulator")
def test_a_model_on_demand_is_loaded_for_a_request_and_another_gives_way() -> None:
    """4,000 bytes at 8,000 a second take half a second; the one that was unused for longest gives way."""
    tape = list[ControlStep]()
    arrivals = requests((0.0, "m0"), (1.0, "m1"), (3.0, "m2"), (5.0, "m0"), (5.1, "m2"))
    simulation, _ = run(three(loading={"disk": 8000}), arrivals=arrivals, tape=tape)
    sound(simulation)
    began = [request.started - request.demand.at for request in simulation.requests]
    assert began == pytest.approx([0.0, 0.5, 0.5, 0.5, 0.0])
    assert [one.load.holder for one in effects(tape, events.Load)] == ["m0", "m1", "m2", "m2", "m0", "m0"], (
        "no room at first"
    )
    assert [one.holder for one in effects(tape, events.Unload)] == ["m0", "m1"]


def test_a_long_request_has_others_unloaded() -> None:
    """140 tokens need 35 pages, of which there are 40 beside two models, less what is reserved; and m1 is there, too."""
    arrivals = requests((0.0, "m0"), (1.0, "m1"), (2.0, "m2"))
    tape = list[ControlStep]()
    spec = three(instances={"memory": 3 * BODY + 20 * PAGE}, loading={"kv_reserve": 0.0})
    arrivals.append(WorkloadRequest(3, 3.0, "m2", 100, 40))
    simulation, _ = run(spec, arrivals=arrivals, tape=tape)
    sound(simulation)
    assert [one.holder for one in effects(tape, events.Unload)] == ["m0"]
    assert simulation.requests[3].started == 3.0


@claim("The simulator restarts an instance that dies, and its requests go on elsewhere", of="simulator")
def test_the_requests_of_an_instance_that_dies_go_on_elsewhere_with_their_tokens() -> None:
    """i-0 dies at 0.3 s and is up at 1.3 s; then it loads its parameters for half a second."""
    spec = described(
        models=[{"name": "m0", "kv_bytes": 8, "context": 150, "parameters": BODY}],
        instances={"blocks": 0, "memory": BODY + 40 * PAGE, "memory_chunk": PAGE, "max_rows": 4},
        deaths=[{"instance": "i-0", "at": 0.3, "down": 1.0}], loading={"disk": 2 * BODY},
        dispatch={"policy": "round-robin"},
    )  # fmt: skip
    arrivals = requests(*((n * 0.1, "m0") for n in range(30)), output=40)
    simulation, log = run(spec, arrivals=arrivals)
    sound(simulation)
    stepwise = run(spec, arrivals=arrivals, jumps=False)[1]
    assert [{**entry, "at": 0.0} for entry in log] == [{**entry, "at": 0.0} for entry in stepwise]
    again = [request for request in simulation.requests if request.restarts]
    assert [(request.demand.at, request.instance) for request in again] == [(0.0, "i-1"), (0.2, "i-1")]
    assert again[0].first < 0.3, "what it had said is said"
    there = [entry["at"] for entry in log if entry["what"] == "dispatched" and entry["instance"] == "i-0"]
    assert there[:3] == pytest.approx([0.0, 0.2, 2.0])
    computed = sum(one.state.counters["computed_tokens"] for one in simulation.served)
    needed = sum(request.demand.prompt + request.demand.output - 1 for request in simulation.requests)
    assert needed < computed <= needed + sum(8 + 40 for _ in again), "only these two were computed again"


@claim(
    "The simulator runs pipelines under the controller: a stage dies or stalls, and models load on demand", of="simulator"
)
def test_a_pipeline_is_out_of_use_while_a_device_of_it_is_down_and_the_other_keeps_what_it_holds() -> None:
    """Half of a model is read in a quarter of a second."""
    tape = list[ControlStep]()
    deaths = [{"instance": "i-0.1", "at": 1.0, "down": 1.0}, {"instance": "i-1.0", "at": 3.0, "down": 1.0, "stalls": True}]
    arrivals = requests(*((0.1 * n, "m0") for n in range(60)))
    simulation, log = run(piped(instances={"count": 2}, deaths=deaths, loading={"disk": 8000}), arrivals=arrivals, tape=tape)
    sound(simulation)
    assert sum(request.restarts for request in simulation.requests) > 0
    sent = [(entry["at"], entry["instance"]) for entry in log if entry["what"] == "dispatched"]
    assert {name for at, name in sent if 1.0 < at < 2.25} == {"i-1"}
    assert {name for at, name in sent if 2.3 < at < 3.0} == {"i-0", "i-1"}
    assert [entry["at"] for entry in log if entry["what"] == "died"] == pytest.approx([1.0, 13.5])
    loads = [(step.at, one.worker) for step in tape for one in step.effects if isinstance(one, events.Load) and step.at > 0]
    assert loads == [(2.0, "i-0.1"), (14.5, "i-1.0")], "the other devices hold what they held"


COPIED: dict[str, Any] = {
    "instances": {"count": 2},
    "provisioning": {"mode": "relief", "limit": 1.0, "start": 1, "window": 100.0, "cold_start": 0.1},
    "loading": {"disk": 80_000, "block_idle": 5.0},
}
CROWD = requests(*((0.05 * n, "m1") for n in range(60)), *((40.0 + n, "m0") for n in range(9)), prompt=40, output=40)


@claim("The simulator copies a busy model to another worker by the code of the live controller", of="simulator")
def test_a_busy_model_is_copied_to_another_worker_and_goes_there_when_it_is_out_of_use() -> None:
    """m1 is on demand, so that the worker that comes with the load does not get it; its queue is too long on the first."""
    tape = list[ControlStep]()
    simulation, log = run(three(**COPIED), arrivals=CROWD, tape=tape)
    sound(simulation)
    (pressed,) = (step for step in tape if isinstance(step.event, events.Pressed) and step.effects)
    (load,) = effects([pressed], events.Load)
    assert (load.worker, load.load.holder, load.load.idle) == ("i-1", "m1", 5.0)
    there = [request for request in simulation.requests if request.instance == "i-1" and request.demand.model == "m1"]
    assert 0 < len(there) < 60, "the copy shares the load"
    (unload,) = effects(tape, events.Unload)
    (idle,) = (step for step in tape if isinstance(step.event, events.Idle))
    assert (unload.worker, unload.holder) == ("i-1", "m1")
    assert 4.5 <= idle.at - max(request.ended for request in there) <= 5.5, "its use is looked at twice a second"
    alone = run(three(**{**COPIED, "loading": {"disk": 80_000}}), arrivals=CROWD)[0]
    waits = [sum(r.started - r.demand.at for r in one.requests[:60]) for one in (simulation, alone)]
    assert waits[0] < 0.7 * waits[1]
    assert run(three(**COPIED), arrivals=CROWD)[1] == log


def test_an_instance_that_makes_no_progress_is_killed_by_the_controller() -> None:
    tape = list[ControlStep]()
    once = {"instance": "i-1", "down": 2.0, "stalls": True}
    deaths = [{**once, "at": 0.25}, {**once, "at": 5.0}]  # it stalls already
    spec = described(deaths=deaths, dispatch={"policy": "round-robin"})
    arrivals = requests(*((n * 0.1, "m0") for n in range(200)))
    simulation, log = run(spec, arrivals=arrivals, tape=tape)
    sound(simulation)
    (kill,) = effects(tape, events.KillWorker)
    assert (kill.worker, kill.cause) == ("i-1", "stalled")
    (died,) = (entry for entry in log if entry["what"] == "died")
    assert 10.25 < died["at"] < 11.0
    assert 45 < sum(request.restarts for request in simulation.requests) < 60, "half of those that came meanwhile"
    back = [entry["at"] for entry in log if entry["what"] == "dispatched" and entry["instance"] == "i-1"]
    assert max(back) > died["at"] + 2.0


def test_requests_wait_while_no_instance_is_up() -> None:
    deaths = [{"instance": f"i-{n}", "at": 0.2, "down": 3.0} for n in range(2)]
    arrivals = requests((0.0, "m0"), (1.0, "m0"))
    simulation, _ = run(described(deaths=deaths), arrivals=arrivals)
    sound(simulation)
    assert simulation.requests[1].started == pytest.approx(3.2)


def test_a_request_on_its_way_to_an_instance_that_dies_goes_elsewhere() -> None:
    spec = described(deaths=[{"instance": "i-0", "at": 0.05}], limits={"latency": 0.1}, dispatch={"policy": "round-robin"})
    simulation, _ = run(spec, arrivals=requests((0.0, "m0"), (0.01, "m0")))
    sound(simulation)
    assert [(request.instance, request.restarts) for request in simulation.requests] == [("i-1", 1), ("i-1", 0)]


@given(
    seed=st.integers(0, 1000), count=st.sampled_from([1, 2, 3]), disk=st.sampled_from([0, 4000]),
    latency=st.sampled_from([0.0, 0.01]), mode=st.sampled_from(["fixed", "scaled", "piped"]),
    rate=st.sampled_from([2.0, 10.0]), policy=st.sampled_from(["least-work", "round-robin", "predicted-latency"]),
    idle=st.sampled_from([0.0, 1.0]),
)  # fmt: skip
@examples(12)
def test_nobody_is_lost(
    seed: int, count: int, disk: int, latency: float, mode: str, rate: float, policy: str, idle: float
) -> None:
    """Models on demand, deaths, copies, autoscaling, pipelines: every request is answered; equal seeds have equal logs."""
    source = Random(seed)
    names = [f"i-{n}" for n in range(count)] if count > 1 else ["i"]
    devices = [f"{name}.{n}" for name in names for n in range(2)] if mode == "piped" else names
    deaths = [
        {"instance": source.choice(devices), "at": source.uniform(0, 10),
         "down": source.choice([0.0, 0.5, 4.0]), "stalls": source.random() < 0.3}
        for _ in range(source.randrange(4))
    ]  # fmt: skip
    scaling = {"mode": "relief", "limit": 1.0, "start": 1, "window": 1.0, "cold_start": 0.5, "grace": 0.5}
    spec = (piped if mode == "piped" else three)(
        instances={"count": count}, workload={"rate": rate, "count": 60}, deaths=deaths,
        loading={"disk": disk, "block_idle": idle if mode != "piped" else 0.0}, limits={"latency": latency},
        provisioning=scaling if mode == "scaled" else {},
        dispatch={"policy": policy if mode != "piped" else "least-work"},  # forecasts of pipelines take long
    )  # fmt: skip
    spec = replace(spec, seed=seed)
    tape, again = list[ControlStep](), list[ControlStep]()
    simulation, log = run(spec, tape=tape)
    sound(simulation)
    assert (log, tape) == (run(spec, tape=again)[1], again)
    for place, instance in enumerate(simulation.instances):
        assert not instance.candidate(simulation.now).used_blocks, f"pages of instance {place} are still held"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"deaths": [{"instance": "i-7", "at": 1.0}]}, r"deaths\[0\].instance is 'i-7'; did you mean"),
        ({"deaths": [{"instance": "i-1"}]}, r"deaths\[0\].at is missing"),
        ({"deaths": [{"instance": "i-1", "at": -1.0}]}, "at is -1.0; give 0 or more"),
        (
            {"instances": {"stages": 2}, "deaths": [{"instance": "i-1", "at": 1.0}]},
            "instance is 'i-1'; did you mean i.1",
        ),
        ({"instances": {"stages": 2}, "loading": {"block_idle": 1.0}}, r"stages is 2; with extra copies \(block_idle\)"),
        (
            {"instances": {"stages": 2}, "provisioning": {"mode": "relief", "limit": 1.0}},
            "stages is 2; with provisioning instances have one stage",
        ),
        ({"instances": {"memory": 0, "blocks": 40}}, "memory is missing; models on demand"),
        ({"loading": {"kv_reserve": 2.0}}, "kv_reserve is 2.0; give at most 1"),
        ({"loading": {"block_idle": -1.0}}, "block_idle is -1.0; give 0 or more"),
    ],
)
def test_what_cannot_be_controlled_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(DescriptionError, match=says):
        three(**{"instances": {"count": 2}, **change})


def test_what_would_be_used_by_nothing_is_refused() -> None:
    with pytest.raises(DescriptionError, match="disk is given, and nothing is loaded after the start"):
        described(loading={"disk": 1.0})
    with pytest.raises(DescriptionError, match=r"memory is missing; extra copies \(block_idle\) take their parameters"):
        described(loading={"block_idle": 5.0})
    with pytest.raises(DescriptionError, match="kv_reserve is given, and no model is on_demand"):
        described(loading={"kv_reserve": 0.5}, deaths=[{"instance": "i-1", "at": 1.0}])
    with pytest.raises(DescriptionError, match="parameters is missing; they are what is loaded on demand"):
        described(models=[{"name": "m", "kv_bytes": 8}, {"name": "n", "kv_bytes": 8, "on_demand": True}])
