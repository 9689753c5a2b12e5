"""Placement: what must hold of every answer, and that it is better than first fit over 1,000 random zoos."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from blockwright.policies.cluster.placement import Cost, Draft, best_draft, pipeline, place_by_locality
from blockwright.policies.model.chain import Component, Hop, Kind, KvLayout, Route
from blockwright.policies.model.partition import place
from blockwright.tests.claims import claim
from blockwright.tests.parts import parts

Chains = dict[str, list[Component]]
ZOOS = 100
PARTS = 10
DAILY = 1
LAYOUT = KvLayout(1, 8, "float32", 16)


def component(name: str, nbytes: int, kind: Kind = Kind.MLP) -> Component:
    return Component(name.encode().ljust(16, b"."), kind, nbytes, 8, 8, LAYOUT if kind is Kind.ATTENTION else None)


def chain(foundation: str, size: int, layers: int, own: str = "", own_from: int = 1 << 30) -> list[Component]:
    """Embedding, layers, head; components from depth ``own_from`` on are of ``own`` alone."""
    kinds = [Kind.EMBEDDING, *[Kind.ATTENTION, Kind.MLP] * layers, Kind.HEAD]
    owners = [own if depth >= own_from else foundation for depth in range(len(kinds))]
    return [component(f"{owner}/{depth}", size, kind) for depth, (owner, kind) in enumerate(zip(owners, kinds, strict=True))]


def zoo(seed: int) -> tuple[Chains, dict[str, int], dict[str, float]]:
    """Three foundations with variants that share from all to nothing; workers too small for everything."""
    chance = random.Random(seed)
    foundations = [(f"f{n}", chance.randint(5, 20), chance.randint(2, 6)) for n in range(3)]
    chains: Chains = {}
    for n in range(chance.randint(6, 16)):
        foundation, size, layers = chance.choice(foundations)
        depth = 2 * layers + 2
        own_from = chance.choice([depth, depth - 1, depth * 2 // 3, depth // 3, 0])
        chains[f"app{n}"] = chain(foundation, size, layers, f"app{n}", own_from)
    names = [f"w{n}" for n in range(chance.randint(2, 5))]
    every = sum({c.id: c.nbytes for parts in chains.values() for c in parts}.values())
    room = int(every * chance.uniform(0.5, 1.3) / len(names))
    memory = {name: int(room * chance.uniform(0.7, 1.3)) for name in names}
    return chains, memory, {name: chance.paretovariate(1.2) for name in chains}


def first_fit(chains: Chains, memory: dict[str, int]) -> Draft:
    """The baseline: in the order of the zoo, onto the first worker with room; shared bytes are counted once here, too."""
    draft = Draft(chains, memory)
    rest = []
    for name in chains:
        worker = next((w for w in memory if draft.fits(name, draft.whole(name, w))), None)
        if worker is None:
            rest.append(name)
        else:
            draft.put(name, (draft.whole(name, worker),))
    for name in rest:
        if hops := pipeline(draft, name, list(memory)):
            draft.put(name, hops)
    return draft


def check(routes: Sequence[Route], chains: Mapping[str, Sequence[Component]], memory: Mapping[str, int]) -> None:
    """Routes cover their chains, pass the workers in one order, and what they need fits."""
    held: dict[str, dict[bytes, int]] = {worker: {} for worker in memory}
    assert len({route.id for route in routes}) == len(routes)
    for route in routes:
        parts = chains[route.application]
        borders = [hop.first for hop in route.hops] + [route.hops[-1].last]
        assert borders[0] == 0
        assert borders[-1] == len(parts)
        assert all(a.last == b.first for a, b in zip(route.hops[:-1], route.hops[1:], strict=True))
        order = [list(memory).index(hop.worker) for hop in route.hops]
        assert order == sorted(set(order))
        for hop in route.hops:
            assert any(c.kv for c in parts[hop.first : hop.last]), route.id
            held[hop.worker].update({c.id: c.nbytes for c in parts[hop.first : hop.last]})
    for worker, components in held.items():
        assert sum(components.values()) <= memory[worker], worker


@claim("Placement by memory and locality serves more models in less memory than first fit", of="fine-tunes")
@pytest.mark.parametrize("part", parts(PARTS, DAILY))
def test_better_than_first_fit_over_a_thousand_zoos(part: int) -> None:
    """By ``Cost``: more applications served, then fewer transfers, then less memory; replicas of both are left out."""
    better = worse = 0
    total, baseline = [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]
    for seed in range(part * ZOOS, (part + 1) * ZOOS):
        chains, memory, load = zoo(seed)
        if not seed % 10:  # that it is right is tested with fewer
            check(place_by_locality(chains, memory, load), chains, memory)
        ours, first = best_draft(chains, memory, load).cost(load), first_fit(chains, memory).cost(load)
        better, worse = better + (ours < first), worse + (ours > first)
        for sums, cost in ((total, ours), (baseline, first)):
            sums[:] = [a + b for a, b in zip(sums, cost[:3], strict=True)]
    print(better, worse, total, baseline)
    assert better > 0.75 * ZOOS
    assert not worse
    assert total[0] < 0.8 * baseline[0], "applications without a route"
    assert total[2] < baseline[2], "bytes, though more is served"


@pytest.mark.parametrize(("seed", "unserved"), [(71, 0), (132, 3)])
def test_applications_move_to_workers_that_hold_more_of_them(seed: int, unserved: int) -> None:
    """Without these moves, one more application of each zoo is not served."""
    chains, memory, load = zoo(seed)
    assert best_draft(chains, memory, load).cost(load).unserved == unserved


def test_where_everything_fits_everywhere_everything_goes_everywhere() -> None:
    chains, memory, load = zoo(1)
    memory = dict.fromkeys(memory, 1 << 40)
    assert place_by_locality(chains, memory, load) == place(chains, list(memory))


def test_what_shares_lies_together() -> None:
    """Two foundations with two variants each, on two workers that hold one family each, in an order that deceives."""
    chains = {"a": chain("f", 10, 2), "x": chain("g", 10, 2), "y": chain("g", 10, 2, "y", 5), "b": chain("f", 10, 2, "b", 5)}
    routes = place_by_locality(chains, {"w0": 70, "w1": 70}, {})
    home = {route.application: route.home for route in routes}
    assert len(routes) == 4
    assert home["a"] == home["b"] != home["x"] == home["y"]


def test_a_delta_takes_its_own_bytes_alone() -> None:
    base = chain("f", 10, 2)
    tuned = [c.adapted(b"delta" + bytes([d]), 1) for d, c in enumerate(base)]
    routes = place_by_locality({"base": base, "tuned": tuned}, {"w0": 66, "w1": 65}, {})
    assert [route.id for route in routes] == ["base@w0", "base@w1", "tuned@w0"]


def test_the_loaded_one_gets_the_replicas() -> None:
    chains = {"a": chain("f", 10, 2), "b": chain("g", 10, 2)}
    routes = place_by_locality(chains, {"w0": 60, "w1": 60, "w2": 60}, {"b": 5.0})
    assert sorted((route.application, len(route.hops)) for route in routes) == [("a", 1), ("b", 1), ("b", 1)]


def test_a_chain_that_fits_on_no_worker_becomes_a_pipeline_and_what_fits_nowhere_is_left_out() -> None:
    chains = {"large": chain("f", 10, 4), "huge": chain("g", 100, 4)}
    (route,) = place_by_locality(chains, {"w0": 45, "w1": 70}, {})
    assert route.hops == (Hop("w0", 0, 4), Hop("w1", 4, 10))
    assert route.id == "large@w0+w1"
    assert first_fit(chains, {"w0": 45, "w1": 70}).cost({}) == Cost(1, 1.0, 100)


def test_of_workers_with_room_the_faster_ones_get_more() -> None:
    """Three models of 60 bytes, and room for two of them on each worker."""
    chains = {name: chain(name, 10, 2) for name in "abc"}
    memory = {"w0": 125, "w1": 125}

    def placed(**speeds: float) -> list[str]:
        return [route.id for route in place_by_locality(chains, memory, {}, speeds=speeds)]

    assert placed(w0=1.0, w1=0.375) == ["a@w0", "a@w1", "b@w0", "c@w1"]
    assert placed(w0=0.375, w1=1.0) == ["a@w0", "a@w1", "b@w1", "c@w0"]
    assert placed(w0=1.0, w1=1.0) == placed(), "equally fast ones are told apart by nothing else than before"
    draft = best_draft(chains, memory, {}, {"w0": 1.0, "w1": 0.375})
    assert draft.used == {"w0": 120, "w1": 60}, "the slow one passes its parameters in the time of 160 bytes"


def test_a_replica_on_a_slow_worker_counts_for_less() -> None:
    chains, load = {"a": chain("a", 10, 2), "b": chain("b", 10, 2)}, {"b": 1.5}
    memory = dict.fromkeys(("w0", "w1", "w2", "w3"), 60)
    slow = {"w0": 1.0, "w1": 0.125, "w2": 0.125, "w3": 1.0}
    assert Counter(route.application for route in place_by_locality(chains, memory, load)) == {"a": 2, "b": 2}
    assert Counter(route.application for route in place_by_locality(chains, memory, load, speeds=slow)) == {"a": 1, "b": 3}


def test_a_pipeline_stays_on_one_kind_of_device() -> None:
    chains, memory = {"large": chain("f", 10, 4)}, {"w0": 55, "w1": 99, "w2": 50}
    assert [route.id for route in place_by_locality(chains, memory, {})] == ["large@w0+w1"]
    kinds = {"w0": "cpu", "w1": "cuda", "w2": "cpu"}
    assert [route.id for route in place_by_locality(chains, memory, {}, kinds=kinds)] == ["large@w0+w2"]
    assert place_by_locality(chains, memory, {}, kinds={**kinds, "w2": "tpu"}) == []
