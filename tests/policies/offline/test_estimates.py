"""Samples and what they tell of the others, against the definition on a thousand small batches."""

from __future__ import annotations

from random import Random
from statistics import fmean

import pytest

from blockwright.policies.offline.estimates import LARGE, Estimates, choose_samples
from blockwright.policies.offline.prefix_tree import PrefixTree, packed
from blockwright.tests.policies.offline.reference_tree import Node, grow, random_prompts


def above(node: Node, request: int) -> list[Node]:
    """The nodes from a request's parent up to the root."""
    inner = [child for child in node.children if request in child.requests and not child.leaf]
    return [*(above(inner[0], request) if inner else []), node]


@pytest.mark.parametrize("part", range(10))
def test_an_estimate_is_the_mean_of_the_nearest_subtree_with_samples(part: int) -> None:
    for seed in range(100):
        random = Random(100 * part + seed)
        prompts = random_prompts(random)
        count = len(prompts)
        limits = [random.randint(1, 50) for _ in prompts]
        hints = [random.uniform(0.5, 40) for _ in prompts] if random.random() < 0.5 else []
        fixed = [random.choice([0, 0, 9]) for _ in prompts] if random.random() < 0.3 else []
        tree = PrefixTree([packed(prompt) for prompt in prompts])
        estimates = Estimates(tree, limits, hints=hints, fixed=fixed)
        known = {request: min(fixed[request], limits[request]) for request in range(count) if fixed and fixed[request]}
        taught: dict[int, int] = {}
        root = grow(prompts, list(range(count)))
        for request in random.sample(range(count), random.randint(0, count)):
            length = random.randint(0, limits[request])
            estimates.finished(request, length)
            if request not in known:
                known[request] = taught[request] = length
        for request in range(count):
            wanted = hints[request] if hints else limits[request]
            for node in above(root, request):
                if samples := [one for one in node.requests if one in taught]:
                    mean = fmean(taught[one] for one in samples)
                    wanted = hints[request] * mean / fmean(hints[one] for one in samples) if hints else mean
                    break
            wanted = known.get(request, min(max(wanted, 1), limits[request]))
            assert estimates.output(request) == pytest.approx(wanted)
        assert list(estimates.outputs()) == [estimates.output(request) for request in range(count)]


def test_each_large_subtree_has_a_sample() -> None:
    """Of 100 requests one, and where these missed a child of the root with as many, that with the least number."""
    prompts = [(source, n) for source in range(4) for n in range(LARGE if source < 3 else LARGE - 1)]
    tree = PrefixTree([packed(prompt) for prompt in prompts])
    random = Random(1)
    numbers = [random.uniform(0.02, 1.0) for _ in prompts]
    numbers[5] = numbers[7] = 0.001
    least = min(range(LARGE, 2 * LARGE), key=numbers.__getitem__)
    known = [0] * len(prompts)
    known[2 * LARGE : 3 * LARGE] = [64] * LARGE  # nothing is to be learned there
    assert choose_samples(tree, numbers, 0.01, known) == [5, 7, least]
    assert choose_samples(tree, numbers, 0.0) == []
    assert choose_samples(tree, numbers, 1.0) == list(range(len(prompts)))
    assert choose_samples(tree, numbers, 1.0, known) == [n for n in range(len(prompts)) if not known[n]]


def test_a_request_that_ends_again_teaches_nothing_new() -> None:
    tree = PrefixTree([packed([1, n]) for n in range(3)])
    estimates = Estimates(tree, [100] * 3)
    estimates.finished(0, 10)
    estimates.finished(0, 90)
    assert list(estimates.outputs()) == [10.0, 10.0, 10.0]


def test_columns_and_values_that_do_not_fit_are_refused() -> None:
    tree = PrefixTree([packed([1]), packed([2])])
    with pytest.raises(ValueError, match="limits has 1 values; the tree has 2 requests"):
        Estimates(tree, [5])
    with pytest.raises(ValueError, match="the limit of request 1 is 0 tokens; give 1 or more"):
        Estimates(tree, [5, 0])
    with pytest.raises(ValueError, match=r"the hint of request 0 is 0\.0 tokens"):
        Estimates(tree, [5, 5], hints=[0.0, 1.0])
    with pytest.raises(ValueError, match="the fixed length of request 1 is -2 tokens"):
        Estimates(tree, [5, 5], fixed=[0, -2])
    with pytest.raises(ValueError, match=r"share of requests that are sampled is 1\.5; give 0 to 1"):
        choose_samples(tree, [0.5, 0.5], 1.5)
    with pytest.raises(ValueError, match="numbers has 1 values"):
        choose_samples(tree, [0.5])
