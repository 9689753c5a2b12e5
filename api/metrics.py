"""Counters and histograms of the HTTP front, and what ``/admin/cluster`` knows, as Prometheus text.

Names that vLLM's dashboards and autoscalers read are mirrored as ``vllm:*``; our own are ``blockwright:*``. A streamed token
costs a few additions here: the numbers are plain Python and become Prometheus families when somebody asks.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from blockwright.api.counted import Family, plain, summed

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
CHOICES = (1, 2, 5, 10, 20, 50, 100)
_GAUGES = (
    ("vllm:num_requests_running", "Requests that have a token.", "running"),
    ("vllm:num_requests_waiting", "Requests without a token.", "waiting"),
)
_COUNTERS = (
    ("vllm:prompt_tokens", "Prompt tokens of admitted requests.", "prompt_tokens"),
    ("vllm:generation_tokens", "Tokens generated.", "generation_tokens"),
    ("blockwright:requests_unfinished", "Requests that failed or whose client left.", "unfinished"),
)
_HISTOGRAMS = {
    "vllm:time_to_first_token_seconds": ("Seconds from a request's arrival to its first token.", SECONDS),
    "vllm:inter_token_latency_seconds": ("Seconds between two deltas of a request, per token.", SECONDS),
    "vllm:request_time_per_output_token_seconds": ("Mean seconds per token after the first.", SECONDS),
    "vllm:e2e_request_latency_seconds": ("Seconds from a request's arrival to its end.", SECONDS),
    "vllm:request_prompt_tokens": ("Prompt tokens of a request.", TOKENS),
    "vllm:request_generation_tokens": ("Tokens of a choice.", TOKENS),
    "vllm:request_params_n": ("The n of a request.", CHOICES),
    "vllm:request_params_max_tokens": ("The max_tokens of a request that names it.", TOKENS),
}


class Histogram:
    """Counts by upper bound."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds, self.counts, self.total = bounds, [0] * (len(bounds) + 1), 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def buckets(self) -> list[tuple[str, float]]:
        made, running = [], 0
        for bound, count in zip((*map(float, self.bounds), float("inf")), self.counts, strict=True):
            running += count
            made.append(("+Inf" if bound == float("inf") else repr(bound), float(running)))
        return made


class Tally:
    """The numbers of one model."""

    def __init__(self) -> None:
        self.waiting = self.running = self.prompt_tokens = self.generation_tokens = self.unfinished = 0
        self.success: dict[str, int] = {"stop": 0, "length": 0}
        self.histograms = {name: Histogram(bounds) for name, (_, bounds) in _HISTOGRAMS.items()}
        self.between = self.histograms["vllm:inter_token_latency_seconds"]


class Meter:
    """One request's view of its model's tally. Waiting until its first token, then running, then closed."""

    __slots__ = ("_begun", "_clock", "_count", "_first", "_last", "_tally")

    def __init__(self, tally: Tally, clock: Callable[[], float]) -> None:
        self._tally, self._clock = tally, clock
        self._begun = self._last = clock()
        self._first: float | None = None
        self._count = 0
        tally.waiting += 1

    def tokens(self, count: int) -> None:
        """``count`` tokens came together."""
        if not count:
            return
        now = self._clock()
        tally = self._tally
        if self._first is None:
            self._first = now
            tally.waiting -= 1
            tally.running += 1
            tally.histograms["vllm:time_to_first_token_seconds"].observe(now - self._begun)
        else:
            tally.between.observe((now - self._last) / count, count)
        self._last = now
        self._count += count
        tally.generation_tokens += count

    def finished(self, reason: str, tokens: int) -> None:
        """A choice ended with its finish reason."""
        self._tally.success[reason] = self._tally.success.get(reason, 0) + 1
        self._tally.histograms["vllm:request_generation_tokens"].observe(tokens)

    def close(self, *, complete: bool) -> None:
        tally, now = self._tally, self._clock()
        if self._first is None:
            tally.waiting -= 1
        else:
            tally.running -= 1
        if not complete:
            tally.unfinished += 1
            return
        tally.histograms["vllm:e2e_request_latency_seconds"].observe(now - self._begun)
        if self._first is not None and self._count > 1:
            mean = (self._last - self._first) / (self._count - 1)
            tally.histograms["vllm:request_time_per_output_token_seconds"].observe(mean)


class Metrics:
    """See the module. One for each application, with a registry of its own."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tallies: dict[str, Tally] = {}
        self._cluster: dict[str, Any] = {}
        self._others: Sequence[Sequence[Family]] = ()
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def begin(self, model: str, prompt_tokens: int, n: int, max_tokens: int | None) -> Meter:
        """A request was admitted."""
        tally = self._tallies.get(model)
        if tally is None:
            tally = self._tallies[model] = Tally()
        tally.prompt_tokens += prompt_tokens
        tally.histograms["vllm:request_prompt_tokens"].observe(prompt_tokens)
        tally.histograms["vllm:request_params_n"].observe(n)
        if max_tokens is not None:
            tally.histograms["vllm:request_params_max_tokens"].observe(max_tokens)
        return Meter(tally, self._clock)

    @property
    def active(self) -> int:
        """Requests that are being answered."""
        return sum(tally.waiting + tally.running for tally in self._tallies.values())

    def families(self) -> list[Family]:
        """What this process has counted."""
        return plain(self._requests())

    def render(self, cluster: dict[str, Any], others: Sequence[Sequence[Family]] = ()) -> bytes:
        """Prometheus text; ``cluster`` is the body of ``/admin/cluster``, empty where nobody answered; ``others``: what
        further processes have counted."""
        self._cluster, self._others = cluster, others
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Called by the registry."""
        yield from summed([self.families(), *self._others])
        yield from cluster_families(self._cluster)

    def describe(self) -> Iterable[Metric]:
        return ()

    def _requests(self) -> Iterator[Metric]:
        for name, text, field in _GAUGES:
            family = GaugeMetricFamily(name, text, labels=["model_name"])
            for model, tally in self._tallies.items():
                family.add_metric([model], getattr(tally, field))
            yield family
        for name, text, field in _COUNTERS:
            counter = CounterMetricFamily(name, text, labels=["model_name"])
            for model, tally in self._tallies.items():
                counter.add_metric([model], getattr(tally, field))
            yield counter
        success = CounterMetricFamily("vllm:request_success", "Choices by end.", labels=["model_name", "finished_reason"])
        for model, tally in self._tallies.items():
            for reason, ended in tally.success.items():
                success.add_metric([model, reason], ended)
        yield success
        for name, (text, _) in _HISTOGRAMS.items():
            histogram = HistogramMetricFamily(name, text, labels=["model_name"])
            for model, tally in self._tallies.items():
                numbers = tally.histograms[name]
                histogram.add_metric([model], buckets=numbers.buckets(), sum_value=numbers.total)
            yield histogram


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def cluster_families(cluster: dict[str, Any]) -> Iterator[Metric]:
    """``blockwright:*`` gauges for every number that ``/admin/cluster`` has, and vLLM's KV usage."""
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
            if _is_number(value):
                add(f"worker_{name}", "A worker's counter; it starts anew with the worker.", who, value)
    for name, value in cluster.items():
        if _is_number(value):
            add(name, "A number of /admin/cluster.", {}, value)
    usage = GaugeMetricFamily("vllm:kv_cache_usage_perc", "KV memory in use, of all that KV may have (1 is full).")
    usage.add_metric([], kv / room if room else 0.0)
    yield usage
    yield from families.values()
