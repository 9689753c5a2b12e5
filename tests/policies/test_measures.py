"""Measures: samples by label, cumulative buckets, and the counters of several processes as one."""

from __future__ import annotations

from blockwright.policies.measures import Histogram, Measure, counter, gauge, histogram, summed


def things(**values: float) -> Measure:
    return counter("blockwright:things", "Things.", values, "kind")


def values(measure: Measure) -> dict[str, float]:
    return {labels["kind"]: value for _, labels, value in measure.samples}


def test_samples_of_one_name_and_label_are_added_up() -> None:
    first, second = things(a=1, b=2), things(b=3, c=4)
    (measure,) = summed([[first], [second]])
    assert values(measure) == {"a": 1, "b": 5, "c": 4}
    assert (measure.name, measure.text, measure.kind) == ("blockwright:things", "Things.", "counter")
    assert (values(first), values(second)) == ({"a": 1, "b": 2}, {"b": 3, "c": 4}), "the summands stay"


def test_one_process_is_itself() -> None:
    assert summed([[things(a=1)]]) == [things(a=1)]
    assert summed([]) == []


def test_a_histogram_has_cumulative_buckets_its_count_and_its_sum() -> None:
    numbers = Histogram((0.5, 2))
    for value, times in ((0.5, 1), (1, 2), (3, 1)):
        numbers.observe(value, times)
    made = histogram("h", "Times.", {("m", "w"): numbers}, "model", "worker")
    labels = {"model": "m", "worker": "w"}
    assert made.samples == [
        ("h_bucket", labels | {"le": "0.5"}, 1),
        ("h_bucket", labels | {"le": "2.0"}, 3),
        ("h_bucket", labels | {"le": "+Inf"}, 4),
        ("h_count", labels, 4),
        ("h_sum", labels, 5.5),
    ]


def test_names_of_samples_follow_from_the_kind() -> None:
    assert counter("c", "Text.", {(): 1}).samples == [("c_total", {}, 1.0)]
    assert gauge("g", "Text.", {"x": 1}, "l").samples == [("g", {"l": "x"}, 1.0)]
