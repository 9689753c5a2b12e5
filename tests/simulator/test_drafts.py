"""Simulated drafts: the tokens of a round, the same outcome wherever a request runs, jumps, pipelines and forecasts."""

from __future__ import annotations

from typing import Any

import pytest

from blockwright.simulator.description import DescriptionError, Scenario
from blockwright.simulator.drafts import DraftOutcomes, DraftSpec
from blockwright.simulator.simulation import ClusterSimulation
from blockwright.simulator.workload import WorkloadRequest
from blockwright.tests.claims import claim

from .clusters import described, run
from .test_simulation import rounded

ROOMY = {"blocks": 4000, "max_rows": 32, "sweep_tokens": 512, "count": 1}


def model(tokens: int, accepted: float, name: str = "m0", **more: Any) -> dict[str, Any]:
    drafts = {"tokens": tokens, "accepted": accepted}
    return {"name": name, "kv_bytes": 8, "context": 1000, "drafts": drafts, **more}


def answers(count: int, output: int, *, apart: float = 0.0, allowed: int = 0, known: bool = False) -> list[WorkloadRequest]:
    expected = output if known else 0
    return [WorkloadRequest(n, apart * n, "m0", 8 + n, output, allowed=allowed, expected=expected) for n in range(count)]


def figures(simulation: ClusterSimulation) -> dict[str, float]:
    found = simulation.drafts()
    assert found is not None
    return found


def alone(drafts: dict[str, Any] | None, output: int = 10, allowed: int = 0) -> ClusterSimulation:
    """One answer of ``output`` tokens."""
    plain = {"name": "m0", "kv_bytes": 8, "context": 1000}
    made = described(models=[plain if drafts is None else drafts], instances=ROOMY)
    simulation, _ = run(made, arrivals=answers(1, output, allowed=allowed))
    assert not simulation.requests[0].failed
    return simulation


@claim("Simulated drafts yield the mean tokens of a round that their acceptance implies", of="simulator")
@pytest.mark.parametrize(("tokens", "accepted", "stages"), [(1, 0.5, 1), (4, 0.7, 1), (8, 0.9, 1), (4, 0.7, 2)])
def test_the_tokens_of_a_round_tend_to_their_expectation(tokens: int, accepted: float, stages: int) -> None:
    """Within 4 %: 12 answers of 400 tokens have 800 to 3,200 rounds, of which the last of each is cut.

    A page is as long as the context, since a pipeline drafts no further than the pages that its last worker has granted.
    """
    made = described(
        models=[model(tokens, accepted, parameters=1000)], links={"latency": 0.001},
        instances={**ROOMY, "stages": stages, "page_size": 1000, "blocks": 40},
    )  # fmt: skip
    simulation, _ = run(made, arrivals=answers(12, 400))
    expected = (1 - accepted ** (tokens + 1)) / (1 - accepted)
    found = figures(simulation)
    assert found["tokens_per_round"] == pytest.approx(expected, rel=0.04)
    drawn = found["rounds"] + found["accepted"]  # but the first of an answer, and a last one that has no room for drafts
    assert 12 * 398 <= drawn <= 12 * 399
    assert not any(request.failed for request in simulation.requests)


def test_drafts_that_never_stand_change_no_number_of_sweeps_and_take_time() -> None:
    without = alone(None)
    never = alone(model(4, 0.0))
    always = alone(model(4, 1.0))
    assert without.drafts() is None
    assert [one.instances[0].sweeps for one in (without, never, always)] == [10, 10, 1 + 2]
    assert figures(never)["accepted"] == 0
    assert never.requests[0].ended > without.requests[0].ended > always.requests[0].ended
    assert figures(always) == {"rounds": 2, "drafted": 4 + 3, "accepted": 7, "tokens_per_round": 4.5}


def test_the_length_policy_drafts_only_what_gains() -> None:
    never, often = alone(model(0, 0.0), 300), alone(model(0, 0.9), 300)
    assert figures(never)["rounds"] < 20
    assert often.requests[0].ended < 0.4 * never.requests[0].ended


