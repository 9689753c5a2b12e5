"""Relocation by traffic: less transfers than without, steps that each fit beside what is there, and never for nothing."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from blockwright.policies.cluster.placement import Draft, best_draft, draft_by_room, place_by_room
from blockwright.policies.cluster.relocation import (
    LOAD_RATE,
    STEP_SECONDS,
    Hops,
    RelocatableChains,
    Relocation,
    cluster,
    relocate,
)
from blockwright.policies.model.chain import Component, Hop, Kind, Route
from blockwright.tests.policies.cluster.test_placement import chain, check, component

HOT, COLD = 1000.0, 1.0
SPARE = 60


def whole(worker: str, chain: Sequence[Component]) -> Hops:
    return (Hop(worker, 0, len(chain)),)


def two(hot: str, *, room: int = 130, cold: str = "b") -> RelocatableChains:
    """Two chains of 6 x 10 bytes on two workers; ``hot`` has the traffic."""
    chains = {"a": chain("f", 10, 2), "b": chain("g", 10, 2)}
    return RelocatableChains(
        chains,
        {"w0": room, "w1": 70},
        {name: [HOT if name == hot else COLD] * 6 for name in chains},
        fixed=[([component("other", 60, Kind.ATTENTION)], Hop("w0", 0, 1))],
    )


SPREAD = (Hop("w0", 0, 3), Hop("w1", 3, 6))


def test_a_chain_with_traffic_comes_together_where_there_is_room() -> None:
    zoo = two("a", room=200)
    plan = relocate(zoo, {"a": [SPREAD], "b": [whole("w0", zoo.chains["b"])]})
    assert plan is not None
    assert plan.steps == (Relocation("a", (whole("w1", zoo.chains["a"]),), (SPREAD,)),)
    assert plan.saved == HOT
    assert plan.cost == 30 / LOAD_RATE + STEP_SECONDS


def test_loads_cost_what_was_measured_where_it_was() -> None:
    zoo = two("a", room=200)
    current = {"a": [SPREAD], "b": [whole("w0", zoo.chains["b"])]}
    for speeds, seconds in (({"w1": 10.0}, 3.0), ({"w0": 10.0}, 30 / LOAD_RATE)):
        plan = relocate(replace(zoo, speeds=speeds), current)
        assert plan is not None
        assert plan.cost == pytest.approx(seconds + STEP_SECONDS)


def test_one_without_traffic_gives_way() -> None:
    """Nothing else has room for the whole chain; the other one crosses instead."""
    zoo = two("a", room=170)
    current = {"a": [(Hop("w0", 0, 4), Hop("w1", 4, 6))], "b": [whole("w0", zoo.chains["b"])]}
    zoo = RelocatableChains(zoo.chains, {"w0": 175, "w1": 60}, zoo.seconds, fixed=zoo.fixed)
    plan = relocate(zoo, current)
    assert plan is not None
    assert plan.steps[-1].application == "a"
    assert all(len(hops) == 1 for hops in plan.steps[-1].begin)


def test_nothing_moves_without_traffic_or_where_loading_takes_longer() -> None:
    zoo = two("a", room=200)
    current = {"a": [SPREAD], "b": [whole("w0", zoo.chains["b"])]}
    silent = RelocatableChains(zoo.chains, zoo.memory, {name: [0.0] * 6 for name in "ab"}, fixed=zoo.fixed)
    assert relocate(silent, current) is None
    slow = RelocatableChains(
        zoo.chains, zoo.memory, {"a": [STEP_SECONDS + 29 / LOAD_RATE] * 6, "b": [0.0] * 6}, fixed=zoo.fixed
    )
    plan = relocate(slow, current)
    assert plan is not None
    assert not plan.worth
    quick = RelocatableChains(
        zoo.chains, zoo.memory, {"a": [STEP_SECONDS + 31 / LOAD_RATE] * 6, "b": [0.0] * 6}, fixed=zoo.fixed
    )
    plan = relocate(quick, current)
    assert plan is not None
    assert plan.worth


def test_a_second_route_ends_if_its_room_is_needed() -> None:
    chains = {"a": chain("f", 10, 2), "b": chain("g", 10, 2)}
    zoo = RelocatableChains(chains, {"w0": 90, "w1": 90}, {"a": [HOT] * 6, "b": [COLD] * 6})
    both = [whole("w0", chains["b"]), whole("w1", chains["b"])]
    plan = relocate(zoo, {"a": [SPREAD], "b": both})
    assert plan is not None
    assert [(step.application, len(step.begin), len(step.end)) for step in plan.steps] == [("b", 0, 1), ("a", 1, 1)]


def test_a_pipeline_stays_on_one_kind_of_device() -> None:
    chains = {"a": chain("f", 10, 2)}
    memory = {"w0": 40, "w1": 40}
    assert cluster(RelocatableChains(chains, memory, {"a": [1.0] * 6})).hops
    assert not cluster(RelocatableChains(chains, memory, {"a": [1.0] * 6}, {"w0": "cpu", "w1": "cuda"})).hops


def drawn(seed: int) -> tuple[RelocatableChains, Draft]:
    """A random zoo, placed without knowing its traffic."""
    chance = random.Random(seed)
    chains = {}
    for n in range(chance.randint(3, 6)):
        foundation = chance.randrange(3)
        chains[f"a{n}"] = chain(f"f{foundation}", 8 + 4 * foundation, 2, f"a{n}", chance.choice([6, 5, 3, 0]))
    every = sum({c.id: c.nbytes for parts in chains.values() for c in parts}.values())
    names = [f"w{n}" for n in range(chance.randint(2, 4))]
    memory = {name: int(every * chance.uniform(0.8, 1.9) / len(names)) for name in names}
    seconds = {name: [HOT * chance.paretovariate(1.2)] * len(parts) for name, parts in chains.items()}
    return RelocatableChains(chains, memory, seconds), best_draft(chains, memory, {})


@pytest.mark.parametrize("part", range(3))
def test_steps_lead_to_less_transfers_and_each_fits(part: int) -> None:
    """Every model has a route all the time, and equal inputs give equal steps."""
    less = 0
    for seed in range(part * 60, part * 60 + 60):
        zoo, start = drawn(seed)
        current: Mapping[str, Sequence[Hops]] = {name: list(routes) for name, routes in start.hops.items()}
        chains = {name: zoo.chains[name] for name in current}
        zoo = RelocatableChains(chains, zoo.memory, zoo.seconds, spare=dict.fromkeys(zoo.memory, SPARE))
        plan = relocate(zoo, current)
        assert plan == relocate(zoo, current)
        before, draft = zoo.cost(zoo.draft(current)).seconds, zoo.draft(current)
        if plan is None:
            continue
        less += 1
        for step in plan.steps:
            for hops in step.begin:
                draft.put(step.application, hops)
            assert all(draft.free(worker) >= -SPARE for worker in zoo.memory), "both are there at once"
            for hops in step.end:
                draft.take_back(step.application, draft.hops[step.application].index(hops))
            assert draft.hops[step.application], "it goes on serving"
        assert zoo.cost(draft).seconds == pytest.approx(before - plan.saved)
        assert plan.saved > plan.cost
        check([route for route in routes_of(draft) if route.application in current], zoo.chains, zoo.memory)
    assert less > 3


def routes_of(draft: Draft) -> list[Route]:
    return [Route(f"{name}#{n}", 1, name, hops) for name, routes in draft.hops.items() for n, hops in enumerate(routes)]


def test_fragmentation_fills_the_fullest_worker_whatever_is_there() -> None:
    """The other placement: what shares lies apart, and what fits whole nowhere is a pipeline."""
    chains = {"a": chain("f", 10, 2), "b": chain("f", 10, 2, "b", 5), "c": chain("g", 30, 2)}
    memory = {"w0": 60, "w1": 130, "w2": 90}
    draft = draft_by_room(chains, memory)
    assert [hop.worker for hop in draft.hops["c"][0]] == ["w1", "w2"]
    assert draft.hops["a"] == [whole("w0", chains["a"])]
    check(place_by_room(chains, memory), chains, memory)
