"""Prometheus families for dispatching: time to decide, failures, accuracy of forecasts."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from ...actors.gateway.port import DispatchFigures

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
