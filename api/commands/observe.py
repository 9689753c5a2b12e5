"""The data that ``blockwright ps`` and ``blockwright top`` show, from a server's endpoints and its ``/metrics``.

Pure: bodies in, plain data out (``docs/schemas/``). Shares are from 0 to 1, sizes are bytes, times seconds.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...policies.binary_size import binary_size
from ...policies.model.tier_choice import auto_id
from ..named_models import is_named
from .family_views import CHOICES, DRAFTS, draft_counts, family_load, tier_memory, tiers_of

Numbers = dict[tuple[str, str], float]  # (sample, model) -> value
_BATCH = "blockwright:batch_"
_PROMPTS = "vllm:prompt_tokens_total"
_TTFT = "vllm:time_to_first_token_seconds_bucket"
ASKED = 1000  # the most requests that the server returns at a time
REQUESTS = f"/v1/requests?limit={ASKED}"
CAME = {  # source of a worker's parameters -> counter of bytes
    "other workers": "fetched_parameter_bytes",
    "the origin": "origin_parameter_bytes",
    "its store": "stored_parameter_bytes",
}
_SHOWN = 20  # most requests that are shown, unless more requests are running or waiting


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample of a server.

    ``at``: seconds on any clock. ``buckets``: model -> {upper bound: requests at or below it}. ``batches``: model -> metrics
    of its batches, by name and the other labels. ``drafts``, ``choices``: as in ``family_views.py``.
    """

    at: float
    cluster: Mapping[str, Any]
    numbers: Numbers
    buckets: dict[str, dict[float, float]]
    batches: dict[str, dict[tuple[str, ...], float]] = field(default_factory=dict)
    drafts: dict[tuple[str, str, str], float] = field(default_factory=dict)
    choices: dict[tuple[str, str], float] = field(default_factory=dict)


def read_sample(at: float, cluster: Mapping[str, Any], metrics: str) -> Sample:
    """Return a sample of a server. ``metrics``: Prometheus text."""
    # imported here: ``ps`` does not need it, and would start more slowly
    from prometheus_client.parser import text_string_to_metric_families

    numbers: Numbers = {}
    buckets: dict[str, dict[float, float]] = {}
    batches: dict[str, dict[tuple[str, ...], float]] = {}
    drafts: dict[tuple[str, str, str], float] = {}
    choices: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            model = sample.labels.get("model_name", "")
            if sample.name == _TTFT:
                buckets.setdefault(model, {})[float(sample.labels["le"])] = sample.value
            elif sample.name.startswith(_BATCH):
                key = [sample.labels[name] for name in ("state", "worker", "side", "what") if name in sample.labels]
                batches.setdefault(model, {})[sample.name.removeprefix(_BATCH), *key] = sample.value
            elif sample.name in DRAFTS:
                drafts[model, sample.labels["source"], DRAFTS[sample.name]] = sample.value
            elif sample.name == CHOICES:
                choices[sample.labels["family"], sample.labels["tier"]] = sample.value
            elif not set(sample.labels) - {"model_name"}:
                numbers[sample.name, model] = sample.value
    return Sample(at, cluster, numbers, buckets, batches, drafts, choices)


