"""Counters and histograms of the HTTP front, as Prometheus text. ``cluster_metrics.py`` has the cluster's.

Names that vLLM's dashboards and autoscalers read are mirrored as ``vllm:*``; our own are ``blockwright:*``. A streamed token
costs only a few additions: the numbers are plain Python and become measures (``policies/measures.py``) on request.
Every sample of a front is a count, a sum or a number of requests, so that adding up all processes is correct.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from ...actors.gateway.peers import TenantUse
from ...actors.gateway.port import (
    Census,
    DispatchFigures,
    DraftCounts,
    LengthFigures,
    MoveFigures,
    StreamProgress,
    TierFigures,
)
from ...policies.measures import Histogram, Measure, counter, histogram, summed
from ...policies.requests.account import account_of
from .batch_metrics import batch_measures
from .cluster_metrics import cluster_measures
from .gateway_metrics import (
    added,
    census_measures,
    dispatch_measures,
    draft_measures,
    estimate_measures,
    move_measure,
    tenant_sequences,
    variant_measures,
)
from .tenants import tenant_measures

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
CHOICES = (1, 2, 5, 10, 20, 50, 100)
_COUNTERS = (
    ("vllm:prompt_tokens", "Prompt tokens of admitted requests.", "prompt_tokens"),
    ("vllm:prompt_tokens_cached", "Of these, the tokens found in the prefix cache.", "prompt_tokens_cached"),
    ("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", "cache_queries"),
    ("vllm:prefix_cache_hits", "Of these, the tokens found.", "cache_hits"),
    ("vllm:num_preemptions", "Sequences that were preempted for memory and recomputed.", "preemptions"),
    ("vllm:generation_tokens", "Tokens generated.", "generation_tokens"),
    ("blockwright:requests_unfinished", "Requests that failed or whose client disconnected.", "unfinished"),
)
KEEP = 600.0  # seconds for which the numbers of a removed model can still be read
_OF_TENANT = (
    (
        "blockwright:tenant_requests",
        "Requests of a tenant that have started on a worker, lines of batches aside.",
        "requests",
    ),
    ("blockwright:tenant_queue_seconds", "Total seconds that these requests waited before they started.", "queued"),
    ("blockwright:tenant_batch_requests", "Lines of a tenant's batches that have started on a worker.", "lines"),
    ("blockwright:tenant_tokens", "Prompt tokens and generated tokens of a tenant's requests and batches.", "tokens"),
)
_HISTOGRAMS = {
    "vllm:time_to_first_token_seconds": ("Seconds from a request's arrival to its first token.", SECONDS),
    "vllm:inter_token_latency_seconds": ("Seconds between two deltas of a request, per token.", SECONDS),
    "vllm:request_time_per_output_token_seconds": ("Mean seconds per token after the first.", SECONDS),
    "vllm:e2e_request_latency_seconds": ("Seconds from a request's arrival to its end.", SECONDS),
    "vllm:request_queue_time_seconds": ("Seconds from a request's arrival until it starts on a worker.", SECONDS),
    "vllm:request_prefill_time_seconds": ("Seconds from its start on a worker to its first token.", SECONDS),
    "vllm:request_decode_time_seconds": ("Seconds from its first token to its last.", SECONDS),
    "vllm:request_inference_time_seconds": ("Seconds from its start on a worker to its last token.", SECONDS),
    "vllm:request_prompt_tokens": ("Prompt tokens of a request.", TOKENS),
    "vllm:request_generation_tokens": ("Tokens of a choice.", TOKENS),
    "vllm:request_max_num_generation_tokens": ("Tokens of the longest choice of a request.", TOKENS),
    "vllm:request_params_n": ("The n of a request.", CHOICES),
    "vllm:request_params_max_tokens": ("The max_tokens of requests that set it.", TOKENS),
}


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Tokens of all models since the start of this process.

    queries, hits: prompt tokens that were looked up in the prefix cache, and that were found.
    """

    prompt: int = 0
    generated: int = 0
    queries: int = 0
    hits: int = 0


@dataclass(frozen=True, slots=True)
class MeterFigures:
    """The figures of one request.

    queued, first_token: seconds from its arrival; None before the first token. reasons: finish reasons of its choices.
    """

    prompt: int
    tokens: int
    queued: float | None
    first_token: float | None
    reasons: tuple[str, ...]


@dataclass(slots=True)
class TenantCounts:
    """The usage of one tenant.

    requests, queued: started requests, and the seconds that they waited. lines: started lines of batches, which are not
    latency sensitive. tokens: of both.
    """

    requests: int = 0
    queued: float = 0.0
    lines: int = 0
    tokens: int = 0


