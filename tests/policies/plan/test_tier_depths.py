"""The depth of a tier is the least that takes as long as the smaller model."""

from __future__ import annotations

from blockwright.policies.plan.tier_depths import coarse_depths, depths_between, equal_depth


def test_the_least_depth_that_takes_as_long_is_found_in_two_rounds() -> None:
    seconds = {depth: 1.0 + depth for depth in range(1, 81)}
    first = coarse_depths(80)
    assert first == [1, *range(5, 81, 5)]
    coarse = {depth: seconds[depth] for depth in first}
    for wanted in (1, 4, 5, 6, 23, 79, 80):
        latency = seconds[wanted]
        closer = depths_between(latency, coarse)
        assert len(closer) <= 4
        assert equal_depth(latency, coarse | {depth: seconds[depth] for depth in closer}) == wanted
    assert (depths_between(0.5, coarse), equal_depth(0.5, coarse)) == ([], 1)
    assert (depths_between(99.0, coarse), equal_depth(99.0, coarse)) == ([], None)


def test_few_layers_are_all_measured() -> None:
    assert coarse_depths(6) == [1, 2, 3, 4, 5, 6]
    assert coarse_depths(1) == [1]
