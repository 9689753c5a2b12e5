"""Layer sort, splitting, merging and figures of units, against plain definitions on a thousand small batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import pytest

from blockwright.policies.offline.density import Costs, density
from blockwright.policies.offline.order import MODES, OrderRules, Unit, Weigher, density_order, largest_within, waste
from blockwright.policies.offline.prefix_tree import PrefixTree, packed
from blockwright.tests.parts import parts
from blockwright.tests.policies.offline.reference_tree import (
    Node,
    Prompt,
    answer_cost,
    grow,
    layer_sort,
    leaves,
    prefixes,
    random_costs,
    random_prompts,
    reading,
    shared,
    split_as_in_the_paper,
    split_in_proportion,
    token_cost,
)


@dataclass
class Batch:
    prompts: list[Prompt]
    outputs: list[int]
    costs: Costs
    weigher: Weigher

    def wasted(self, requests: list[int]) -> int:
        """Tokens computed in this order beyond the distinct ones."""
        prompts = [self.prompts[request] for request in requests]
        fresh = [len(one) - shared(one, before) for one, before in zip(prompts, [(), *prompts], strict=False)]
        return sum(fresh) - len(prefixes(prompts))

    def check(self, units: list[Unit], requests: list[int] | None = None) -> None:
        """Each request once; prefixes together within a unit; figures as a walk over tokens finds them."""
        found = [request for unit in units for request in unit.requests]
        assert sorted(found) == sorted(requests if requests is not None else range(len(self.prompts)))
        before: Prompt = ()
        for unit in units:
            inside = [self.prompts[request] for request in unit.requests]
            assert self.weigher.tree.computed(unit.requests) == len(prefixes(inside)), "a prefix is computed twice in a unit"
            comp = mem = held = tokens = 0.0
            for request in unit.requests:
                prompt = self.prompts[request]
                fresh = range(shared(before, prompt), len(prompt))
                comp += sum(token_cost(self.costs, place) for place in fresh) + answer_cost(
                    self.costs, self.outputs[request]
                )
                mem += reading(self.costs, len(prompt), self.outputs[request])
                tokens += len(fresh)
                held += self.outputs[request] / 2
                before = prompt
            assert (unit.comp, unit.mem, unit.tokens, unit.positions) == (comp, mem, tokens, tokens + held)
        assert waste(self.weigher.tree, units) == self.wasted(found)


def random_batch(seed: int) -> tuple[Random, Batch]:
    random = Random(seed)
    prompts, costs = random_prompts(random), random_costs(random)
    outputs = [random.choice([0, 1, 2, 5, 40]) for _ in prompts]
    tree = PrefixTree([packed(prompt) for prompt in prompts])
    return random, Batch(prompts, outputs, costs, Weigher(tree, costs, outputs))


@pytest.mark.parametrize("part", parts(10, 4))
def test_units_are_the_nodes_that_are_kept_by_density(part: int) -> None:
    for seed in range(100):
        random, batch = random_batch(100 * part + seed)
        root = grow(batch.prompts, list(range(len(batch.prompts))))
        weights = layer_sort(root, 0, batch.prompts, batch.outputs, batch.costs)
        rho = {node: density(*taken) for node, taken in weights.items()}
        share, loss = random.choice([0.0, 0.05, 0.2, 1.0]), random.choice([0.02, 0.5, 1.0])
        allowance = share * sum(map(len, batch.prompts))

        def order(runs: list[list[Node]]) -> list[list[int]]:
            """Requests of runs of nodes by density."""
            taken = [[sum(weights[id(node)][kind] for node in run) for kind in (0, 1)] for run in runs]  # noqa: B023
            places = sorted(range(len(taken)), key=lambda run: -density(*taken[run]))
            return [[request for node in runs[place] for request in leaves(node)] for place in places]

        def attempt(given: float) -> tuple[list[list[int]], int]:
            found = order(split_in_proportion(root, given, batch.prompts, rho))  # noqa: B023
            return found, batch.wasted([request for one in found for request in one])  # noqa: B023

        wanted = {
            "paper": order(split_as_in_the_paper(root, allowance)),
            "proportional": largest_within(
                min(allowance, loss * (batch.weigher.tree.tokens - batch.weigher.tree.distinct)), attempt
            ),
            "off": order([[child] for child in root.children]),
        }
        for mode in MODES:
            units = density_order(batch.weigher, OrderRules(mode=mode, allowance=share, loss=loss, likeness=0.0))
            batch.check(units)
            assert [list(unit.requests) for unit in units] == wanted[mode]


def test_an_allowance_is_what_is_really_wasted() -> None:
    """The largest that is found with which an attempt stays below."""
    tried: list[float] = []

    def wasting(share: float) -> Callable[[float], tuple[float, int]]:
        def attempt(allowance: float) -> tuple[float, int]:
            tried.append(allowance)
            return min(allowance, 5000.0), round(share * allowance)

        tried.clear()
        return attempt

    assert largest_within(100.0, wasting(0.75)) == 100.0
    assert tried == [100.0]
    assert largest_within(100.0, wasting(0.0)) == 5000.0, "nothing is gained by more"
    assert tried == [100.0, 800.0, 6400.0, 51200.0]
    assert 5.0 <= largest_within(100.0, wasting(10.0)) <= 10.0
    assert largest_within(100.0, wasting(0.01)) == 5000.0
    assert 100.0 < largest_within(100.0, wasting(0.2)) <= 500.0
    assert largest_within(100.0, lambda allowance: (allowance, 1000 * bool(allowance))) == 0.0
    assert largest_within(0.0, wasting(1.0)) == 0.0


@pytest.mark.parametrize("part", parts(10, 4))
def test_joining_keeps_what_is_shared_and_ends_at_a_quarter_of_memory(part: int) -> None:
    for seed in range(100):
        random, batch = random_batch(100 * part + seed)
        tree, memory = batch.weigher.tree, random.choice([0, 40, 200, 2000])
        share, likeness = random.choice([0.0, 0.05, 0.2, 1.0]), random.choice([0.1, 0.5, 3.0])
        alone = density_order(batch.weigher, OrderRules(mode="paper", allowance=share, likeness=0.0))
        units = density_order(batch.weigher, OrderRules(mode="paper", allowance=share, likeness=likeness), memory)
        batch.check(units)
        assert waste(tree, units) <= waste(tree, alone)
        whole = {tuple(unit.requests) for unit in alone}
        for unit in units:
            assert not memory or unit.positions <= memory / 4 or tuple(unit.requests) in whole
        for mode, allowed in (("proportional", min(share * tree.tokens, 0.02 * (tree.tokens - tree.distinct))), ("off", 0)):
            units = density_order(batch.weigher, OrderRules(mode=mode, allowance=share, likeness=likeness), memory)
            batch.check(units)
            assert waste(tree, units) <= allowed


def test_some_of_the_requests_are_ordered_as_if_there_were_no_others() -> None:
    for seed in range(200):
        random, batch = random_batch(seed)
        some = sorted(random.sample(range(len(batch.prompts)), random.randint(0, len(batch.prompts))))
        rules = OrderRules(mode=random.choice(MODES), allowance=random.choice([0.0, 0.1, 1.0]))
        units = density_order(batch.weigher, rules, requests=some)
        batch.check(units, some)
        prompts = [packed(batch.prompts[request]) for request in some]
        weigher = Weigher(PrefixTree(prompts), batch.costs, [batch.outputs[request] for request in some])
        assert [unit.rho for unit in units] == [unit.rho for unit in density_order(weigher, rules)]


def test_the_whole_takes_the_least() -> None:
    for seed in range(100):
        _, batch = random_batch(seed)
        batch.check([batch.weigher.whole()])
        assert batch.weigher.whole().tokens == batch.weigher.tree.distinct


def test_units_of_like_density_are_joined_and_their_sharers_meet() -> None:
    """Two sources, opened: their requests come in turns by density, until those within a tenth are joined."""
    prompts = [(source, *[9] * 20, n) for n in range(10) for source in (1, 2)]
    outputs = [40 + n // 8 for n in range(20)]
    tree = PrefixTree([packed(prompt) for prompt in prompts])
    weigher = Weigher(tree, Costs(1.0, 0.0, 0.01), outputs)
    apart = density_order(weigher, OrderRules(mode="paper", allowance=1.0, likeness=0.0))
    assert (len(apart), waste(tree, apart) > 0) == (20, True)
    joined = density_order(weigher, OrderRules(mode="paper", allowance=1.0, likeness=0.1))
    assert (len(joined), waste(tree, joined)) == (1, 0)
    quarters = density_order(weigher, OrderRules(mode="paper", allowance=1.0, likeness=0.1), memory=1000)
    assert max(unit.positions for unit in quarters) <= 250
    assert waste(tree, quarters) == 0


def test_an_outlier_leaves_its_source() -> None:
    """One long answer in a dense source runs with the memory-heavy ones, where a prefix costs little."""
    prompts = [(1, *[5] * 10, n, *[7] * 200) for n in range(60)] + [(n,) for n in range(2, 12)]
    outputs = [2] * 60 + [400] * 10
    outputs[17] = 5000
    weigher = Weigher(PrefixTree([packed(prompt) for prompt in prompts]), Costs(1.0, 0.0, 0.01), outputs)
    assert list(density_order(weigher)[-1].requests) == [17]
    whole = density_order(weigher, OrderRules(mode="off"))
    assert next(len(unit.requests) for unit in whole if 17 in unit.requests) == 60


def test_a_batch_with_one_beginning_is_not_one_unit() -> None:
    """All prompts share a long prefix. Opening it would cost a tenth of the tokens at worst, and costs nothing: whatever the
    densities, its children are neighbors of each other."""
    prompts = [(*[1] * 500, n, *[2] * 100) for n in range(300)]
    outputs = [1 + 3 * n for n in range(300)]
    weigher = Weigher(PrefixTree([packed(prompt) for prompt in prompts]), Costs(1.0, 0.0, 0.01), outputs)
    for mode, lowest, highest in (("off", 1, 1), ("paper", 1, 1), ("proportional", 20, 60)):
        units = density_order(weigher, OrderRules(mode=mode))
        assert lowest <= len(units) <= highest
        assert waste(weigher.tree, units) == 0
        assert [unit.mem / len(unit.requests) for unit in units] == sorted(unit.mem / len(unit.requests) for unit in units)


def test_what_cannot_be_opened_wholly_is_cut_as_often_as_is_paid_for() -> None:
    """Two sources whose requests come in turns by density: each place in which one ends up costs its prefix."""
    prompts = [(source, *[1] * 500, n, *[2] * 100) for n in range(150) for source in (3, 4)]
    outputs = [1 + 3 * n for n in range(300)]
    weigher = Weigher(PrefixTree([packed(prompt) for prompt in prompts]), Costs(1.0, 0.0, 0.01), outputs)
    tokens = weigher.tree.tokens
    counts = []
    for share in (0.0, 0.01, 0.03, 0.1, 0.3):
        units = density_order(weigher, OrderRules(allowance=share, loss=1.0))
        counts.append(len(units))
        assert waste(weigher.tree, units) <= share * tokens
    assert counts == sorted(counts)
    assert counts[0] == 1 < counts[1]


def test_no_requests_and_a_deep_chain() -> None:
    assert density_order(Weigher(PrefixTree([]), Costs(1, 0, 1), [])) == []
    count = 1500
    weigher = Weigher(PrefixTree([packed(range(length)) for length in range(count)]), Costs(1, 0, 1), [1] * count)
    for mode in MODES:
        assert sum(len(unit.requests) for unit in density_order(weigher, OrderRules(mode=mode))) == count


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        ({"mode": "evenly"}, "mode is 'evenly'; .* proportional, paper, off"),
        ({"allowance": 1.5}, r"allowance is 1\.5; .*, 0 to 1"),
        ({"loss": 2.0}, r"loss is 2\.0; .*, 0 to 1"),
        ({"likeness": -0.1}, r"likeness is -0\.1; .*, 0 to 10"),
    ],
)
def test_rules_out_of_range_are_refused(rules: dict[str, float], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        OrderRules(**rules)