class Tally:
    """The numbers of one model."""

    def __init__(self) -> None:
        self.active = self.unfinished = 0  # requests
        self.prompt_tokens = self.prompt_tokens_cached = self.generation_tokens = 0
        self.cache_queries = self.cache_hits = self.preemptions = 0
        self.drafts: Mapping[str, DraftCounts] = {}  # by source
        self.success: dict[str, int] = {"stop": 0, "length": 0}
        self.histograms = {name: Histogram(bounds) for name, (_, bounds) in _HISTOGRAMS.items()}
        self.between = self.histograms["vllm:inter_token_latency_seconds"]


class Meter:
    """One request's access to its model's tally and its tenant's account. ``times``: the tally that gets its seconds."""

    __slots__ = (
        "_account",
        "_begun",
        "_clock",
        "_count",
        "_first",
        "_last",
        "_longest",
        "_prompt",
        "_queued",
        "_reasons",
        "_tally",
        "_times",
    )

    def __init__(self, tally: Tally, times: Tally, account: TenantCounts, clock: Callable[[], float], prompt: int) -> None:
        self._tally = tally
        self._times = times
        self._account = account
        self._clock = clock
        self._prompt = prompt
        self._begun = self._last = clock()
        self._first: float | None = None
        self._queued = 0.0  # seconds until the first sweep plan
        self._count = self._longest = 0  # tokens of all choices; tokens of the longest ended choice
        self._reasons: list[str] = []  # finish reasons of ended choices
        tally.active += 1

    def began(self, progress: StreamProgress, *, looked: bool, first: bool) -> None:
        """Record that a sequence has its first tokens.

        ``looked``: the prefix cache was searched. ``first``: it is the first sequence of its prompt.
        """
        tally, queued = self._tally, progress.queue_seconds or 0.0
        if looked:
            tally.cache_queries += progress.prompt
            tally.cache_hits += progress.cached
        if first:
            tally.prompt_tokens_cached += progress.cached
        if self._first is None:
            self._queued = queued
            if self._times is tally:
                self._account.requests += 1
                self._account.queued += queued
            else:
                self._account.lines += 1
            self._times.histograms["vllm:request_queue_time_seconds"].observe(queued)
            prefill = max(0.0, self._clock() - self._begun - queued)
            self._times.histograms["vllm:request_prefill_time_seconds"].observe(prefill)

    def tokens(self, count: int) -> None:
        """Record ``count`` tokens that arrived together."""
        if not count:
            return
        now = self._clock()
        tally = self._tally
        if self._first is None:
            self._first = now
            self._times.histograms["vllm:time_to_first_token_seconds"].observe(now - self._begun)
        else:
            self._times.between.observe((now - self._last) / count, count)
        self._last = now
        self._count += count
        self._account.tokens += count
        tally.generation_tokens += count

    def finished(self, reason: str, tokens: int) -> None:
        """Record that a choice ended, with its finish reason."""
        self._reasons.append(reason)
        self._tally.success[reason] = self._tally.success.get(reason, 0) + 1
        self._tally.histograms["vllm:request_generation_tokens"].observe(tokens)
        self._longest = max(self._longest, tokens)

    def figures(self) -> MeterFigures:
        """Return the request's figures so far."""
        first = None if self._first is None else self._first - self._begun
        queued = None if self._first is None else self._queued
        return MeterFigures(self._prompt, self._count, queued, first, tuple(self._reasons))

    def log_parts(self) -> list[str]:
        """Return the parts of the log line: token counts, and how the time was spent."""
        said = [f"{self._prompt} prompt + {self._count} tokens"]
        if self._first is not None:
            said.append(f"queued {self._queued:.3f} s, first token after {self._first - self._begun:.3f} s")
            if self._count > 1 and self._last > self._first:
                said.append(f"then {(self._count - 1) / (self._last - self._first):.1f} tokens/s")
        return said

    def close(self, *, complete: bool, sequences: Iterable[StreamProgress] = ()) -> None:
        """End the count of a request. ``sequences``: the progress of each of its sequences at the end."""
        tally, now = self._tally, self._clock()
        tally.active -= 1
        for progress in sequences:
            tally.preemptions += progress.preemptions
            tally.drafts = added(tally.drafts, progress.drafts)
        if not complete:
            tally.unfinished += 1
            return
        self._times.histograms["vllm:e2e_request_latency_seconds"].observe(now - self._begun)
        tally.histograms["vllm:request_max_num_generation_tokens"].observe(self._longest)
        if self._first is not None:
            self._times.histograms["vllm:request_decode_time_seconds"].observe(self._last - self._first)
            inference = max(0.0, self._last - self._begun - self._queued)
            self._times.histograms["vllm:request_inference_time_seconds"].observe(inference)
        if self._first is not None and self._count > 1:
            mean = (self._last - self._first) / (self._count - 1)
            self._times.histograms["vllm:request_time_per_output_token_seconds"].observe(mean)