def ps_view(cluster: Mapping[str, Any]) -> dict[str, Any]:
    """Return applications (base, memory, workers), and workers with the reasons they come and go."""
    applications = cluster["applications"]
    requests = {name: one["requests"] for name, one in applications.items()}
    return {
        "applications": [
            {
                "id": name,
                "base": one["base"],
                "family": one.get("family", ""),  # servers of earlier releases do not report this one and the next
                "variant_of": one.get("variant_of", ""),
                "drafts_for": one.get("drafts_for", ""),
                "adapter": _is_adapter(one),
                "busy": sum(one["requests"].values()) > 0,
                "checkpoint": one["checkpoint"],
                "state": one["state"],
                "max_length": one["max_length"],
                "memory": dict(one["bytes"]),
                "kv": dict(one["kv"]),
                "requests": dict(one["requests"]),
                "chains": dict(one.get("chains", {})),
                "similarity": dict(one.get("similarity", {})),  # servers of earlier releases do not report it
                "replicas": [[hop["worker"] for hop in route["hops"]] for route in _routes(cluster, name)],
            }
            for name, one in sorted(applications.items(), key=lambda item: -sum(requests[item[0]].values()))
        ],
        "workers": [
            {
                **{key: worker[key] for key in ("id", "pid", "state", "restarts", "device", "numerics", "memory")},
                "blocks": len(worker["blocks"]),
                "hidden": _hidden(worker),
                "redundant": int(worker.get("counters", {}).get("redundant_pages", 0)),
                "guesses": _guesses(worker),
                "links": dict(worker.get("links", {})),
                "came": _came(worker),
                "given_up": worker["cause"] if worker["state"] == "given up" else "",
                "store": worker.get("store", ""),  # servers of earlier releases do not show this one and the next
                "reported": dict(worker.get("reported", {})),  # servers of earlier releases do not show it
                **_whereabouts(worker),
            }
            for worker in cluster["workers"]
        ],
        "gateways": list(cluster.get("gateways", ())),  # servers of earlier releases report none of these three
        "doubts": cluster.get("doubts", ""),
        "predictors": list(cluster.get("predictors", ())),
        "default": cluster.get("default", ""),
        "families": tier_memory(applications),
        "parameters": _parameters(cluster),
        "autoscale": dict(cluster["autoscale"]),
        "overload": _overload(cluster),
        "placement": dict(cluster.get("placement", {})),  # servers of earlier releases do not report this one and the next
        "cards": list(cluster.get("cards", ())),
    }


def _guesses(worker: Mapping[str, Any]) -> dict[str, int]:
    """Return the guesses of hidden states that a worker has made, and the ones that stood; servers may not report them."""
    counters = worker.get("counters", {})
    return {"made": int(counters.get("guessed_states", 0)), "accepted": int(counters.get("accepted_guesses", 0))}


def _whereabouts(worker: Mapping[str, Any]) -> dict[str, Any]:
    """Return where a worker is, and what its starter says of it. Servers of earlier releases do not show it."""
    return {"host": worker.get("host", ""), "labels": dict(worker.get("labels", {})), "joined": worker.get("joined", False)}


def _came(worker: Mapping[str, Any]) -> dict[str, int]:
    """Return the bytes of parameters that a worker has from elsewhere, by source."""
    counters = worker.get("counters", {})
    return {source: int(counters.get(name, 0)) for source, name in CAME.items()}


