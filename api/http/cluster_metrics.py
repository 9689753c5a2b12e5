"""Prometheus measures from ``/admin/cluster``: memory, queues and counters of the workers, sizes of sweeps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ...policies.measures import Histogram, Measure, counter, gauge, histogram

COUNTERS = {  # counters since the start of a worker
    "prompt_tokens": "Prompt tokens of arriving sequences, including virtual tokens.",
    "cached_tokens": "Of these, the tokens found in the prefix cache.",
    "entered_tokens": "Positions computed from hidden states of a lower tier on: only the layers behind its exit.",
    "hidden_pages": "Pages of hidden states that lower tiers left, including cached ones.",
    "hidden_bytes": "KV memory of these pages.",
    "generated_tokens": "Tokens sampled.",
    "computed_tokens": "Positions computed, including recomputed ones.",
    "preemptions": "Sequences that were preempted for memory.",
    "urgent_preemptions": "Sequences that gave their row or pages to an urgent one.",
    "class_rises": "Times a waiting sequence rose by one service class.",
    "refused": "Sequences refused because they can never fit.",
    "expired": "Sequences that exceeded their time limit.",
    "parked": "Times a sequence waited for pages that another one was computing.",
    "short_sweeps": "Steps in which lower tiers of a family went on alone.",
    "rows_sat_out": "Sequences that sat these out, added up over steps.",
    "sweep_seconds": "Seconds spent in steps.",
    "kernel_seconds": "Of these, the seconds spent in kernels.",
    "plan_seconds": "Seconds spent planning.",
    "draft_rounds": "Times that drafts of a sequence were verified, each in one step.",
    "drafted_tokens": "Drafted tokens that were verified.",
    "accepted_tokens": "Drafted tokens that stood, and counted.",
    "guessed_states": "Positions whose hidden states a surrogate guessed for the next worker (setting speculate).",
    "accepted_guesses": "Of these, the guesses that stood.",
    "forced_tokens": "Tokens that a grammar left no choice in, computed together with the one before (setting forced).",
    "evicted_pages": "Cached pages that were evicted.",
    "shared_pages": "Times a sequence used a page that another one had computed.",
    "cached_pages": "Pages in the prefix cache that no sequence is using.",
    "redundant_pages": "Of these, the pages that another worker has, too, and that are evicted first.",
    "pages_shared_now": "Pages that two or more sequences are using.",
    "offline_tokens": "Positions computed for batch requests, including recomputed ones.",
    "offline_yielded": "Batch requests that were preempted for other requests and sent back to their gateway.",
    "moved_slots": "KV slots that were compacted to make space for parameters.",
    "exported_pages": "KV pages sent to other workers for sequences that moved.",
    "exported_bytes": "Bytes of these.",
    "imported_pages": "KV pages received from other workers.",
    "imported_bytes": "Bytes of these.",
    "refused_pages": "KV pages from other workers that did not fit, or that no route here could use.",
    "sent_parameter_bytes": "Bytes of parameters sent to other workers.",
    "fetched_parameter_bytes": "Bytes of parameters that came from other workers.",
    "loaded_parameter_bytes": "Bytes of packed parameters that were loaded, wherever they came from.",
    "stored_parameter_bytes": "Bytes of parameters that a worker's store had when they were loaded.",
    "origin_parameter_bytes": "Bytes of parameters that came from the origin.",
    "unstored_parameter_bytes": "Bytes of parameters that came and that a store had no room for.",
    "damaged_parameters": "Tensors that differed from their hash or checksum and were fetched from elsewhere.",
    "unfetched_loads": "Loads that did not get everything from the worker that was named and read the rest from disk.",
    "staged_parameter_bytes": "Bytes of parameters in transfer, outside the pool; up to a sixteenth of it for a load.",
    "sweep_tokens": "Tokens in all steps.",
    "drawn_on_host": "Rows for which a worker on a card waited for the host (grammars, phrases, long lists, vectors).",
    "cost_drift": "Share by which steps take longer than in the device profile (negative: shorter).",
    "cost_error": "Mean relative error of the cost model, which is refitted continuously to the steps.",
}
PREDICTOR = {  # counters of a worker's predictor since its start
    "replica": "Whether a worker's predictor has a replica of it (1 or 0).",
    "in_flight": "Requests sent to a worker that its predictor's replica does not show yet.",
    "feeds": "Times a predictor began to follow its worker: at first, after each restart and after each resync.",
    "disagreements": "Times a replica differed from its worker, so that its predictor started again.",
    "batches": "Messages of the worker's event feed.",
    "lag_seconds": "Total seconds between the first event in each of these messages and its arrival in the replica.",
    "forecasts": "Forecasts made.",
    "forecast_seconds": "Total seconds that these took.",
    "forecast_p50": "Median seconds of the last 512 forecasts.",
    "forecast_p99": "99th percentile of the same.",
}
SEGMENTS = {  # numbers of the layers between two exits of a family
    "sweeps": "Steps of a worker in which requests passed these layers of a family.",
    "rows": "Requests that passed them, added up over these steps.",
}
TENANTS = {  # field of a worker in /admin/cluster -> metric, meaning
    "kv_by_tenant": ("worker_tenant_kv_bytes", "KV memory of a tenant's pages, including cached ones."),
    "served_by_tenant": ("worker_tenant_service", "Cost of the tokens that were computed for a tenant."),
    "kv_cap_hits": ("worker_tenant_kv_cap_hits", "Pages evicted and sequences preempted because of a tenant's cap."),
}
NUMBERS = {  # top-level numbers of /admin/cluster
    "parameter_bytes": "Bytes of the parameters of all deployed models, each distinct tensor once.",
    "saved_bytes": "Additional bytes the same models would take if each had its own parameters.",
    "kv_pages_shared": "Times a sequence used a page that another one had computed, on all workers.",
    "kv_pages_shared_now": "Pages that two or more sequences are using, on all workers.",
    "version": "Version of the routes; it grows with every change of where models run.",
}
OVERLOAD = {  # field of ``totals`` under ``overload`` -> meaning
    "dropped_bytes": "Bytes of parameters that were unloaded for KV, on all workers.",
    "stale_requests": "Requests with KV that had to change workers because of a drop or a restore.",
    "copied_bytes": "Bytes of KV that moved with them.",
    "recomputed_tokens": "Tokens of these requests that were recomputed.",
    "stall_seconds": "Total seconds that these requests paused.",
}
CARD = {  # field of a card in /admin/cluster -> metric, meaning
    "use": ("card_use", "Share of the last moments in which a card computed."),
    "power": ("card_power_watts", "Power that a card takes."),
    "power_limit": ("card_power_limit_watts", "Power that it may take."),
    "clock": ("card_clock_mhz", "Clock of a card's multiprocessors."),
    "clock_limit": ("card_clock_limit_mhz", "Highest clock that it has."),
    "errors": ("card_errors", "Memory errors that a card did not correct since its driver was loaded."),
}
CHANGED = "Drops, restores and similar changes of parameters, by kind."
FAILED = "Such changes that failed or were not possible, by reason."
TRANSFERS = {  # of a pair of components
    "sweeps": ("transfers", "Messages with activations to the next worker of a route, by the depth of the next component."),
    "positions": ("transferred_positions", "Positions whose activations these messages carried."),
    "bytes": ("transferred_bytes", "Bytes of these activations."),
}
RELOCATIONS = ("done", "given_up")
# a worker's counter: sweeps in one size bucket, by its upper bound in tokens
SWEEP_SIZE = re.compile(r"sweeps_up_to_(\d+|inf)")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def cluster_measures(cluster: dict[str, Any]) -> Iterator[Measure]:
    """Yield the numbers in ``/admin/cluster`` as ``blockwright:*`` gauges, and as vLLM's metrics of its engines."""
    workers = cluster.get("workers", [])
    made: dict[str, Measure] = {}

    def add(name: str, text: str, labels: dict[str, str], value: float) -> None:
        name = "blockwright:" + re.sub(r"[^a-zA-Z0-9_]", "_", name)
        made.setdefault(name, Measure(name, "gauge", text)).add(labels, value)

    for worker in workers:
        who = {"worker": str(worker.get("id"))}
        memory = worker.get("memory") or {}
        for kind, value in memory.items():
            add("worker_memory_bytes", "Memory of a worker by use.", who | {"use": kind}, value)
        for state, value in (worker.get("queue") or {}).items():
            add("worker_requests", "Sequences on a worker by state.", who | {"state": state}, value)
        for field, (name, text) in TENANTS.items():
            for tenant, value in (worker.get(field) or {}).items():
                add(name, text, {"tenant": tenant, **who}, value)
        for name, value in (worker.get("predictor") or {}).items():
            if name in PREDICTOR and _is_number(value):
                add(f"predictor_{name}", PREDICTOR[name], who, value)
        for one in worker.get("segments") or ():
            labels = who | {"family": one["family"], "layers": f"{one['first']}-{one['last']}"}
            for name in SEGMENTS:
                add(f"worker_segment_{name}", SEGMENTS[name], labels, one[name])
        for name, value in (worker.get("counters") or {}).items():
            if name in COUNTERS and _is_number(value):
                add(f"worker_{name}", COUNTERS[name], who, value)
    for card in cluster.get("cards") or ():
        which, memory = {"card": str(card.get("id"))}, card.get("memory") or {}
        for use, value in (("used", memory["total"] - memory["free"]), ("free", memory["free"])) if memory else ():
            add("card_memory_bytes", "Memory of a card by use, of all its programs.", which | {"use": use}, value)
        for field, (name, text) in CARD.items():
            if _is_number(card.get(field)):
                add(name, text, which, card[field])
        add("card_throttled", "Number of reasons that hold a card's clock down.", which, len(card.get("throttled") or ()))
    scaled = cluster.get("autoscale") or {}
    for stage, value in (scaled.get("workers") or {}).items():
        add("autoscale_workers", "Workers by stage; wanted: active and starting ones.", {"stage": stage}, value)
    for what, value in (scaled.get("decisions") or {}).items():
        add("autoscale_decisions", "Workers started or drained because of latencies.", {"decision": what}, value)
    if "asked" in scaled:
        text = "Workers that the launcher should run: with launcher=local all of them, else those beside the server's own."
        add("workers_wanted", text, {}, scaled["asked"])
    drops = cluster.get("overload") or {}
    stages = [group["state"] for group in (drops.get("groups") or {}).values()]
    for state in ("dropping", "pipeline", "restoring") if drops else ():
        text = "Groups of workers that serve as one pipeline because parameters were dropped, by state."
        add("overload_groups", text, {"state": state}, stages.count(state))
    for name, value in cluster.items():
        if name in NUMBERS and _is_number(value):
            add(name, NUMBERS[name], {}, value)
    yield from _engines(cluster, workers)
    yield from made.values()
    yield from _overload(drops)
    yield from _transfers(cluster.get("placement") or {})