class Metrics:
    """The metrics of one web application (see the module), with a registry of its own.

    ``census``: current sequences by model. ``models``: ids of the served models; None if models are never removed.
    ``lengths``: accuracy of length estimates. ``dispatching``: figures of dispatch. ``moves``: figures of request moves.
    ``tiers``: of choices of tiers.
    """

    def __init__(
        self,
        census: Callable[[], dict[str, Census]],
        clock: Callable[[], float] = time.monotonic,
        models: Callable[[], Collection[str]] | None = None,
        lengths: Callable[[], LengthFigures] = LengthFigures,
        dispatching: Callable[[], DispatchFigures] = DispatchFigures,
        moves: Callable[[], MoveFigures] = MoveFigures,
        tiers: Callable[[], TierFigures] = TierFigures,
        tenants: Callable[[], dict[str, Census]] = dict,
    ) -> None:
        self._census = census
        self._clock = clock
        self._models = models
        self._lengths = lengths
        self._dispatching = dispatching
        self._moves = moves
        self._tenants = tenants
        self._tiers = tiers
        self._gone: dict[str, float] = {}  # removed model -> time when that was noticed
        self._answers: dict[tuple[str, str, str], int] = {}  # (path of the route, method, status like 2xx) -> answers
        self._rejections: dict[tuple[str, str], int] = {}  # (model, code of the refusal) -> requests
        self._tallies: dict[str, Tally] = {}
        self._offline = Tally()  # takes the seconds of batch requests; never exported
        self._accounts: dict[str, TenantCounts] = {}
        self._refused: dict[tuple[str, str], int] = {}  # (account, code of the refusal) -> requests
        self.runtime: Callable[[], Sequence[Measure]] = tuple  # measures of the head's node, once it exists
        # figures of the batches in this process, if they are enabled
        self.batches: Callable[[], Iterable[Mapping[str, Any]]] = tuple

    def begin(
        self, model: str, prompt_tokens: int, n: int, max_tokens: int | None, tenant: str = "", *, offline: bool = False
    ) -> Meter:
        """Begin to count an admitted request.

        tenant: the API key's; empty without keys. offline: the request is a line of a batch. Batches are not latency
        sensitive, so its seconds count neither in the model's latencies nor in the tenant's.
        """
        tally = self._tallies.get(model)
        if tally is None:
            self._forget()
            tally = self._tallies[model] = Tally()
        tally.prompt_tokens += prompt_tokens
        tally.histograms["vllm:request_prompt_tokens"].observe(prompt_tokens)
        tally.histograms["vllm:request_params_n"].observe(n)
        if max_tokens is not None:
            tally.histograms["vllm:request_params_max_tokens"].observe(max_tokens)
        account = self._accounts.setdefault(account_of(tenant, model), TenantCounts())
        account.tokens += prompt_tokens
        return Meter(tally, self._offline if offline else tally, account, self._clock, prompt_tokens)

    def counted(self) -> TokenCounts:
        """Return the tokens of all models so far."""
        tallies = self._tallies.values()
        names = ("prompt_tokens", "generation_tokens", "cache_queries", "cache_hits")
        return TokenCounts(*(sum(getattr(tally, name) for tally in tallies) for name in names))

    def first_tokens(self) -> list[int]:
        """Return the requests of all models by time to first token: a count for each of ``SECONDS``, and one beyond."""
        found = [tally.histograms["vllm:time_to_first_token_seconds"].counts for tally in self._tallies.values()]
        return [sum(column) for column in zip([0] * (len(SECONDS) + 1), *found, strict=True)]

    @property
    def active(self) -> int:
        """Requests that are being answered."""
        return sum(tally.active for tally in self._tallies.values())

    def rejected(self, model: str, code: str, tenant: str = "") -> None:
        """Count a request that was refused for lack of capacity: limits, a full queue, no worker, a shutdown.

        model: "" while the intended model is unknown. tenant: the API key's; empty without keys.
        """
        self._rejections[model, code] = self._rejections.get((model, code), 0) + 1
        account = account_of(tenant, model)
        self._refused[account, code] = self._refused.get((account, code), 0) + 1

    def tenant_uses(self) -> dict[str, TenantUse]:
        """Return this process's counts of each tenant."""
        now, found = self._tenants(), dict[str, TenantUse]()
        for account in sorted({*now, *self._accounts, *(account for account, _ in self._refused)}):
            census = now.get(account, Census())
            used = self._accounts.get(account, TenantCounts())
            refused = {code: count for (name, code), count in self._refused.items() if name == account}
            waiting = sum(census.waiting.values())
            found[account] = TenantUse(census.running, waiting, used.requests + used.lines, used.tokens, refused)
        return found

    def answered(self, path: str, method: str, status: int) -> None:
        """Count an HTTP answer. path: the route's pattern, so that there are few label values."""
        key = (path, method, f"{status // 100}xx")
        self._answers[key] = self._answers.get(key, 0) + 1

    def measures(self) -> list[Measure]:
        """Return the counters of this process."""
        self._forget()
        return [*self._requests(), *self.runtime()]

    def render(self, cluster: dict[str, Any], others: Sequence[Sequence[Measure]] = ()) -> bytes:
        """Return the Prometheus text.

        ``cluster``: body of ``/admin/cluster``; empty if it is not available. ``others``: counters of further processes.
        """
        families = [
            *summed([self.measures(), *others]),
            *cluster_measures(cluster),
            *tenant_measures(cluster.get("tenants", ())),
        ]
        return prometheus_text(families)

    def _requests(self) -> Iterator[Measure]:
        for model in () if self._models is None else self._models():
            self._tallies.setdefault(model, Tally())  # dashboards also find models without requests so far
        tallies, census = self._tallies.items(), self._census()
        yield from census_measures({model: census.get(model, Census()) for model in {**self._tallies, **census}})
        yield tenant_sequences(self.tenant_uses())
        for name, text, field in _COUNTERS:
            yield counter(name, text, {model: getattr(tally, field) for model, tally in tallies}, "model_name")
        ended = {(model, reason): count for model, tally in tallies for reason, count in tally.success.items()}
        yield counter("vllm:request_success", "Choices by finish reason.", ended, "model_name", "finished_reason")
        text = "Refused requests, by error code."
        yield counter("vllm:admission_rejections", text, self._rejections, "model_name", "reason")
        yield counter("http_requests", "HTTP answers.", self._answers, "handler", "method", "status")
        yield from estimate_measures(self._lengths())
        yield from dispatch_measures(self._dispatching())
        yield from draft_measures({model: tally.drafts for model, tally in tallies})
        yield from batch_measures(self.batches())
        yield move_measure(self._moves())
        text = "Requests that chose their tier (NAME:auto), by the tier that answered."
        yield counter("blockwright:tier_choices", text, self._tiers().chosen, "family", "tier")
        yield from variant_measures(self._tiers())
        for name, text, field in _OF_TENANT:
            yield counter(name, text, {tenant: getattr(one, field) for tenant, one in self._accounts.items()}, "tenant")
        text = "Refused requests of a tenant, by error code."
        yield counter("blockwright:tenant_refused", text, self._refused, "tenant", "reason")
        for name, (text, _) in _HISTOGRAMS.items():
            yield histogram(name, text, {model: tally.histograms[name] for model, tally in tallies}, "model_name")

    def _forget(self) -> None:
        """Delete the numbers of models that were removed ``KEEP`` seconds ago.

        So models that come and go do not pile up. A regular scrape has seen their last values by then.
        """
        if self._models is None:
            return
        now, served = self._clock(), self._models()
        named = {*self._tallies, *(model for model, _ in self._rejections if model)}
        self._gone = {model: self._gone.get(model, now) for model in named - {*served}}
        for model in [model for model, since in self._gone.items() if now - since >= KEEP]:
            tally = self._tallies.get(model)
            if tally is None or not tally.active:
                self._tallies.pop(model, None)
                self._accounts.pop(model, None)  # without keys a model is an account
                self._rejections = {key: n for key, n in self._rejections.items() if key[0] != model}
                self._refused = {key: n for key, n in self._refused.items() if key[0] != model}


@dataclass(frozen=True, slots=True)
class _Scrape(Collector):
    """Measures as the exporter of ``prometheus_client`` reads them."""

    measures: Iterable[Measure]

    def collect(self) -> Iterator[Metric]:
        for measure in self.measures:
            metric = Metric(measure.name, measure.text, measure.kind)
            for name, labels, value in measure.samples:
                metric.add_sample(name, labels, value)
            yield metric


def prometheus_text(measures: Iterable[Measure]) -> bytes:
    return generate_latest(_Scrape(measures))
