"""Prometheus families for the batches that run in this process: progress, summed for each model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric

Progress = Mapping[str, Any]  # a ``FeedProgress`` as plain data
_SUMS = (
    ("remaining_tokens", "Estimated prompt and answer tokens that running batches still have to compute."),
    ("given_back", "Times a line of a running batch was preempted and has to be sent again."),
)
_MEANS = (  # means, weighted by prompt tokens
    ("density", "Estimated compute time of running batches divided by their memory time."),
    ("sharing", "Share of the prompt tokens of finished lines that were found in the prefix cache."),
    ("sharing_best", "The share that a depth-first order with unlimited memory would find."),
)


def batch_families(figures: Iterable[Mapping[str, Any]]) -> Iterator[Metric]:
    """Yield the families. ``figures``: one entry for each batch, as ``actors/batches/actor.py`` makes them."""
    jobs: dict[str, list[Progress]] = {}
    for batch in figures:
        for model, job in batch["models"].items():
            jobs.setdefault(model, []).append(job)
    lines = _family("requests", "Lines of running batches by state.", "state")
    seconds = _family("remaining_seconds", "Estimated seconds until a model's longest running batch ends.")
    for model, some in jobs.items():
        for state, count in _states(some).items():
            lines.add_metric([model, state], count)
        if known := [job["remaining_seconds"] for job in some if job["remaining_seconds"] is not None]:
            seconds.add_metric([model], max(known))
    yield from (lines, seconds)
    for name, text in _SUMS:
        family = _family(name, text)
        for model, some in jobs.items():
            family.add_metric([model], sum(job[name] for job in some))
        yield family
    for name, text in _MEANS:
        family = _family(name, text)
        for model, some in jobs.items():
            total = sum(job["prompt_tokens"] for job in some)
            family.add_metric([model], sum(job[name] * job["prompt_tokens"] for job in some) / total)
        yield family
    yield _sides(jobs)


def _family(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"blockwright:batch_{name}", text, labels=["model_name", *labels])


def _states(jobs: Iterable[Progress]) -> dict[str, int]:
    found = {"done": 0, "running": 0, "waiting": 0}
    for job in jobs:
        found["done"] += job["done"]
        found["running"] += job["running"]
        found["waiting"] += job["total"] - job["done"] - job["running"]
    return found


def _sides(jobs: Mapping[str, Iterable[Progress]]) -> GaugeMetricFamily:
    """Return the KV tokens that the two sides of the dual scanner hold, and the most that they may hold."""
    text = (
        "Tokens of KV on the compute-heavy (left) and memory-heavy (right) side of batches on a worker, in use and at most."
    )
    family = _family("side_positions", text, "worker", "side", "what")
    for model, some in jobs.items():
        found: dict[tuple[str, str, str], float] = {}
        for job in some:
            for worker, use in job["sides"].items():
                for side in ("left", "right"):
                    for what, value in (("used", use[side]), ("most", use[f"{side}_most"])):
                        found[worker, side, what] = found.get((worker, side, what), 0.0) + value
        for labels, value in found.items():
            family.add_metric([model, *labels], value)
    return family
