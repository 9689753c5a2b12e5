"""Traffic by pair of components: what passes there, what a crossing costs, and where variants count."""

from __future__ import annotations

import pytest

from blockwright.policies.cluster.traffic import (
    VALUE_BYTES,
    LinkCost,
    Passages,
    crossing_seconds,
    seconds_of,
    top_pairs,
)
from blockwright.policies.control.events import Application
from blockwright.tests.fake_cluster import application

WIDTH = 8  # of the fake applications


def zoo(*names: str) -> dict[str, Application]:
    """Two fine-tunes that share two components, and another model."""
    ids = {"a": "eABx", "b": "eACy", "c": "uVWz"}
    return {name: application(name, ids[name]) for name in names}


def test_what_applications_share_counts_for_all_of_them() -> None:
    counts = {"a": Passages(1, 5), "b": Passages(1, 4), "c": Passages(1, 7)}
    assert top_pairs(counts, zoo("a", "b", "c")) == (("a", "b"), ("c",), ("a",), ("b",))


def test_ties_go_by_name_and_what_nothing_passes_is_left_out() -> None:
    counts = {"c": Passages(1, 5), "a": Passages(1, 5), "b": Passages(0, 0)}
    assert top_pairs(counts, zoo("a", "b", "c")) == (("a",), ("a", "b"), ("c",))
    assert top_pairs({"gone": Passages(1, 5)}, zoo("a")) == ()


def test_a_crossing_costs_a_message_for_each_sweep_and_the_bytes_of_each_position() -> None:
    passed = Passages(10, 1000)
    found = crossing_seconds({"a": passed}, zoo("a", "c"))
    assert found == {"a": [0.0, *[seconds_of(passed, WIDTH)] * 3], "c": [0.0] * 4}
    assert seconds_of(Passages(2, 0), WIDTH) == pytest.approx(2 * seconds_of(Passages(1, 0), WIDTH))
    assert seconds_of(Passages(1, 1 << 30), 1000) > 1000


def test_a_measured_link_takes_the_place_of_the_guess() -> None:
    link = LinkCost(latency=0.25, rate=100.0)
    assert seconds_of(Passages(2, 50), 2, link) == pytest.approx(2 * 0.25 + 50 * 2 * VALUE_BYTES / 100)
    assert crossing_seconds({"a": Passages(2, 0)}, zoo("a"), link) == {"a": [0.0, 0.5, 0.5, 0.5]}


def test_a_variant_counts_where_its_pairs_are() -> None:
    """The own chain's first, then any other's; what only it has belongs nowhere."""
    chains = zoo("a", "c")
    chains["a~1"] = application("a~1", "eAWz", variant_of="a")
    passed = Passages(3, 300)
    one = seconds_of(passed, WIDTH)
    assert crossing_seconds({"a~1": passed}, chains) == {"a": [0.0, one, 0.0, 0.0], "c": [0.0, 0.0, 0.0, one]}
    assert top_pairs({"a~1": passed, "c": Passages(1, 1)}, chains)[0] == ("a~1", "c")
