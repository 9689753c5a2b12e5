"""Models that are placed on some instances only, and equivalents whose chains serve in their place."""

from __future__ import annotations

from typing import Any

import pytest

from blockwright.simulator.description import DescriptionError, Scenario
from blockwright.simulator.workload import WorkloadRequest
from blockwright.tests.claims import claim

from .clusters import described, run

PLACES: dict[str, dict[str, Any]] = {"left": {}, "right": {}}


def models(*equivalents: str, **more: Any) -> list[dict[str, Any]]:
    """Two models, each on its own instance."""
    common = {"kv_bytes": 8, "context": 150}
    return [
        {"name": "m0", "only": ["left"], "equivalents": [*equivalents], **common, **more},
        {"name": "m1", "only": ["right"], **common},
    ]


def cluster(*equivalents: str, entries: dict[str, dict[str, Any]] | None = None, **more: Any) -> Scenario:
    return described(models=models(*equivalents), entries=entries or PLACES, **more)


def burst(count: int, model: str = "m0", **more: Any) -> list[WorkloadRequest]:
    return [WorkloadRequest(n, n * 1e-4, model, 8, 20, **more) for n in range(count)]


def where(log: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(one["instance"], one.get("serves", "")) for one in log if one["what"] == "dispatched"]


def test_requests_go_only_where_their_model_is_placed() -> None:
    simulation, log = run(cluster(), arrivals=burst(6))
    assert where(log) == [("left", "")] * 6
    assert simulation.variants() is None
    assert {place for routes in simulation.routes for place in routes} == {"m0", "m1"}


@claim("The simulator has equivalent models serve by the function that compares routes in a live gateway", of="adaptive")
def test_an_equivalent_serves_where_less_work_is_ahead() -> None:
    simulation, log = run(cluster("m1"), arrivals=burst(6))
    assert where(log) == [("left", ""), ("right", "m1")] * 3
    assert simulation.variants() == {"requests": 3, "switches": 0}
    assert not any(one.failed for one in simulation.requests)


def test_a_model_does_not_serve_for_the_one_that_it_names() -> None:
    _, log = run(cluster("m1"), arrivals=burst(4, "m1"))
    assert where(log) == [("right", "")] * 4


def test_who_is_served_by_an_equivalent_takes_as_long_as_its_own_requests() -> None:
    served, _ = run(cluster("m1"), arrivals=burst(2))
    own, _ = run(cluster(), arrivals=[WorkloadRequest(0, 1e-4, "m1", 8, 20)])
    one, other = served.requests[1], own.requests[0]
    assert (one.instance, one.started, one.first, one.ended) == (other.instance, other.started, other.first, other.ended)


def test_an_equivalent_serves_from_pages_of_its_own_requests() -> None:
    """Its chain is the same, so the prompt of its own request is cached there, and not on the model's own idle instance."""
    tokens = tuple(range(40))
    arrivals = [
        WorkloadRequest(n, at, model, 40, 4, tokens=tokens) for n, (at, model) in enumerate([(0.0, "m1"), (5.0, "m0")])
    ]
    simulation, log = run(cluster("m1"), arrivals=arrivals)
    assert where(log) == [("right", ""), ("right", "m1")]
    assert simulation.instances[1].state.counters["shared_pages"] == 9
    computed, cached = (one.first - one.demand.at for one in simulation.requests)
    assert cached < computed
    without, log = run(cluster("m1", instances={"prefix_cache": False}), arrivals=arrivals)
    assert where(log) == [("right", ""), ("left", "")], "nothing is known to be there"
    assert without.requests[1].first - 5.0 == pytest.approx(computed)


def test_a_request_that_fits_only_beside_an_equivalent_goes_there() -> None:
    arrivals = [WorkloadRequest(0, 0.0, "m0", 60, 60)]
    small = {"left": {"blocks": 20}, "right": {}}
    simulation, log = run(cluster("m1", entries=small), arrivals=arrivals)
    assert where(log) == [("right", "m1")]
    assert not simulation.requests[0].failed
    alone, _ = run(cluster(entries=small), arrivals=arrivals)
    assert "120 tokens" in alone.requests[0].failed


def test_parameters_take_memory_only_where_their_model_is_placed() -> None:
    sizes = {"memory": 40_000, "memory_chunk": 4096, "blocks": 0}
    apart, both = models(), [{**one, "only": []} for one in models()]
    rooms = []
    for made in (apart, both):
        made = [{**one, "parameters": 10_000} for one in made]
        simulation, _ = run(described(models=made, entries=PLACES, instances=sizes), arrivals=burst(1))
        rooms.append([instance.total_blocks * 4 * 8 for instance in simulation.instances])
    assert [a - b for a, b in zip(*rooms, strict=True)] == [pytest.approx(10_000, abs=4096)] * 2


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"dispatch": {"policy": "ours"}}, r"dispatch.policy is 'ours'; with equivalents give 'least-work'"),
        ({"dispatch": {"kv_dispatch": "owner"}}, r"dispatch.kv_dispatch is 'owner'; with several models"),
        ({"dispatch": {"choices": 2}}, r"dispatch.choices is 2; with equivalents all routes are compared"),
        ({"instances": {"stages": 2}}, r"instances\[0\].stages is 2; with equivalents instances have one stage"),
        ({"deaths": [{"instance": "left", "at": 1.0}]}, r"models\[0\].equivalents is given, and deaths"),
        ({"provisioning": {"start": 1}}, r"models\[0\].equivalents is given, and deaths, provisioning"),
        (
            {"dispatch": {"free_switches": True}, "instances": {"prefix_cache": False}},
            r"instances\[0\].prefix_cache is false; with free_switches",
        ),
        (
            {"dispatch": {"free_switches": True, "switches": 0}},
            r"dispatch.free_switches is given, and no request switches; leave it out",
        ),
    ],
)
def test_what_equivalents_do_not_go_with_is_refused_by_name(more: dict[str, Any], says: str) -> None:
    with pytest.raises(DescriptionError, match=says):
        cluster("m1", **more)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"equivalents": ["m1", "m1"]}, r"models\[0\].equivalents names 'm1' twice; name each once"),
        ({"context": 160}, r"models\[0\].equivalents names 'm1', whose context is 150 tokens; one needs the 160 of 'm0'"),
    ],
)
def test_equivalents_that_cannot_serve_are_refused_by_name(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(DescriptionError, match=says):
        described(models=models("m1", **changed), entries=PLACES)


def test_more_equivalents_than_variants_are_refused() -> None:
    made = [{"name": f"m{n}", "kv_bytes": 8, "context": 150} for n in range(10)]
    made[0]["equivalents"] = [f"m{n}" for n in range(1, 10)]
    with pytest.raises(DescriptionError, match=r"models\[0\].equivalents are 9; name at most 8"):
        described(models=made)


def test_an_adapter_has_no_equivalents() -> None:
    made = [{"name": "a", "shares": "m1", "equivalents": ["m1"]}, {"name": "m1", "kv_bytes": 8, "context": 150}]
    with pytest.raises(DescriptionError, match=r"models\[0\].equivalents are given, and an adapter has no variants"):
        described(models=made)


def test_switches_without_equivalents_are_refused() -> None:
    with pytest.raises(DescriptionError, match=r"dispatch.switches is given, and no model has equivalents; leave it out"):
        described(dispatch={"switches": 1})
