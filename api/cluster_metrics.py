"""What ``/admin/cluster`` knows, as Prometheus families: memory, queues and counters of the workers, sizes of sweeps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric

COUNTERS = {  # of a worker's life
    "prompt_tokens": "Prompt tokens of sequences that came.",
    "cached_tokens": "Of these, those found in the prefix cache.",
    "generated_tokens": "Tokens sampled.",
    "computed_tokens": "Positions computed, repeated ones included.",
    "preemptions": "Sequences that lost their memory to others.",
    "refused": "Sequences refused because they can never fit.",
    "parked": "Times that a sequence waited for pages that another was computing.",
    "sweep_seconds": "Seconds spent in sweeps.",
    "kernel_seconds": "Of these, those spent in kernels.",
    "plan_seconds": "Seconds spent planning.",
    "evicted_pages": "Cached pages given up for others.",
    "shared_pages": "Times that a sequence took a page that another made.",
    "cached_pages": "Pages in the prefix cache that no sequence uses now.",
    "pages_shared_now": "Pages that two sequences or more use now.",
    "sweep_tokens": "Tokens of all sweeps.",
}
NUMBERS = {  # of /admin/cluster
    "kv_pages_shared": "Times that a sequence took a page that another made, all workers.",
    "kv_pages_shared_now": "Pages that two sequences or more use now, all workers.",
    "version": "Version of the routes; it grows with every change of what runs where.",
}
SWEEP_SIZE = re.compile(r"sweeps_up_to_(\d+|inf)")  # a worker's counter: sweeps of so many tokens, and not of fewer


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def cluster_families(cluster: dict[str, Any]) -> Iterator[Metric]:
    """``blockwright:*`` gauges of the numbers in ``/admin/cluster``, and vLLM's of the engine."""
    workers = cluster.get("workers", [])
    families: dict[str, GaugeMetricFamily] = {}

    def add(name: str, text: str, labels: dict[str, str], value: float) -> None:
        name = "blockwright:" + re.sub(r"[^a-zA-Z0-9_]", "_", name)
        if name not in families:
            families[name] = GaugeMetricFamily(name, text, labels=list(labels))
        families[name].add_metric(list(labels.values()), value)

    kv = room = 0.0
    for worker in workers:
        who = {"worker": str(worker.get("id"))}
        memory = worker.get("memory") or {}
        kv, room = kv + memory.get("kv", 0), room + memory.get("kv", 0) + memory.get("free", 0)
        for kind, value in memory.items():
            add("worker_memory_bytes", "Memory of a worker by use.", who | {"use": kind}, value)
        for state, value in (worker.get("queue") or {}).items():
            add("worker_requests", "Sequences at a worker by state.", who | {"state": state}, value)
        for name, value in (worker.get("counters") or {}).items():
            if name in COUNTERS and _is_number(value):
                add(f"worker_{name}", COUNTERS[name], who, value)
    for name, value in cluster.items():
        if name in NUMBERS and _is_number(value):
            add(name, NUMBERS[name], {}, value)
    usage = GaugeMetricFamily("vllm:kv_cache_usage_perc", "KV memory in use, of all that KV may have (1 is full).")
    usage.add_metric([], kv / room if room else 0.0)
    yield usage
    yield _sweeps(workers)
    yield from families.values()


def _sweeps(workers: list[dict[str, Any]]) -> Metric:
    """Tokens of each sweep, by worker: a sweep may serve several models."""
    family = HistogramMetricFamily("vllm:iteration_tokens_total", "Tokens of a worker's sweep.", labels=["worker"])
    for worker in workers:
        counters = worker.get("counters") or {}
        found = {float(match[1]): counters[name] for name in counters if (match := SWEEP_SIZE.fullmatch(name))}
        buckets, running = [], 0.0
        for bound in sorted(found):
            running += found[bound]
            buckets.append(("+Inf" if bound == float("inf") else repr(bound), running))
        if buckets:
            tokens = counters.get("sweep_tokens", 0.0)
            family.add_metric([str(worker.get("id"))], buckets=buckets, sum_value=tokens)
    return family
