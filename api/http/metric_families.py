"""Prometheus families: of dispatching, of a node's actor runtime (``blockwright_runtime_*``), and sums over processes.

Every sample of a front is a count, a sum or a number of requests, so that adding up all processes is correct.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from ...actors.gateway.peers import Family
from ...actors.gateway.port import DispatchFigures
from ...runtime.base.node_view import Measure

_HISTOGRAMS = (
    ("dispatch_seconds", "Seconds a request waited for a dispatcher's answer or its timeout.", "asked"),
    ("dispatch_rank", "Rank of the chosen route among all routes by load, for a sample of requests.", "rank"),
    ("forecast_ttft_error", "Relative error of the forecast time of the first token.", "first_token_error"),
    ("forecast_latency_error", "Relative error of the forecast time of the last token.", "latency_error"),
)
_COUNTERS = (
    ("dispatch_fallback", "Requests whose route the dispatch policy could not choose, by reason.", "fallbacks"),
    ("dispatch_unanswered", "Times a predictor had no answer for a dispatcher, by reason.", "unanswered"),
)


def dispatch_families(figures: DispatchFigures) -> Iterator[Metric]:
    for name, text, field in _HISTOGRAMS:
        numbers = getattr(figures, field)
        histogram = HistogramMetricFamily(f"blockwright:{name}", text)
        histogram.add_metric([], buckets=numbers.buckets(), sum_value=numbers.total)
        yield histogram
    for name, text, field in _COUNTERS:
        counter = CounterMetricFamily(f"blockwright:{name}", text, labels=["reason"])
        for reason, count in getattr(figures, field).items():
            counter.add_metric([reason], count)
        yield counter


def runtime_families(measures: Iterable[Measure]) -> Iterator[Metric]:
    for measure in measures:
        family = Metric(measure.name, measure.text, measure.kind)
        name = f"{measure.name}_total" if measure.kind == "counter" else measure.name
        for labels, value in measure.samples:
            family.add_sample(name, labels, value)
        yield family


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
