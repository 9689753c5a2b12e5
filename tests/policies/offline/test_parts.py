"""Parts for several workers: each request once, each part as dense as the whole, waste only at cuts."""

from __future__ import annotations

from random import Random

import pytest

from blockwright.policies.offline.density import Costs
from blockwright.policies.offline.order import OrderRules, Weigher, density_order
from blockwright.policies.offline.parts import cut
from blockwright.policies.offline.prefix_tree import PrefixTree, packed
from blockwright.tests.claims import claim
from blockwright.tests.policies.offline.test_order import random_batch


def mixed_batch(seed: int, count: int = 400) -> Weigher:
    """Sources with prefixes of their own and answers of many lengths, none of which outweighs the batch."""
    random = Random(seed)
    prompts = []
    for n in range(count):
        source = random.randrange(5)
        prompts.append(packed([source] * 30 + [10 + random.randrange(4)] * 10 + [n, *range(random.randint(1, 60))]))
    outputs = [random.choice([1, 2, 10, 100, 300]) for _ in range(count)]
    return Weigher(PrefixTree(prompts), Costs(1.0, 1e-4, 0.01), outputs)


@pytest.mark.parametrize("part", range(10))
def test_each_request_is_in_one_part(part: int) -> None:
    for seed in range(100):
        random, batch = random_batch(100 * part + seed)
        units = density_order(batch.weigher, OrderRules(allowance=random.choice([0.0, 0.5])))
        count = random.randint(1, 6)
        parts = cut(units, count, batch.weigher)
        assert len(parts) == count
        for one in parts:
            batch.check(one, [request for unit in one for request in unit.requests])
        assert sorted(request for one in parts for unit in one for request in unit.requests) == list(
            range(len(batch.prompts))
        )
        assert cut(units, 1, batch.weigher) == [units]


@claim("Parts of a batch for several workers have equal time in compute and memory", of="offline")
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("count", [2, 3, 8])
def test_parts_are_equal_and_as_dense_as_the_whole(seed: int, count: int) -> None:
    """But for one request at each cut; what is wasted is a prefix at each of the two cuts of a part."""
    weigher = mixed_batch(seed)
    units = density_order(weigher, memory=4000)
    parts = cut(units, count, weigher)
    comp, mem = sum(unit.comp for unit in units), sum(unit.mem for unit in units)
    largest = [max(weigher.comp(request) for request in range(400)), max(weigher.mem(request) for request in range(400))]
    for part in parts:
        assert abs(sum(unit.comp for unit in part) - comp / count) <= 2 * largest[0]
        assert abs(sum(unit.mem for unit in part) - mem / count) <= 2 * largest[1]
    wasted = sum(unit.tokens for part in parts for unit in part) - sum(unit.tokens for unit in units)
    assert 0 <= wasted <= 2 * count * 40
    assert parts[0][0].rho > comp / mem > parts[0][-1].rho, "a part has both ends"


def test_no_part_is_refused() -> None:
    weigher = mixed_batch(0, 3)
    with pytest.raises(ValueError, match="cut into 0 parts; give 1 or more"):
        cut(density_order(weigher), 0, weigher)
