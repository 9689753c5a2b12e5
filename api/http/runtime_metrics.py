"""Prometheus families ``blockwright_runtime_*``: the counters of a node's actor runtime."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import Metric

from ...runtime.base.node_view import Measure


def runtime_families(measures: Iterable[Measure]) -> Iterator[Metric]:
    for measure in measures:
        family = Metric(measure.name, measure.text, measure.kind)
        name = f"{measure.name}_total" if measure.kind == "counter" else measure.name
        for labels, value in measure.samples:
            family.add_sample(name, labels, value)
        yield family
