"""All settings of a serving cluster in one frozen record, each with its meaning. Standard library and policies only.

The text beside a type is what ``blockwright serve --show-settings`` and docs/serving.md say of the field.
``blockwright serve`` reaches each field by ``--set name=value`` or a TOML file given with ``--config``; the few that people
expect have a flag of their own. Sizes are bytes, times are seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated

from blockwright.policies.cluster.provisioning import MODES
from blockwright.policies.prediction.dispatching import POLICIES
from blockwright.policies.requests.account import SIDES, is_offline_account

MOST_THREADS = 256  # of a worker: what the kernels take
MOST = {  # beyond any machine: more is a slip, and would only be noticed when the tables for it are made
    "workers": 4096,
    "gateways": 256,
    "dispatchers": 256,
    "threads": MOST_THREADS,
    "max_rows": 16384,
    "sweep_tokens": 1 << 20,
}
MOST_WEIGHT = 1000  # of an account against one of weight 1
LEAST_LOG = 64 << 10  # bytes of a log in two files; in an event log each starts with a snapshot
# fmt: off
_POSITIVE = ("workers", "page_size", "chunk_size", "sweep_tokens", "max_rows", "pipeline", "gateways", "max_waiting",
             "max_body", "max_characters", "dispatchers", "batch_requests", "batch_bytes")
_SECONDS = ("stall_timeout", "heartbeat", "silence", "worker_wait", "drain_timeout", "keep_alive", "read_timeout",
            "dispatch_timeout", "slo_ttft", "slo_latency", "offline_sweep")
# fmt: on
OUTSTANDING = "outstanding"  # what a gateway dispatches by itself by
TRAINED = "trained:"  # what the setting tagger begins with before the name of a file


class SettingsError(ValueError):
    """A setting that cannot be; the message names the field, the value and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """See the module. Checked when made."""

    applications: Annotated[dict[str, str], "model id: checkpoint folder or hub id; the first is the default"] = field(
        default_factory=dict
    )
    bases: Annotated[
        dict[str, str],
        "application that is an adapter: the application that it changes; without an entry the first whole one",
    ] = field(default_factory=dict)
    workers: Annotated[int, "worker processes"] = 1
    device: Annotated[str, "where the workers compute: cpu"] = "cpu"
    dtype: Annotated[str, "auto (as stored; float16, or checkpoints of several types: float32), float32 or bfloat16"] = (
        "auto"
    )
    backend: Annotated[str, "native (C kernels), torch (the reference) or auto: native where its library loads"] = "auto"
    instruction_set: Annotated[
        str, "best that native kernels use: avx512_bf16, avx512, avx2 or generic; empty: the best of the processor"
    ] = ""
    threads: Annotated[int, "kernel threads of each worker; 0: cores (quotas considered) divided by workers, at least 1"] = 0
    host: Annotated[str, "address to listen on"] = "127.0.0.1"
    port: Annotated[int, "port to listen on; 0: any free one"] = 8000
    gateways: Annotated[int, "gateways, which answer HTTP on the one port, each in a process"] = 1
    gateway_in_head: Annotated[
        str, "yes: the first gateway shares the head's process; no: each has its own; auto: no with more than 2 cores"
    ] = "auto"
    tls_cert: Annotated[str, "certificate chain (PEM file); with tls_key the server speaks https only"] = ""
    tls_key: Annotated[str, "private key (PEM file) of tls_cert"] = ""
    cors_origins: Annotated[str, "web pages that may ask from a browser: origins with commas between, or *; empty: none"] = (
        ""
    )
    allowed_hosts: Annotated[
        str,
        "host names that are answered, with commas between, or *; empty: all, but on loopback without keys its own",
    ] = ""
    read_timeout: Annotated[float, "seconds that a client has to send a request, and one for each 16 KiB of its body"] = 60.0
    max_connections: Annotated[
        int, "connections of a gateway process, further ones are refused; 0: as many as open files (ulimit -n) allow"
    ] = 8192
    max_body: Annotated[int, "bytes (or 32MiB) of a request's body"] = 32 << 20
    max_characters: Annotated[int, "characters of a text to tokenize; each takes about 150 bytes for a moment"] = 4_000_000
    api_keys: Annotated[dict[str, str], "key: tenant; empty, and no admin_keys: no key is needed"] = field(
        default_factory=dict
    )
    admin_keys: Annotated[dict[str, str], "key: tenant; where there are any, only these may use /admin"] = field(
        default_factory=dict
    )
    tenant_models: Annotated[
        dict[str, str], "tenant: model ids that it may use, with commas between; without an entry all"
    ] = field(default_factory=dict)
    requests_per_minute: Annotated[dict[str, int], "tenant: requests let in per minute; * for tenants without an entry"] = (
        field(default_factory=dict)
    )
    tokens_per_minute: Annotated[dict[str, int], "tenant: tokens of prompts and answers per minute; * as above"] = field(
        default_factory=dict
    )
    tokens_per_day: Annotated[dict[str, int], "tenant: tokens of prompts and answers per day (UTC); * as above"] = field(
        default_factory=dict
    )
    concurrent_requests: Annotated[dict[str, int], "tenant: requests that run or wait at a time; * as above"] = field(
        default_factory=dict
    )
    tenant_weights: Annotated[
        dict[str, int], "tenant (application, where there are no keys): its part of a worker's time; * for others, else 1"
    ] = field(default_factory=dict)
    tenant_kv_share: Annotated[
        dict[str, float],
        "tenant or application, as above: most of a worker's KV memory that it may hold, 0 to 1; * for others; :left and "
        ":right for the two sides of batches",
    ] = field(default_factory=dict)
    on_demand: Annotated[
        bool, "load applications that do not fit beside the others when they are asked for; no: refuse them"
    ] = True
    kv_reserve: Annotated[
        float, "with on_demand: part of the memory that the largest application leaves that others leave to KV, 0 to 0.9"
    ] = 0.1
    offline_delay: Annotated[
        float, "part by which requests of batches may make a sweep of other requests longer, 0 (not in the same sweep) to 1"
    ] = 0.03
    offline_sweep: Annotated[
        float, "seconds that a sweep of requests of batches alone takes at most, as whoever comes waits for its end"
    ] = 0.02
    app_roots: Annotated[
        str, "folders, with commas between, below which applications that are added at run time must lie; empty: none can be"
    ] = ""
    max_model_len: Annotated[int, "tokens of prompt and answer; 0: as the checkpoint says, at most 8192"] = 0
    memory: Annotated[
        int, "bytes (or 2GiB) for parameters and KV of each worker; 0: 60 % of free memory divided by the workers"
    ] = 0
    page_size: Annotated[int, "tokens of a page of KV"] = 16
    chunk_size: Annotated[int, "most prompt tokens of one sequence in one sweep"] = 256
    sweep_tokens: Annotated[int, "most tokens in one sweep"] = 512
    max_rows: Annotated[int, "sequences of a worker that run at a time; others wait"] = 256
    pipeline: Annotated[int, "workers that each chain is spread over; must divide workers"] = 1
    pipelines: Annotated[dict[str, int], "application: workers that its chain is spread over"] = field(default_factory=dict)
    block_idle: Annotated[
        float,
        "seconds without use after which a block that was deployed on one more worker for a burst goes again; 0: none is",
    ] = 60.0
    autoscale: Annotated[
        str,
        "start and drain workers by latency: off, preemptive (by forecasts, see dispatch) or relief (by what was measured)",
    ] = "off"
    autoscale_latency: Annotated[float, "seconds of a request, from arrival to end, above which one more worker starts"] = (
        0.0
    )
    autoscale_max_workers: Annotated[
        int, "workers at most, between which threads and memory are divided; workers: at least"
    ] = 0
    autoscale_cooldown: Annotated[float, "seconds after a started worker serves before the next one may start"] = 30.0
    autoscale_window: Annotated[
        float,
        "seconds that latencies, times n / (n - 1) workers, must be below half of autoscale_latency before one goes",
    ] = 60.0
    overload: Annotated[
        str,
        "on: replicas drop parameters that exist twice when KV memory runs out, and load them again after the burst; off",
    ] = "off"
    overload_throttled: Annotated[float, "share of a worker's KV memory in use at which it throttles, 0.5 to 1"] = 0.95
    overload_quiet: Annotated[float, "share of the KV memory of whole replicas below which parameters come back, 0 to 1"] = (
        0.5
    )
    overload_horizon: Annotated[
        float, "seconds for which use of KV memory is extrapolated: what is about to throttle counts; 0: what does"
    ] = 0.0
    overload_most: Annotated[int, "workers of a pipeline that comes of dropped parameters, at most"] = 4
    prefix_cache: Annotated[bool, "reuse KV of equal prompt beginnings"] = True
    shared_cache: Annotated[bool, "let tenants reuse each other's, which tells them that somebody asked the same"] = False
    pace: Annotated[str, "simulate slower hardware: delays of each step, from a JSON file of seconds"] = ""
    profile: Annotated[str, "device profile (a JSON file of blockwright profile) that sweeps are compared with"] = ""
    stall_timeout: Annotated[float, "seconds after which a sweep (pace excluded) means a hung worker, which is replaced"] = (
        10.0
    )
    heartbeat: Annotated[float, "seconds between the reports of a worker"] = 0.5
    silence: Annotated[float, "seconds without a report after which a worker is declared down"] = 2.0
    worker_wait: Annotated[float, "seconds that requests wait while no worker can serve them; then they fail"] = 30.0
    request_timeout: Annotated[float, "seconds from arrival after which a request fails, complete or not; 0: never"] = 0.0
    drain_timeout: Annotated[float, "seconds that SIGTERM, or the end of an application, gives to what runs"] = 30.0
    max_waiting: Annotated[int, "requests in the server, all gateways together, beyond which new ones are refused"] = 4096
    max_waiting_tokens: Annotated[int, "tokens still to compute beyond which new requests are refused; 0: no limit"] = 0
    unknown_fields: Annotated[str, "warn (unknown request fields are listed in the header x-ignored-fields) or reject"] = (
        "warn"
    )
    keep_alive: Annotated[
        float, "seconds of silence in a stream before a comment tells the queue's place or the prefill"
    ] = 10.0
    batch_dir: Annotated[
        str, "folder where files and batches are kept, whatever dies; of one server alone; empty: there are no batches"
    ] = ""
    batch_requests: Annotated[int, "most requests of a batch"] = 50_000
    batch_bytes: Annotated[int, "bytes (or 200MiB) of a file of requests"] = 200 << 20
    directory: Annotated[str, "of the cluster's sockets; empty: a fresh private one"] = ""
    check: Annotated[bool, "verify the memory accounts after every sweep, not only when idle"] = False
    event_log: Annotated[
        str, "folder for the workers' event logs, which contain prompts and answers as tokens; empty: off"
    ] = ""
    event_log_size: Annotated[int, "bytes (or 64MiB) of each worker's event log: older entries are deleted"] = 64 << 20
    tagger: Annotated[
        str,
        "what estimates lengths of answers: off, history (of what was served), or trained:FILE, which learns on",
    ] = "off"
    tagger_folder: Annotated[str, "folder where the tagger keeps what it has learned; empty: it starts anew each time"] = ""
    request_log: Annotated[
        str, "folder for logs of served requests (hashed features and lengths, no tokens) to train a tagger on; empty: off"
    ] = ""
    request_log_size: Annotated[int, "bytes (or 64MiB) of each gateway's request log: older requests are deleted"] = 64 << 20
    dispatch: Annotated[
        str, "which worker takes a request: outstanding (least work; nobody is asked), or a policy of docs/scheduling.md"
    ] = OUTSTANDING
    dispatch_candidates: Annotated[int, "routes that are compared for a request, drawn at random; 0: all"] = 0
    dispatch_timeout: Annotated[float, "seconds that a worker's predictor may take to answer a dispatcher"] = 0.05
    dispatch_sample: Annotated[float, "share of requests for which all routes are asked, to rank the choice; 0 to 1"] = 0.01
    dispatchers: Annotated[int, "dispatchers, which gateways ask by turns"] = 1
    slo_ttft: Annotated[float, "seconds until the first token that predicted-slo and ours aim at"] = 3.0
    slo_latency: Annotated[float, "seconds until the last token that predicted-slo aims at"] = 30.0
    log_format: Annotated[str, "text, or json: one object on each line of standard output and error"] = "text"
    log_level: Annotated[str, "debug, info, warning or error: what is less important is not logged"] = "warning"

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} is {getattr(self, name)}; give at least 1")
        for name in (
            "threads",
            "memory",
            "max_model_len",
            "port",
            "max_waiting_tokens",
            "max_connections",
            "dispatch_candidates",
        ):
            if getattr(self, name) < 0:
                raise SettingsError(f"{name} is {getattr(self, name)}; give 0 (the default) or more")
        for name, most in MOST.items():
            if getattr(self, name) > most:
                raise SettingsError(f"{name} is {getattr(self, name)}; give at most {most}")
        if self.port > 65535:
            raise SettingsError(f"port is {self.port}; give a number from 0 to 65535")
        choices = {
            "gateway_in_head": ("auto", "yes", "no"),
            "dispatch": (OUTSTANDING, *POLICIES),
            "dtype": ("auto", "float32", "bfloat16"),
            "backend": ("auto", "native", "torch"),
            "instruction_set": ("", "avx512_bf16", "avx512", "avx2", "generic"),
            "unknown_fields": ("warn", "reject"),
            "overload": ("off", "on"),
            "log_format": ("text", "json"),
            "log_level": ("debug", "info", "warning", "error"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise SettingsError(f"{name} is {getattr(self, name)!r}; choose one of {', '.join(filter(None, allowed))}")
        for name, span in {"": self.pipeline, **self.pipelines}.items():
            label = f"pipelines.{name}" if name else "pipeline"
            if not 1 <= span <= self.workers or self.workers % span:
                raise SettingsError(f"{label} is {span} with {self.workers} workers; give a divisor of workers")
            if name and name not in self.applications:
                raise SettingsError(f"{label} names no application; there are: {', '.join(self.applications)}")
        self._check_bases()
        self._check_autoscale()
        self._check_overload()
        self._check_logs()
        self._check_front()
        for name in _SECONDS:
            if getattr(self, name) <= 0:
                raise SettingsError(f"{name} is {getattr(self, name)}; give a positive number of seconds")
        for name, without in {"request_timeout": "no limit", "block_idle": "no block that is deployed for a burst"}.items():
            if getattr(self, name) < 0:
                raise SettingsError(f"{name} is {getattr(self, name)}; give seconds, or 0 for {without}")
        if self.silence < 2 * self.heartbeat:
            raise SettingsError(f"silence is {self.silence} s; give at least twice heartbeat ({self.heartbeat} s)")
        if self.sweep_tokens < self.max_rows:
            raise SettingsError(
                f"sweep_tokens is {self.sweep_tokens}, less than max_rows ({self.max_rows}); every running sequence "
                "needs a token in a sweep: raise sweep_tokens or lower max_rows"
            )

    def _check_autoscale(self) -> None:
        if self.autoscale not in MODES:
            raise SettingsError(f"autoscale is {self.autoscale!r}; choose one of {', '.join(MODES)}")
        for name in ("autoscale_latency", "autoscale_cooldown", "autoscale_window"):
            if getattr(self, name) < 0:
                raise SettingsError(f"{name} is {getattr(self, name)}; give seconds")
        if self.autoscale == "off":
            if most := self.autoscale_max_workers:
                raise SettingsError(f"autoscale_max_workers is {most}, but autoscale is off; choose preemptive or relief")
            return
        if self.autoscale == "preemptive" and (self.dispatch == OUTSTANDING or not POLICIES[self.dispatch].fallback):
            those = ", ".join(name for name, known in POLICIES.items() if known.fallback)
            raise SettingsError(f"autoscale is preemptive, but dispatch={self.dispatch} forecasts nothing; choose {those}")
        if not self.workers < (most := self.autoscale_max_workers) <= MOST["workers"]:
            few, many = self.workers + 1, MOST["workers"]
            raise SettingsError(f"autoscale_max_workers is {most} with {self.workers} workers; give {few} to {many}")
        if not self.autoscale_latency:
            raise SettingsError("autoscale_latency is missing; give the seconds that a request may take")
        for label, span in {"pipeline": self.pipeline, **{f"pipelines.{n}": s for n, s in self.pipelines.items()}}.items():
            if span > 1:
                raise SettingsError(f"{label} is {span}, but autoscale adds single workers; give 1, or autoscale=off")

    def _check_overload(self) -> None:
        for name, least in {"overload_throttled": 0.5, "overload_quiet": 0.0}.items():
            if not least < (value := getattr(self, name)) <= 1:
                raise SettingsError(f"{name} is {value}; give more than {least:g}, at most 1 (all KV memory)")
        if self.overload_horizon < 0:
            raise SettingsError(f"overload_horizon is {self.overload_horizon}; give seconds, or 0 for no extrapolation")
        if self.overload_most < 2:
            raise SettingsError(f"overload_most is {self.overload_most}; give at least 2, or overload=off")
        if self.overload == "off":
            return
        if max(self.workers, self.autoscale_max_workers) < 2:
            raise SettingsError("overload is on with 1 worker, which holds nothing twice; give 2 workers or more, or off")
        for label, span in {"pipeline": self.pipeline, **{f"pipelines.{n}": s for n, s in self.pipelines.items()}}.items():
            if span > 1:
                raise SettingsError(f"{label} is {span}, but overload makes pipelines of whole replicas; give 1, or off")
        if not self.prefix_cache:
            raise SettingsError("overload is on, but prefix_cache is off, by which KV moves; give prefix_cache=on, or off")

    def _check_bases(self) -> None:
        for name, base in self.bases.items():
            for one in (name, base):
                if one not in self.applications:
                    raise SettingsError(
                        f"bases.{name} = {base!r}: {one} is no application; there are: {_listed(self.applications)}"
                    )

    def _check_logs(self) -> None:
        for name in ("event_log_size", "request_log_size"):
            if getattr(self, name) < LEAST_LOG:
                raise SettingsError(f"{name} is {getattr(self, name)}; give at least {LEAST_LOG} bytes")
        if self.tagger not in ("off", "history") and not self.tagger.partition(TRAINED)[2]:
            raise SettingsError(f"tagger is {self.tagger!r}; choose one of off, history, {TRAINED}FILE")

    def _check_front(self) -> None:
        if self.device != "cpu":
            raise SettingsError(
                f"device is {self.device!r}, but there is no GPU back end yet; choose cpu, which is the default"
            )
        if bool(self.tls_cert) != bool(self.tls_key):
            missing = "tls_key" if self.tls_cert else "tls_cert"
            raise SettingsError(f"{missing} is missing; https needs tls_cert and tls_key")
        for origin in filter(None, (part.strip() for part in self.cors_origins.split(","))):
            if origin != "*" and "://" not in origin:
                raise SettingsError(f"cors_origins names {origin!r}; give origins like https://example.org, or *")
        tenants = {*self.api_keys.values(), *self.admin_keys.values()}
        for tenant in sorted(filter(is_offline_account, tenants)):
            raise SettingsError(f"tenant {tenant!r} begins with ':', as the accounts of batches do; give it another name")
        limits = ("requests_per_minute", "tokens_per_minute", "tokens_per_day", "concurrent_requests")
        for name in ("tenant_models", *limits):
            for tenant, value in getattr(self, name).items():
                if tenant not in tenants and (tenant != "*" or name == "tenant_models"):
                    raise SettingsError(f"{name}.{tenant} is of no tenant that has a key; there are: {_listed(tenants)}")
                if name in limits and value < 1:
                    raise SettingsError(f"{name}.{tenant} is {value}; give at least 1, or leave it out for no limit")
        accounts = tenants or {*self.applications}
        for name in ("tenant_weights", "tenant_kv_share"):
            for account in getattr(self, name):
                if account not in {*accounts, "*", *(SIDES if name == "tenant_kv_share" else ())}:
                    kind = "tenant that has a key" if tenants else "application"
                    raise SettingsError(f"{name}.{account} is of no {kind}; there are: {_listed(accounts)}")
        for account, weight in self.tenant_weights.items():
            if not 1 <= weight <= MOST_WEIGHT:
                raise SettingsError(f"tenant_weights.{account} is {weight}; give 1 to {MOST_WEIGHT}")
        for account, share in self.tenant_kv_share.items():
            if not 0 < share <= 1:
                raise SettingsError(f"tenant_kv_share.{account} is {share}; give more than 0, at most 1 (all KV memory)")
        if not 0 <= self.dispatch_sample <= 1:
            raise SettingsError(f"dispatch_sample is {self.dispatch_sample}; give a share of requests, 0 to 1")
        if not 0 <= self.offline_delay <= 1:
            raise SettingsError(f"offline_delay is {self.offline_delay}; give a part of a sweep, 0 to 1")
        if not 0 <= self.kv_reserve <= 0.9:
            raise SettingsError(f"kv_reserve is {self.kv_reserve}; give 0 to 0.9")
        for tenant, models in self.tenant_models.items():
            for model in models.split(","):
                if model.strip() not in self.applications and not self.app_roots:  # with roots it may come later
                    served = _listed(self.applications)
                    raise SettingsError(
                        f"tenant_models.{tenant} names {model.strip()!r}, which is not served; there are: {served}"
                    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
