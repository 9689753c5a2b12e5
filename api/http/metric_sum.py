"""Metrics of several processes as one: Prometheus families as plain data, and their sums.

Every sample of a front is a count, a sum or a number of requests, so that adding up all processes is correct.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.core import Metric

from ...actors.gateway.peers import Family


def plain(families: Iterable[Metric]) -> list[Family]:
    return [
        Family(f.name, f.documentation, f.type, [(s.name, dict(s.labels), float(s.value)) for s in f.samples])
        for f in families
    ]


def summed(processes: Sequence[Sequence[Family]]) -> Iterator[Metric]:
    """Yield one family for each name, with its samples added up by name and labels, in order of first appearance."""
    made: dict[str, Metric] = {}
    values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
    for families in processes:
        for family in families:
            if family.name not in made:
                made[family.name] = Metric(family.name, family.text, family.kind)
                values[family.name] = {}
            table = values[family.name]
            for name, labels, value in family.samples:
                key = (name, tuple(labels.items()))
                table[key] = table.get(key, 0.0) + value
    for name, metric in made.items():
        for (sample, labels_of), value in values[name].items():
            metric.add_sample(sample, dict(labels_of), value)
        yield metric