def came_lines(workers: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line for each worker that has parameters from elsewhere, one for each store that keeps nothing more, and one
    for each worker that is started no more."""
    found = []
    for worker in workers:
        if why := worker["given_up"]:
            found.append(f"{worker['id']} is given up: {why}; DELETE /admin/workers/{worker['id']}/drain has it tried again")
        said = [f"{binary_size(nbytes)} from {source}" for source, nbytes in worker["came"].items() if nbytes]
        found += [f"{worker['id']} has {', '.join(said)}"] if said else []
        found += [f"{worker['id']}: {worker['store']}"] if worker["store"] else []
    return found


def reported_lines(workers: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line for each group of workers that reported the same when they joined."""
    groups: dict[str, list[str]] = {}
    for worker in workers:
        if report := worker["reported"]:
            groups.setdefault(_reported(report), []).append(worker["id"])
    return [f"{', '.join(names)} reported {text}" for text, names in groups.items()]


def _reported(report: Mapping[str, Any]) -> str:
    bandwidth, products = (report["speed"][name] for name in ("bandwidth", "products"))
    said = [f"{report['threads']} of {report['cores']} core{'s' * (report['cores'] > 1)}", binary_size(report["memory"])]
    said.append(report["device"])
    if bandwidth and products:
        said += [f"{bandwidth / 1e9:.1f} GB/s read", f"{products / 1e9:.0f} G products/s"]
    return f"{', '.join(said)} on {report['host']}"


def top_view(before: Sample, after: Sample) -> dict[str, Any]:
    """Return the load of the applications.

    Rates and times cover the requests between the samples. A time without a request in that interval covers all requests so
    far; it is None if there was none. Shares of the cache cover all requests so far.
    """
    seconds = max(after.at - before.at, 1e-9)
    cluster = after.cluster
    named = [name for name, one in cluster["applications"].items() if is_named(one)]
    applications = [_application(name, before, after, seconds) for name in named]
    asked = [of for of in tiers_of(cluster["applications"]) if after.numbers.get((_PROMPTS, auto_id(of)))]
    applications += [_choosing(family, before, after, seconds) for family in asked]
    applications.sort(key=lambda one: (-one["running"] - one["waiting"], -one["tokens_per_s"] - one["prompt_tokens_per_s"]))
    return {
        "interval": round(seconds, 3),
        "applications": applications,
        "workers": [
            {
                "id": w["id"],
                "state": w["state"],
                **_whereabouts(w),
                **w["queue"],
                "parameters": w["memory"]["parameters"],
                "kv_used": _part(w["memory"]["kv"], _kv_room([w])),
                "kv_cached": _part(w["memory"]["cached"], _kv_room([w])),
                "hidden": _part(_hidden(w), _kv_room([w])),
                "cache_hits": _part(*(w["counters"].get(name, 0) for name in ("cached_tokens", "prompt_tokens"))),
                "on_host": min(1.0, _part(*(w["counters"].get(name, 0) for name in ("drawn_on_host", "generated_tokens")))),
            }
            for w in cluster["workers"]
        ],
        "gateways": list(cluster.get("gateways", ())),
        "predictors": list(cluster.get("predictors", ())),
        "batches": [_batches(model, numbers) for model, numbers in after.batches.items()],
        "families": family_load(before.cluster, cluster, after.choices),
        "drafts": draft_counts(before.drafts, after.drafts),
        "parameters": _parameters(cluster),
        "overload": _overload(cluster),
        "cards": list(cluster.get("cards", ())),
    }


def _batches(model: str, numbers: Mapping[tuple[str, ...], float]) -> dict[str, Any]:
    """Return a model's batches: lines by state, the estimate, and the KV on each side of the scanner, over all workers."""
    sides = {
        side: {
            what: round(sum(n for key, n in numbers.items() if key[0] == "side_positions" and key[2:] == (side, what)))
            for what in ("used", "most")
        }
        for side in ("left", "right")
    }
    names = ("density", "sharing", "sharing_best")
    return {
        "model": model,
        **{state: int(numbers.get(("requests", state), 0)) for state in ("done", "running", "waiting")},
        "remaining_tokens": int(numbers.get(("remaining_tokens",), 0)),
        "remaining_seconds": numbers.get(("remaining_seconds",)),
        **{name: round(numbers.get((name,), 0.0), 4) for name in names},
        "given_back": int(numbers.get(("given_back",), 0)),
        "sides": sides,
    }


def _parameters(cluster: Mapping[str, Any]) -> dict[str, int]:
    """Return the bytes of all models together, equal tensors once, and the bytes that sharing saves."""
    return {"stored": cluster["parameter_bytes"], "saved": cluster["saved_bytes"]}


def _overload(cluster: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the groups, memory and last change of parameter drops; None if parameters are never dropped.

    The view also has the KV memory that was missing since that change and that no drop could free.
    """
    drops = cluster.get("overload")
    if drops is None:
        return None
    memories = {worker["id"]: worker["memory"] for worker in cluster["workers"]}
    parts = {hop["worker"]: hop for route in cluster["routes"] if len(route["hops"]) > 1 for hop in route["hops"]}
    stages = parts | {stage["worker"]: stage for group in drops["groups"].values() for stage in group["stages"]}
    workers = [
        {"id": name, **state, "first": None, "last": None, "memory": dict(memories[name])}
        | {key: value for key, value in stages.get(name, {}).items() if key != "worker"}
        for name, state in drops["workers"].items()
        if name in memories
    ]
    changed = [dict(one) for one in drops["changes"] if one["what"] != "lacking"][-1:]
    lacked = [dict(one) for one in drops["changes"][-1:] if one["what"] == "lacking"]
    return {"workers": workers, "last": next(iter(changed), None), "lacking": next(iter(lacked), None)}


def _application(name: str, before: Sample, after: Sample, seconds: float) -> dict[str, Any]:
    cluster, one = after.cluster, after.cluster["applications"][name]
    homes = {hop["worker"] for route in _routes(cluster, name) for hop in route["hops"]}
    workers = [worker for worker in cluster["workers"] if worker["id"] in homes]
    counts = {what: int(one["requests"][what]) for what in ("running", "waiting")}  # of the same moment as the workers'
    traffic = _traffic(name, before, after, seconds)
    return {
        "id": name,
        "base": one["base"],
        "adapter": _is_adapter(one),
        "busy": any((*counts.values(), traffic["tokens_per_s"], traffic["prompt_tokens_per_s"])),
        "state": one["state"],
        "replicas": [[hop["worker"] for hop in route["hops"]] for route in _routes(cluster, name)],
        "memory": dict(one["bytes"]),
        **counts,
        **traffic,
        "kv_used": _part(one["kv"]["bytes"], _kv_room(workers)),
        "shared": _part(one["bytes"]["shared"], sum(one["bytes"].values())),
    }


def _choosing(family: str, before: Sample, after: Sample, seconds: float) -> dict[str, Any]:
    """Return the load of ``NAME:auto``. It has no memory, and its running requests count for the tiers on which they run."""
    name = auto_id(family)
    traffic = _traffic(name, before, after, seconds)
    return {
        "id": name,
        "base": family,
        "adapter": False,
        "busy": bool(traffic["tokens_per_s"] or traffic["prompt_tokens_per_s"]),
        "state": "chooses",
        "replicas": [],
        "memory": {"own": 0, "shared": 0},
        "running": 0,
        "waiting": 0,
        **traffic,
        "kv_used": 0.0,
        "shared": 0.0,
    }


def _traffic(name: str, before: Sample, after: Sample, seconds: float) -> dict[str, Any]:
    """Return rates, times to the first token and cache hits of the requests for a model id."""

    def grown(metric: str) -> float:
        return max(after.numbers.get((metric, name), 0.0) - before.numbers.get((metric, name), 0.0), 0.0)

    recent = _difference(after.buckets.get(name, {}), before.buckets.get(name, {}))
    kinds = {"prompt_tokens_per_s": "prompt", "tokens_per_s": "generation"}
    return {
        **{what: round(grown(f"vllm:{kind}_tokens_total") / seconds, 1) for what, kind in kinds.items()},
        "ttft_p50": quantile(recent, 0.5),
        "ttft_p95": quantile(recent, 0.95),
        "cache_hits": _part(
            *(after.numbers.get((f"vllm:prefix_cache_{what}_total", name), 0.0) for what in ("hits", "queries"))
        ),
    }


def quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """Return a quantile of a cumulative histogram, linear within a bucket; None if it is empty.

    Above the highest finite bound it is that bound.
    """
    bounds = sorted(buckets)
    total = buckets[bounds[-1]] if bounds else 0.0
    if not total:
        return None
    low, below = 0.0, 0.0
    for bound in bounds:
        if buckets[bound] >= share * total:
            if bound == float("inf"):
                return low
            inside = buckets[bound] - below
            return round(low + (bound - low) * ((share * total - below) / inside if inside else 1.0), 6)
        low, below = bound, buckets[bound]
    return low


def _difference(after: Mapping[float, float], before: Mapping[float, float]) -> Mapping[float, float]:
    recent = {bound: count - before.get(bound, 0.0) for bound, count in after.items()}
    return recent if recent and recent[max(recent)] > 0 else after


def _is_adapter(one: Mapping[str, Any]) -> bool:
    """Return True if a model is another model with deltas, as adapters are."""
    return any(segment["delta"] for segment in one.get("segments", ()))  # servers of earlier releases do not report segments


def _routes(cluster: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    return [route for route in cluster["routes"] if route["application"] == name]


def _kv_room(workers: Iterable[Mapping[str, Any]]) -> int:
    """Return the bytes that KV may use on these workers."""
    return sum(worker["memory"][kind] for worker in workers for kind in ("kv", "cached", "free"))


def _hidden(worker: Mapping[str, Any]) -> int:
    """Return the bytes of hidden states at exits, which are part of the memory for KV."""
    return int(worker.get("counters", {}).get("hidden_bytes", 0))  # servers of earlier releases do not report it


def _part(some: float, whole: float) -> float:
    return round(some / whole, 3) if whole else 0.0


def request_view(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return all running and waiting requests, filled up with ended ones to ``_SHOWN`` rows."""
    found = body["data"]
    active = sum(1 for _ in itertools.takewhile(lambda one: one["state"] in ("running", "waiting"), found))
    return {**body, "data": found[: max(active, _SHOWN)]}


def tenant_view(cluster: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tenants of a cluster, busy ones first; none if the server's release does not report tenants."""

    def use(one: Mapping[str, Any]) -> tuple[int, int]:
        requests = one["requests"]
        return -requests["running"] - requests["waiting"], -requests["started"]

    return {"tenants": sorted((dict(one) for one in cluster.get("tenants", ())), key=use)}


def actors_view(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rows in display order, independent of the process that answered; times in seconds."""
    nodes = sorted(body["nodes"], key=_by_name)
    rows = [{"node": node["name"], **actor} for node in nodes for actor in node["actors"]]
    return {
        "nodes": [
            {
                "name": node["name"],
                "incarnation": node["incarnation"],
                "lag": node["lag"],
                "actors": len(node["actors"]),
                "peers": len(node["peers"]),
                "dead_letters": sum(node["dead_letters"].values()),
                "dropped": sum(node["dropped"].values()),
            }
            for node in nodes
        ],
        "actors": _in_tree(rows),
    }


def _in_tree(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return every actor after its supervisor, with its ``depth`` below the top.

    Actors without a supervisor are at the top: the head's first, then each node's own. Processes keep their places across
    restarts.
    """
    below: dict[str, list[dict[str, Any]]] = {}
    known = {actor_address(row) for row in rows}
    for row in rows:
        below.setdefault(row["supervisor"] if row["supervisor"] in known else "", []).append(row)
    below.get("", []).sort(key=lambda row: (row["name"].startswith("$"), actor_address(row) not in below, row["node"]))
    for children in below.values():
        if all(row["kind"] == "Process" for row in children):
            children.sort(key=_by_name)
    found: list[dict[str, Any]] = []
    waiting = [(0, row) for row in reversed(below.get("", []))]
    while waiting:
        depth, row = waiting.pop()
        found.append({**row, "depth": depth})
        waiting += [(depth + 1, child) for child in reversed(below.get(actor_address(row), []))]
    return found


def _by_name(row: Mapping[str, Any]) -> tuple[str, int]:
    """Return the sort key of a name, which puts w2 before w10."""
    name: str = row["name"]
    letters = name.rstrip("0123456789")
    return letters, int(name[len(letters) :] or -1)


def actor_address(row: Mapping[str, Any]) -> str:
    return f"{row['node']}/{row['name']}"
