"""Prometheus families for drafts: rounds, verified and accepted tokens, by model and source, under vLLM's names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, Metric

from ...actors.gateway.port import DraftCounts
from ...policies.drafts.options import SOURCES

_COUNTERS = (
    ("vllm:spec_decode_num_drafts", "Steps of ended requests in which drafts were verified.", "rounds"),
    ("vllm:spec_decode_num_draft_tokens", "Drafted tokens that were verified in these steps.", "drafted"),
    ("vllm:spec_decode_num_accepted_tokens", "Of these, the tokens that stood.", "accepted"),
)


def added(first: Mapping[str, DraftCounts], then: Mapping[str, DraftCounts]) -> dict[str, DraftCounts]:
    """Return the sums of two counts by source."""
    total = dict(first)
    for source, one in then.items():
        total[source] = total.get(source, DraftCounts()).plus(one.rounds, one.drafted, one.accepted)
    return total


def draft_families(models: Mapping[str, Mapping[str, DraftCounts]]) -> Iterator[Metric]:
    """Yield the families, with a sample for each source. ``models``: the counts of each model by source."""
    for name, text, field in _COUNTERS:
        counter = CounterMetricFamily(name, text, labels=["model_name", "source"])
        for model, sources in models.items():
            for source in SOURCES:  # also before the first round, or the first increase would not be seen
                counter.add_metric([model, source], getattr(sources.get(source, DraftCounts()), field))
        yield counter
