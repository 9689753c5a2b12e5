"""The benchmark of transfers: the optimum by enumeration is one, and a placement is measured against it."""

from __future__ import annotations

import random
from itertools import product

import pytest
import transfers

from blockwright.policies.cluster.relocation import cluster


def by_trying_all(those: transfers.RelocatableChains) -> float:
    """Return the least seconds over all placements, one after the other."""
    routes = [list(transfers.every_route([*those.memory], len(parts))) for parts in those.chains.values()]
    best = transfers.NEVER
    for chosen in product(*routes):
        draft = those.draft({name: [hops] for name, hops in zip(those.chains, chosen, strict=True)})
        if all(draft.free(worker) >= 0 for worker in those.memory):
            best = min(best, those.cost(draft).seconds)
    return best


@pytest.mark.parametrize("seed", [n for n in range(40) if len(transfers.zoo(random.Random(n)).chains) == 2][:6])
def test_the_optimum_is_the_least_of_all(seed: int) -> None:
    those = transfers.zoo(random.Random(seed))
    least = by_trying_all(those)
    assert transfers.optimum(those) == pytest.approx(least)
    assert transfers.optimum(those, cluster(those)) <= least + 1e-3


def test_every_route_is_there_once() -> None:
    routes = list(transfers.every_route(["w0", "w1", "w2"], 4))
    assert len(routes) == len({*routes}) == 3 + 3 * 3 + 3
    assert [len(hops) for hops in routes] == sorted(len(hops) for hops in routes)


def test_a_placement_without_a_route_for_each_chain_counts_as_never() -> None:
    those = transfers.zoo(random.Random(0))
    assert transfers.ratio(those, those.draft(), 1.0) == transfers.NEVER