@pytest.mark.parametrize("tokens", [0, 3, 16])
def test_a_stop_token_ends_an_answer_within_a_round(tokens: int) -> None:
    """No more is drawn behind it, and a round in which it is drawn first has no second token."""
    for output in (2, 10, 11, 12, 13):
        simulation = alone(model(tokens, 1.0), output, allowed=50)
        assert simulation.instances[0].state.counters["generated_tokens"] == output


def test_whether_a_draft_stands_depends_on_its_request_and_position_alone() -> None:
    outcomes = DraftOutcomes(3, {"m": DraftSpec(accepted=0.6), "n": DraftSpec(accepted=0.6)})
    stand = {position: outcomes("m", "r1", position, 1) for position in range(200)}
    for position in range(150):
        for drafts in (1, 4, 16):
            run_of = next((n for n in range(drafts) if not stand[position + n]), drafts)
            assert outcomes("n", "r1", position, drafts) == run_of
    assert 0.5 < sum(stand.values()) / 200 < 0.7
    other = [
        [one("m", request, position, 1) for position in range(200)]
        for one, request in ((outcomes, "r2"), (DraftOutcomes(4, {"m": DraftSpec(accepted=0.6)}), "r1"))
    ]
    assert [*stand.values()] not in other


@claim("Which simulated drafts stand is the same on every instance and in every batch", of="simulator")
def test_rounds_are_the_same_wherever_and_beside_whatever_requests_run() -> None:
    """With memory and room for all drafts."""

    def found(rate: float, policy: str, **instances: Any) -> dict[str, float]:
        made = described(
            seed=5, models=[model(4, 0.7)], workload={"rate": rate, "count": 40}, dispatch={"policy": policy},
            instances={**ROOMY, **instances},
        )  # fmt: skip
        return figures(run(made)[0])

    crowd = found(1000.0, "least-work")
    assert crowd["rounds"] > 100
    assert crowd == found(2.0, "least-work") == found(40.0, "random", count=3) == found(40.0, "random", ahead=False)


