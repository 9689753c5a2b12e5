"""Counters of several processes as one."""

from __future__ import annotations

from prometheus_client.core import CounterMetricFamily, Metric

from blockwright.api.http.metric_families import plain, summed


def family(**values: float) -> CounterMetricFamily:
    made = CounterMetricFamily("blockwright:things", "Things.", labels=["kind"])
    for kind, value in values.items():
        made.add_metric([kind], value)
    return made


def values(metric: Metric) -> dict[str, float]:
    return {sample.labels["kind"]: sample.value for sample in metric.samples}


def test_samples_of_one_name_and_label_are_added_up() -> None:
    (metric,) = summed([plain([family(a=1, b=2)]), plain([family(b=3, c=4)])])
    assert values(metric) == {"a": 1, "b": 5, "c": 4}
    assert (metric.name, metric.documentation, metric.type) == ("blockwright:things", "Things.", "counter")


def test_one_process_is_itself() -> None:
    assert [values(m) for m in summed([plain([family(a=1)])])] == [{"a": 1}]
    assert list(summed([])) == []
