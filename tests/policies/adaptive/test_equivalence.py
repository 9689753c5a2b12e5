"""Which pairs of blocks are measured, which count and why not, and which longer ones are tried next."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from blockwright.policies.adaptive.equivalence import (
    BlockPair,
    EquivalenceLimits,
    PairFigures,
    candidate_pairs,
    layers_of,
    longer_pairs,
    points_lost,
    refusal,
)
from blockwright.policies.model.chain import Component, Kind

LIMITS = EquivalenceLimits()
Places = tuple[int, int, int, int]


def chain(layers: int, model: str, *, width: int = 8, vocabulary: int = 32, parallel: bool = False) -> list[Component]:
    """A chain whose components are all of their own."""
    kinds = [Kind.PARALLEL] if parallel else [Kind.ATTENTION, Kind.MLP]
    inner = [(f"{i}{kind}", kind, width, width) for i in range(layers) for kind in kinds]
    every = [("embedding", Kind.EMBEDDING, 0, width), *inner, ("head", Kind.HEAD, width, vocabulary)]
    return [Component(f"{model}/{name}".encode(), kind, 1, *widths) for name, kind, *widths in every]


def places(pairs: Sequence[BlockPair]) -> list[Places]:
    return [(one.first, one.last, one.other_first, one.other_last) for one in pairs]


def candidates(own: list[Component], other: list[Component], same_tokens: bool = False) -> list[Places]:
    return places(candidate_pairs(own, other, same_tokens=same_tokens))


def test_chains_of_as_many_layers_are_compared_by_component_and_layer() -> None:
    found = candidates(chain(2, "a"), chain(2, "b"), same_tokens=True)
    assert found == [(n, m, n, m) for n, m in [(0, 1), (1, 2), (1, 3), (2, 3), (3, 4), (3, 5), (4, 5), (5, 6)]]
    assert candidates(chain(2, "a"), chain(2, "b")) == found[1:-1], "embedding and head speak of their own tokens"


def test_layers_of_other_kinds_are_compared_whole() -> None:
    assert layers_of(chain(2, "a", parallel=True)) == [(1, 2), (2, 3)]
    assert candidates(chain(2, "a", parallel=True), chain(2, "b")) == [(1, 2, 1, 3), (2, 3, 3, 5)]


def test_groups_of_3_and_of_4_layers_end_at_the_same_relative_depth() -> None:
    found = candidates(chain(6, "a", parallel=True), chain(8, "b", parallel=True))
    assert {(1, 4, 1, 5), (4, 7, 5, 9)} <= {*found}
    fine = [one for one in found if one[1] - one[0] == 1]
    assert [(first, last - first) for _, _, first, last in fine] == [(1, 1), (2, 2), (4, 1), (5, 1), (6, 2), (8, 1)]
    assert candidates(chain(3, "a", parallel=True), chain(4, "b", parallel=True)) == [
        (1, 2, 1, 2),
        (1, 4, 1, 5),
        (2, 3, 2, 4),
        (3, 4, 4, 5),
    ]


@pytest.mark.parametrize(("mine", "theirs"), [(32, 40), (40, 32), (5, 7), (1, 12)])
def test_groups_cover_every_layer_of_both_once(mine: int, theirs: int) -> None:
    count = min(mine, theirs)
    found = candidates(chain(mine, "a", parallel=True), chain(theirs, "b", parallel=True))
    fine = [one for one in found if min(one[1] - one[0], one[3] - one[2]) == 1]
    for side, layers in ((0, mine), (2, theirs)):
        groups = dict.fromkeys((one[side], one[side + 1]) for one in fine)
        assert [layer for first, last in groups for layer in range(first, last)] == list(range(1, layers + 1))
        assert len(groups) == count


def test_equal_blocks_are_left_out() -> None:
    own, other = chain(2, "a"), chain(2, "b")
    other[1:3] = own[1:3]
    assert candidates(own, other) == [(3, 4, 3, 4), (3, 5, 3, 5), (4, 5, 4, 5)]
    assert candidates(own, own, same_tokens=True) == []


def test_a_pair_counts_when_both_hold() -> None:
    def why(kl: float | None, lost: float | None, similarity: float = 0.99, swappable: bool = True) -> str:
        return refusal(PairFigures(similarity, 0.9, kl, lost), LIMITS, swappable=swappable)

    assert why(0.4, 1.0) == "", "answers decide where there are any"
    assert why(0.025, None) == ""
    assert why(0.01, 1.25) == "only looks alike: a swap loses 1.25 answers in 100, more than 1"
    assert why(0.03, None) == "only looks alike: a swap moves the output by 0.0300 nats, more than 0.025"
    assert why(None, None) == "only looks alike: a swap is not measured"
    assert why(0.0, 0.0, similarity=0.9799) == "similarity 0.9799 is below 0.98"
    assert why(None, None, swappable=False) == "their widths differ: a stitch has to join them"
    assert why(0.0, -0.5, similarity=0.98) == "", "a swap may also gain answers"


def test_answers_measure_damage_only_where_there_are_enough() -> None:
    assert points_lost(90, 81, 120) == 7.5
    assert points_lost(60, 61, 120) == pytest.approx(-100 / 120)
    assert points_lost(59, 0, 120) is None, "a chain that knows few answers can lose few"
    assert points_lost(0, 0, 0) is None


@pytest.mark.parametrize(
    ("name", "value", "most"), [("similarity", 1.5, "1"), ("damage", -1.0, "100"), ("kl", float("nan"), "100")]
)
def test_limits_out_of_range_are_refused(name: str, value: float, most: str) -> None:
    said = "threshold" if name == "similarity" else name
    with pytest.raises(ValueError, match=f"^{said} is {value:g}; give a number from 0 to {most}$"):
        EquivalenceLimits(**{name: value})


def search(layers: int, counts: set[Places], own: list[Component] | None = None) -> tuple[list[Places], dict[Places, bool]]:
    """Play the rounds of a search: the longer pairs that were tried, and all verdicts."""
    mine, other = own or chain(layers, "a", parallel=True), chain(layers, "b", parallel=True)
    judged: dict[BlockPair, bool] = {}
    tried: list[Places] = []
    new = candidate_pairs(mine, other, same_tokens=False)
    while new:
        judged |= {pair: places([pair])[0] in counts for pair in new}
        new = longer_pairs(mine, other, judged, same_tokens=False)
        tried += places(new)
        assert len(tried) < 20
    return tried, {places([pair])[0]: verdict for pair, verdict in judged.items()}


def block(first: int, last: int) -> Places:
    return (first, last, first, last)


def test_layers_that_count_one_by_one_are_tried_together() -> None:
    singles = {block(i, i + 1) for i in range(1, 9)}
    assert search(8, singles | {block(1, 9)})[0] == [block(1, 9)]
    assert search(8, singles - {block(4, 5)})[0][:2] == [block(1, 4), block(5, 9)], "the runs on both sides"
    assert search(8, {block(4, 5)})[0] == []


@pytest.mark.parametrize("length", range(1, 9))
def test_the_longest_end_that_counts_is_found_by_halving(length: int) -> None:
    singles = {block(i, i + 1) for i in range(1, 9)}
    tried, judged = search(8, singles | {block(first, 9) for first in range(9 - length, 9)})
    assert min(one[0] for one, verdict in judged.items() if verdict and one[1] == 9) == 9 - length
    assert len(tried) <= 4


def test_equal_layers_lie_within_longer_pairs_and_never_at_their_ends() -> None:
    own = chain(5, "a", parallel=True)
    other = chain(5, "b", parallel=True)
    for place in (1, 3, 5):
        own[place] = other[place]
    tried, _ = search(5, {block(2, 3), block(4, 5), block(2, 5)}, own)
    assert tried == [block(2, 5)]