def crowded(seed: int, policy: str, **instances: Any) -> Scenario:
    """A model with drafts and one without, in too little memory, with stop tokens and deadlines."""
    models = [model(seed % 3 * 2, 0.7), {"name": "m1", "kv_bytes": 8, "context": 150}]
    return described(
        seed=seed, models=models, workload={"count": 40, "max_tokens": 60, "length_error": 0.3}, dispatch={"policy": policy},
        instances={"blocks": 33, **instances}, limits={"request_timeout": 1.5, "latency": 0.015 * (seed % 2)},
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_jumping_equals_stepping_beside_drafts(seed: int) -> None:
    policy = ("least-work", "llumnix-minus", "prefix-aware")[seed % 3]
    made = crowded(seed, policy, ahead=seed % 2 == 0, prefix_cache=seed % 4 < 2)
    (jumping, one), (stepping, other) = run(made), run(made, jumps=False)
    assert rounded(one) == rounded(other)
    assert [i.sweeps for i in jumping.instances] == [i.sweeps for i in stepping.instances]
    assert figures(jumping) == figures(stepping)
    assert all(request.ended >= request.demand.at for request in jumping.requests), "a request was lost"
    assert sum(request.preemptions for request in jumping.requests) > 0
    assert jumping.digest() == run(made)[0].digest()


@claim("Forecasts in a simulated cluster know the pace of drafts", of="simulator")
@pytest.mark.parametrize("stages", [1, 2])
def test_a_forecast_knows_the_pace_of_drafts(stages: int) -> None:
    """Answers that overlap a little. At first nothing is known; what is left is the luck of single answers."""
    made = described(
        models=[model(4, 0.8, parameters=1000)],
        instances={**ROOMY, "stages": stages},
        dispatch={"policy": "predicted-latency"},
    )
    simulation, log = run(made, arrivals=answers(12, 100, apart=0.3 * stages, known=True))
    forecasts = {entry["request"]: entry["loads"][0][0] for entry in log if entry["what"] == "dispatched"}
    errors = [forecasts[n] / (one.ended - one.demand.at) - 1 for n, one in enumerate(simulation.requests)]
    assert errors[0] > 1, "nothing is known yet"
    assert max(map(abs, errors[4:])) < 0.15
    assert sum(map(abs, errors[4:])) / 8 < 0.08


def test_dropped_parameters_and_drafts_are_not_simulated_together() -> None:
    says = r"models\[0\].drafts is given, and a drop plays no drafts; leave it out, or the overload$"
    with pytest.raises(DescriptionError, match=says):
        described(models=[model(4, 0.5, parameters=1000)], overload={"mode": "drop", "layers": 2})


def speculating(name: str, accepted: float, parameters: int, tokens: int = 3) -> dict[str, Any]:
    drafts = {"tokens": tokens, "accepted": accepted, "surrogate": 0.25}
    return {"name": name, "kv_bytes": 8, "context": 1000, "drafts": drafts, "parameters": parameters}


@claim(
    "Surrogates draft in the simulator by the live choice of bottlenecks: for the application with the slowest block",
    of="simulator",
)
def test_surrogates_draft_where_the_queue_is_longest() -> None:
    """Two models on one device: the layers of the large one are the slowest block until its answers end."""
    models = [speculating("m0", 0.9, 50_000_000), speculating("m1", 0.9, 5_000_000)]
    made = described(models=models, instances={**ROOMY, "blocks": 0, "memory": 100_000_000})
    both = [WorkloadRequest(n, 0.0, f"m{n % 2}", 8, 200 if n % 2 else 900) for n in range(4)]
    simulation, _ = run(made, arrivals=both)
    assert not any(request.failed for request in simulation.requests)
    (instance,) = simulation.served
    state = instance.state
    found = {name: state.parts.drafts.paces.find(name, DraftSpec(tokens=3, accepted=0.9, surrogate=0.25).options(name, 9))
             for name in ("m0", "m1")}  # fmt: skip
    large, little = found["m0"], found["m1"]
    assert large is not None
    assert little is not None
    assert large.steps_for(1000) < 1000, "it gains by drafts"
    assert little.steps_for(1000) == 1000, "it never drafts"
    assert state.parts.bottlenecks.choices >= 1
    again, _ = run(made, arrivals=both)
    assert again.digest() == simulation.digest()


@claim("A choice of bottlenecks over the cluster would gain nothing and slow workers with less to do", of="simulator")
def test_a_choice_over_the_cluster_would_gain_nothing_and_slow_the_workers_with_less_to_do() -> None:
    """One model is busy on its worker, the other has little to do; a tenth of the cluster is a block of the busy one."""
    busy, quiet = speculating("m0", 0.9, 50_000_000), speculating("m1", 0.9, 50_000_000)
    alone = {name: value for name, value in quiet.items() if name != "drafts"}
    arrivals = [WorkloadRequest(n, 0.1 * n, "m1" if n % 4 == 3 else "m0", 8, 300) for n in range(16)]
    ended = []
    for other in (quiet, alone):
        models = [{**busy, "only": ["left"]}, {**other, "only": ["right"]}]
        sizes = {**ROOMY, "blocks": 0, "memory": 100_000_000}
        made = described(models=models, instances=sizes, entries={"left": {}, "right": {}})
        simulation, _ = run(made, arrivals=arrivals)
        ended.append({m: [one.ended for one in simulation.requests if one.demand.model == m] for m in ("m0", "m1")})
    chosen_here, chosen_over_all = ended
    assert chosen_here["m0"] == chosen_over_all["m0"], "no worker computes drafts for another one"
    assert all(here < there for here, there in zip(chosen_here["m1"], chosen_over_all["m1"], strict=True))


@pytest.mark.parametrize(
    ("change", "instances", "words"),
    [
        ({}, {"stages": 2}, "is given for a pipeline"),
        ({"parameters": 0}, {}, "needs parameters"),
    ],
)
def test_surrogates_that_cannot_be_played(change: dict[str, Any], instances: dict[str, Any], words: str) -> None:
    with pytest.raises(DescriptionError, match=words):
        described(models=[{**speculating("m0", 0.9, 1000), **change}], instances={**ROOMY, **instances})
