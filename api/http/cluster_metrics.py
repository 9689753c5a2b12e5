"""What ``/admin/cluster`` knows, as Prometheus families: memory, queues and counters of the workers, sizes of sweeps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

COUNTERS = {  # of a worker's life
    "prompt_tokens": "Prompt tokens of sequences that came, virtual ones included.",
    "cached_tokens": "Of these, those found in the prefix cache.",
    "generated_tokens": "Tokens sampled.",
    "computed_tokens": "Positions computed, repeated ones included.",
    "preemptions": "Sequences that lost their memory to others.",
    "refused": "Sequences refused because they can never fit.",
    "expired": "Sequences not complete within their time.",
    "parked": "Times that a sequence waited for pages that another was computing.",
    "sweep_seconds": "Seconds spent in sweeps.",
    "kernel_seconds": "Of these, those spent in kernels.",
    "plan_seconds": "Seconds spent planning.",
    "evicted_pages": "Cached pages given up for others.",
    "shared_pages": "Times that a sequence took a page that another made.",
    "cached_pages": "Pages in the prefix cache that no sequence uses now.",
    "pages_shared_now": "Pages that two sequences or more use now.",
    "offline_tokens": "Positions computed of offline requests, repeated ones included.",
    "offline_yielded": "Offline sequences that went back to their gateway to make room for others.",
    "moved_slots": "Slots of KV that moved together so that parameters found room.",
    "exported_pages": "Pages of KV sent to other workers, for sequences that moved.",
    "exported_bytes": "Bytes of these.",
    "imported_pages": "Pages of KV that came from other workers and were not here.",
    "imported_bytes": "Bytes of these.",
    "refused_pages": "Pages from other workers for which there was no room, or no route here that computes them alike.",
    "sent_parameter_bytes": "Bytes of parameters sent to other workers.",
    "fetched_parameter_bytes": "Bytes of parameters that came from other workers.",
    "unfetched_loads": "Loads of which not everything came from the worker that was named, so that the rest was read.",
    "staged_parameter_bytes": "Bytes of parameters on their way now, beside the pool; up to a sixteenth of it for a load.",
    "sweep_tokens": "Tokens of all sweeps.",
    "cost_drift": "By which part sweeps take longer now than the device profile says (negative: less).",
    "cost_error": "Mean relative error of the cost model, which is fitted again and again to what sweeps take.",
}
PREDICTOR = {  # of the predictor of a worker, since its start
    "replica": "Whether a worker's predictor has a replica of it now (1 or 0).",
    "in_flight": "Requests that were sent to a worker and that its predictor's replica does not show yet.",
    "feeds": "Times that a predictor began to follow its worker: once, and again at each life and each resync.",
    "disagreements": "Times that a replica did not do what its worker did, so that its predictor began anew.",
    "batches": "Messages of the worker's event feed.",
    "lag_seconds": "Sum over these messages of the seconds from what happened first in each until the replica had it.",
    "forecasts": "Forecasts made.",
    "forecast_seconds": "Seconds that these took, all together.",
    "forecast_p50": "Median seconds of the last 512 forecasts.",
    "forecast_p99": "99th percentile of the same.",
}
TENANTS = {  # field of a worker in /admin/cluster -> metric, meaning
    "kv_by_tenant": ("worker_tenant_kv_bytes", "KV memory of a tenant's pages, cached ones included."),
    "served_by_tenant": ("worker_tenant_service", "Cost of the tokens that were computed for a tenant."),
    "kv_cap_hits": ("worker_tenant_kv_cap_hits", "Pages and sequences of a tenant that gave way because of its cap."),
}
NUMBERS = {  # of /admin/cluster
    "parameter_bytes": "Bytes of the parameters of all deployed models, equal tensors once.",
    "saved_bytes": "Bytes that the same models would take more, each with parameters of its own.",
    "kv_pages_shared": "Times that a sequence took a page that another made, all workers.",
    "kv_pages_shared_now": "Pages that two sequences or more use now, all workers.",
    "version": "Version of the routes; it grows with every change of what runs where.",
}
OVERLOAD = {  # field of its "totals" -> meaning
    "dropped_bytes": "Bytes of parameters that were unloaded for KV, on all workers.",
    "stale_requests": "Requests that lost their worker because parameters were dropped or had come back.",
    "copied_bytes": "Bytes of the KV that went with them.",
    "recomputed_tokens": "Tokens of theirs that were computed again.",
    "stall_seconds": "Seconds that these requests paused, all together.",
}
CHANGED = "Changes of who holds which parameters, by what they were."
FAILED = "What went wrong with such changes, or could not be done, by reason."
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

    for worker in workers:
        who = {"worker": str(worker.get("id"))}
        memory = worker.get("memory") or {}
        for kind, value in memory.items():
            add("worker_memory_bytes", "Memory of a worker by use.", who | {"use": kind}, value)
        for state, value in (worker.get("queue") or {}).items():
            add("worker_requests", "Sequences at a worker by state.", who | {"state": state}, value)
        for field, (name, text) in TENANTS.items():
            for tenant, value in (worker.get(field) or {}).items():
                add(name, text, {"tenant": tenant, **who}, value)
        for name, value in (worker.get("predictor") or {}).items():
            if name in PREDICTOR and _is_number(value):
                add(f"predictor_{name}", PREDICTOR[name], who, value)
        for name, value in (worker.get("counters") or {}).items():
            if name in COUNTERS and _is_number(value):
                add(f"worker_{name}", COUNTERS[name], who, value)
    scaled = cluster.get("autoscale") or {}
    for stage, value in (scaled.get("workers") or {}).items():
        add("autoscale_workers", "Workers by stage; wanted are those that are active or starting.", {"stage": stage}, value)
    for what, value in (scaled.get("decisions") or {}).items():
        add("autoscale_decisions", "Workers that were started or drained because of latencies.", {"decision": what}, value)
    drops = cluster.get("overload") or {}
    stages = [group["state"] for group in (drops.get("groups") or {}).values()]
    for state in ("dropping", "pipeline", "restoring") if drops else ():
        text = "Groups of workers that serve as one pipeline because parameters were dropped, by state."
        add("overload_groups", text, {"state": state}, stages.count(state))
    for name, value in cluster.items():
        if name in NUMBERS and _is_number(value):
            add(name, NUMBERS[name], {}, value)
    yield from _engines(cluster, workers)
    yield from families.values()
    yield from _overload(drops)


def _overload(drops: dict[str, Any]) -> Iterator[Metric]:
    """Counters of parameters that were dropped or came back, since the head began."""
    for field, name, text, label in (("counts", "changes", CHANGED, "change"), ("failures", "failures", FAILED, "reason")):
        counter = CounterMetricFamily(f"blockwright:overload_{name}", text, labels=[label])
        for kind, value in (drops.get(field) or {}).items():
            counter.add_metric([kind.replace(" ", "_")], value)
        yield counter
    for name, value in (drops.get("totals") or {}).items():
        if name in OVERLOAD:
            yield CounterMetricFamily(f"blockwright:overload_{name}", OVERLOAD[name], value=value)


def _engines(cluster: dict[str, Any], workers: list[dict[str, Any]]) -> Iterator[Metric]:
    """A worker is what vLLM calls an engine. Its numbers are told of each model that routes lead there, since models share
    its memory and its sweeps: they must not be added up over models."""
    labels = ["model_name", "engine"]
    usage = GaugeMetricFamily(
        "vllm:kv_cache_usage_perc",
        "KV memory of a worker that requests use, of all that KV may have (1 is full).",
        labels=labels,
    )
    sweeps = HistogramMetricFamily("vllm:iteration_tokens_total", "Tokens of a worker's sweep.", labels=labels)
    for worker in workers:
        name, memory = str(worker.get("id")), worker.get("memory") or {}
        used, buckets = memory.get("kv", 0), _sweeps(worker.get("counters") or {})
        room = used + memory.get("cached", 0) + memory.get("free", 0)
        for model in _models_at(cluster, name):
            usage.add_metric([model, name], used / max(1, room))
            if buckets:
                tokens = worker["counters"].get("sweep_tokens", 0.0)
                sweeps.add_metric([model, name], buckets=buckets, sum_value=tokens)
    yield from (usage, sweeps)


def _models_at(cluster: dict[str, Any], worker: str) -> list[str]:
    routes = cluster.get("routes", [])
    return sorted({route["application"] for route in routes if any(hop["worker"] == worker for hop in route["hops"])})


def _sweeps(counters: dict[str, float]) -> list[tuple[str, float]]:
    """The buckets, by upper bound."""
    found = {float(match[1]): counters[name] for name in counters if (match := SWEEP_SIZE.fullmatch(name))}
    buckets, running = [], 0.0
    for bound in sorted(found):
        running += found[bound]
        buckets.append(("+Inf" if bound == float("inf") else repr(bound), running))
    return buckets
