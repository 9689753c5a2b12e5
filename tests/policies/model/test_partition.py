"""Blocks are cut where sharing changes and at hops; placement covers every chain and balances it."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockwright.policies.model.chain import Component, Kind, KvLayout
from blockwright.policies.model.partition import cut_blocks, hop_borders, place


def components(ids: str, sizes: list[int] | None = None) -> list[Component]:
    return [Component(c.encode() * 16, Kind.MLP, (sizes or [1] * len(ids))[i], 8, 8) for i, c in enumerate(ids)]


def cuts(chains: dict[str, str], hops: dict[str, list[int]] | None = None) -> dict[str, str]:
    """Blocks as text: ids with bars between blocks."""
    blocks = cut_blocks({name: components(ids) for name, ids in chains.items()}, hops)
    return {name: "|".join("".join(chr(c.id[0]) for c in b.components) for b in bs) for name, bs in blocks.items()}


def test_a_model_alone_is_one_block():
    assert cuts({"a": "eAmBnh"}) == {"a": "eAmBnh"}


def test_a_copy_shares_all_and_is_not_cut():
    assert cuts({"a": "eAmBnh", "copy": "eAmBnh"}) == {"a": "eAmBnh", "copy": "eAmBnh"}


def test_models_are_cut_where_they_diverge_and_where_they_meet_again():
    assert cuts({"a": "eAmBnh", "b": "eAmCoh"}) == {"a": "eAm|Bn|h", "b": "eAm|Co|h"}


def test_three_models_are_cut_where_the_set_of_sharers_changes():
    assert cuts({"a": "123456", "b": "1234xy", "c": "12pqrs"}) == {"a": "12|34|56", "b": "12|34|xy", "c": "12|pqrs"}


def test_a_hop_border_of_one_is_a_border_of_all_that_share_the_place():
    assert cuts({"a": "123456", "b": "123456"}, {"a": [0, 3]}) == {"a": "123|456", "b": "123|456"}


@given(sizes=st.lists(st.integers(0, 20), min_size=1, max_size=9), span=st.integers(1, 4))
def test_the_largest_hop_is_as_small_as_can_be(sizes, span):
    chain = components("x" * len(sizes), sizes)
    if span > len(sizes):
        with pytest.raises(ValueError, match="lower pipeline"):
            hop_borders(chain, span)
        return
    borders = hop_borders(chain, span)
    assert (borders[0], borders[-1], len(borders)) == (0, len(sizes), span + 1)
    assert all(a < b for a, b in itertools.pairwise(borders))
    largest = max(sum(sizes[a:b]) for a, b in itertools.pairwise(borders))
    others = itertools.combinations(range(1, len(sizes)), span - 1)
    assert largest == min(max(sum(sizes[a:b]) for a, b in itertools.pairwise([0, *o, len(sizes)])) for o in others)


def test_replicas_are_one_route_per_worker():
    routes = place({"a": components("123"), "b": components("45")}, ["w0", "w1"], version=7)
    assert [r.id for r in routes] == ["a@w0", "a@w1", "b@w0", "b@w1"]
    assert all(len(r.hops) == 1 and r.version == 7 for r in routes)
    assert (routes[0].hops[0].first, routes[0].hops[0].last, routes[0].home) == (0, 3, "w0")


def test_pipelines_are_groups_of_consecutive_workers_balanced_by_bytes():
    chain = components("e12345h", [30, 10, 10, 10, 10, 10, 30])
    routes = place({"a": chain}, ["w0", "w1", "w2", "w3"], {"a": 2})
    assert [r.id for r in routes] == ["a@w0+w1", "a@w2+w3"]
    assert [(h.worker, h.first, h.last) for h in routes[1].hops] == [("w2", 0, 4), ("w3", 4, 7)]
    assert routes[1].home == "w2"


@pytest.mark.parametrize(
    ("kinds", "span", "hops"), [("eamamamh", 3, "eam am amh"), ("eamh", 2, "ea mh"), ("eamh", 3, "e am h")]
)
def test_every_hop_has_kv_where_the_chain_has_enough(kinds, span, hops):
    """A vocabulary larger than all layers together: by bytes alone embedding and head would get hops of their own."""
    layout = KvLayout(1, 8, "float32", 4)
    chain = [Component(c.encode() * 16, Kind.MLP, 90 if c in "eh" else 1, 8, 8, layout if c == "a" else None) for c in kinds]
    borders = hop_borders(chain, span)
    assert " ".join(kinds[a:b] for a, b in itertools.pairwise(borders)) == hops


def test_workers_that_form_no_whole_groups_are_refused():
    with pytest.raises(ValueError, match="3 workers"):
        place({"a": components("12")}, ["w0", "w1", "w2"], {"a": 2})