def _transfers(placed: dict[str, Any]) -> Iterator[Measure]:
    """Yield counters of what crosses between workers, by pair of components."""
    if not placed:
        return
    for field, (name, text) in TRANSFERS.items():
        pairs = {(one["model"], str(one["before"]), one["worker"], one["to"]): one[field] for one in placed["transfers"]}
        yield counter(f"blockwright:{name}", text, pairs, "model_name", "before", "worker", "to")
    ends = {outcome: placed["relocations"][outcome] for outcome in RELOCATIONS}
    text = "Models that were placed anew because of what crosses between workers, by outcome."
    yield counter("blockwright:relocations", text, ends, "outcome")


def _overload(drops: dict[str, Any]) -> Iterator[Measure]:
    """Yield counters of dropped and restored parameters since the head started."""
    for field, name, text, label in (("counts", "changes", CHANGED, "change"), ("failures", "failures", FAILED, "reason")):
        values = {kind.replace(" ", "_"): value for kind, value in (drops.get(field) or {}).items()}
        yield counter(f"blockwright:overload_{name}", text, values, label)
    for name, value in (drops.get("totals") or {}).items():
        if name in OVERLOAD:
            yield counter(f"blockwright:overload_{name}", OVERLOAD[name], {(): value})


def _engines(cluster: dict[str, Any], workers: list[dict[str, Any]]) -> Iterator[Measure]:
    """Yield the metrics that vLLM has for each engine. An engine in vLLM's sense is a worker here.

    A worker's numbers are repeated for each model with a route to it, since models share its memory and its sweeps. They
    must not be added up over models.
    """
    usage, sweeps = dict[tuple[str, str], float](), dict[tuple[str, str], Histogram]()
    for worker in workers:
        name, memory = str(worker.get("id")), worker.get("memory") or {}
        used, sizes = memory.get("kv", 0), _sweeps(worker.get("counters") or {})
        room = used + memory.get("cached", 0) + memory.get("free", 0)
        for model in _models_at(cluster, name):
            usage[model, name] = used / max(1, room)
            if sizes is not None:
                sweeps[model, name] = sizes
    text = "Share of a worker's KV memory that requests use (1 is full)."
    yield gauge("vllm:kv_cache_usage_perc", text, usage, "model_name", "engine")
    yield histogram("vllm:iteration_tokens_total", "Tokens in a worker's step.", sweeps, "model_name", "engine")


def _models_at(cluster: dict[str, Any], worker: str) -> list[str]:
    routes = cluster.get("routes", [])
    return sorted({route["application"] for route in routes if any(hop["worker"] == worker for hop in route["hops"])})


def _sweeps(counters: dict[str, float]) -> Histogram | None:
    """Return the sizes of a worker's sweeps; None if it says nothing of them."""
    found = {float(match[1]): counters[name] for name in counters if (match := SWEEP_SIZE.fullmatch(name))}
    if not found:
        return None
    *bounds, _ = sorted(found)  # the last is infinity
    sizes = Histogram(tuple(bounds))
    sizes.counts = [int(found[bound]) for bound in sorted(found)]
    sizes.total = counters.get("sweep_tokens", 0.0)
    return sizes
