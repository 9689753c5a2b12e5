"""Prometheus family of the choices of tiers: requests to ``NAME:auto``, by family and by the tier that answered."""

from __future__ import annotations

from prometheus_client.core import CounterMetricFamily, Metric

from ...actors.gateway.port import TierFigures


def tier_family(figures: TierFigures) -> Metric:
    """Return the family, with a sample for each tier that was chosen."""
    text = "Requests that chose their tier (NAME:auto), by the tier that answered."
    counter = CounterMetricFamily("blockwright:tier_choices", text, labels=["family", "tier"])
    for told, count in figures.chosen.items():
        counter.add_metric(told, count)
    return counter
