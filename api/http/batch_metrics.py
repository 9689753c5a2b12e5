"""Prometheus measures of the batches that run in this process: progress, summed for each model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ...policies.measures import Labels, Measure, gauge

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


def batch_measures(figures: Iterable[Mapping[str, Any]]) -> Iterator[Measure]:
    """Yield the measures. ``figures``: one entry for each batch, as ``actors/batches/actor.py`` makes them."""
    jobs: dict[str, list[Progress]] = {}
    for batch in figures:
        for model, job in batch["models"].items():
            jobs.setdefault(model, []).append(job)
    lines = {(model, state): count for model, some in jobs.items() for state, count in _states(some).items()}
    yield _gauge("requests", "Lines of running batches by state.", lines, "state")
    ends = {model: [job["remaining_seconds"] for job in some] for model, some in jobs.items()}
    known = {model: [end for end in some if end is not None] for model, some in ends.items()}
    text = "Estimated seconds until a model's longest running batch ends."
    yield _gauge("remaining_seconds", text, {(model,): max(some) for model, some in known.items() if some})
    for name, text in _SUMS:
        yield _gauge(name, text, {(model,): sum(job[name] for job in some) for model, some in jobs.items()})
    for name, text in _MEANS:
        yield _gauge(name, text, {(model,): _mean(name, some) for model, some in jobs.items()})
    text = (
        "Tokens of KV on the compute-heavy (left) and memory-heavy (right) side of batches on a worker, in use and at most."
    )
    yield _gauge("side_positions", text, _sides(jobs), "worker", "side", "what")


def _gauge(name: str, text: str, values: Mapping[Labels, float], *labels: str) -> Measure:
    return gauge(f"blockwright:batch_{name}", text, values, "model_name", *labels)


def _mean(name: str, jobs: Sequence[Progress]) -> float:
    total: int = sum(job["prompt_tokens"] for job in jobs)
    weighted: float = sum(job[name] * job["prompt_tokens"] for job in jobs)
    return weighted / total


def _states(jobs: Iterable[Progress]) -> dict[str, int]:
    found = {"done": 0, "running": 0, "waiting": 0}
    for job in jobs:
        found["done"] += job["done"]
        found["running"] += job["running"]
        found["waiting"] += job["total"] - job["done"] - job["running"]
    return found


def _sides(jobs: Mapping[str, Iterable[Progress]]) -> dict[tuple[str, ...], float]:
    """Return the KV tokens that the two sides of the dual scanner hold, and the most that they may hold."""
    found: dict[tuple[str, ...], float] = {}
    for model, some in jobs.items():
        for job in some:
            for worker, use in job["sides"].items():
                for side in ("left", "right"):
                    for what, value in (("used", use[side]), ("most", use[f"{side}_most"])):
                        key = (model, worker, side, what)
                        found[key] = found.get(key, 0.0) + value
    return found
