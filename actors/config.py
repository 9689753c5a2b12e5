"""All settings of a serving cluster in one frozen record, each with its meaning. Standard library and policies only.

The text beside a type is the field's description in ``blockwright serve --show-settings`` and docs/serving.md. A ``Group``
there begins a section of that file and a table of that page. ``blockwright serve`` sets each field by ``--set name=value``
or by a TOML file given with ``--config``; the few that people expect have a flag of their own. Sizes are bytes, times are
seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated

from ..policies.cluster.provisioning import MODES
from ..policies.drafts.choice import settings_fault
from ..policies.model.tiers import family_of
from ..policies.prediction.dispatching import POLICIES
from ..policies.requests.account import SIDES, is_offline_account

MOST_THREADS = 256  # per worker: the kernels' limit
MOST = {  # beyond any machine: a larger number is a slip, and would only be noticed when its tables are made
    "workers": 4096,
    "gateways": 256,
    "dispatchers": 256,
    "threads": MOST_THREADS,
    "max_rows": 16384,
    "sweep_tokens": 1 << 20,
}
LEAST = {"heartbeat": 0.01, "keep_alive": 0.001}  # seconds; more frequent messages cost time and add no information
MOST_WEIGHT = 1000  # an account's most, against an account of weight 1
LEAST_LOG = 64 << 10  # bytes of a log in two files; in an event log each starts with a snapshot
# fmt: off
_POSITIVE = ("workers", "page_size", "chunk_size", "sweep_tokens", "max_rows", "pipeline", "gateways", "max_waiting",
             "max_characters", "dispatchers", "batch_requests", "batch_bytes")
_COUNTS = ("threads", "memory", "max_model_len", "max_body", "port", "max_waiting_tokens", "max_connections",
           "dispatch_candidates")
_SECONDS = ("stall_timeout", "silence", "worker_wait", "drain_timeout", "read_timeout", "dispatch_timeout", "slo_ttft",
            "slo_latency", "offline_sweep")
# fmt: on
OUTSTANDING = "outstanding"  # the value of ``dispatch`` with which gateways dispatch by themselves
TRAINED = "trained:"  # prefix of the setting tagger before a file's name


LONGEST_CONTEXT = 8192  # tokens of a sequence unless ``max_model_len`` says more
TOKEN_CHARACTERS = 32


Texts = dict[str, str]
Counts = dict[str, int]


class Group(str):
    """The heading above a field of ``Settings`` and the fields after it, in the annotation of the first of them."""


class StartError(Exception):
    """A cluster cannot serve what it was started for. The text is one sentence for the person who started it."""


class SettingsError(ValueError):
    """An invalid setting. The message names the field, the value and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a cluster (see the module). Checked when made."""

    applications: Annotated[
        Texts,
        "model id: checkpoint folder or hub id, or a table (path, base, system, temperature, ...); the first is the default",
        Group("Models"),
    ] = field(default_factory=dict)
    application_defaults: Texts = field(default_factory=dict)  # by application, as in ``ModelInfo``
    default_model: Annotated[str, "model id of requests that name none; empty: the first"] = ""
    bases: Annotated[
        Texts, "adapter: its base application; default: the one that the adapter names, or the only whole model"
    ] = field(default_factory=dict)
    adapters: Annotated[
        str, "folder whose adapters are served, each under the name of its own folder, and loaded when requests ask for them"
    ] = ""
    app_roots: Annotated[
        str, "folders, separated by commas, from which applications may be added at run time; empty: none may"
    ] = ""
    apps_file: Annotated[
        str, "file that keeps additions and removals at run time for the next start; empty: one in adapters, if that is set"
    ] = ""
    exits: Annotated[Texts, "application: layers of lower tiers, as 8,16, without exits.json"] = field(default_factory=dict)
    on_demand: Annotated[bool, "load applications that do not fit in memory when requests need them; no: refuse them"] = True
    workers: Annotated[int, "worker processes", Group("Workers")] = 1
    threads: Annotated[int, "kernel threads per worker; 0: cores (of the container) divided by workers, at least 1"] = 0
    device: Annotated[str, "device on which the workers compute; only cpu exists yet"] = "cpu"
    dtype: Annotated[str, "auto (as stored; float16, or checkpoints of several types: float32), float32 or bfloat16"] = (
        "auto"
    )
    backend: Annotated[str, "native (C kernels), torch (the reference) or auto: native if its library loads"] = "auto"
    instruction_set: Annotated[
        str, "limit for the native kernels: amx, avx512_bf16, avx512, avx2 or generic; empty: the best the processor has"
    ] = ""
    pipeline: Annotated[int, "pipeline stages: workers each model is spread over; must divide workers"] = 1
    pipelines: Annotated[Counts, "application: its own number of pipeline stages"] = field(default_factory=dict)
    profile: Annotated[str, "device profile (a JSON file from blockwright profile) to compare steps with"] = ""
    pace: Annotated[str, "simulate slower hardware: delays per step, from a JSON file of seconds"] = ""
    memory: Annotated[
        int,
        "bytes (or 2GiB) for parameters and KV, per worker; 0: 60 % of free memory, divided by the workers",
        Group("Memory and the prefix cache"),
    ] = 0
    kv_reserve: Annotated[
        float, "with on_demand: share of the memory beside the largest application that stays free for KV, 0 to 0.9"
    ] = 0.1
    page_size: Annotated[int, "tokens per page of KV"] = 16
    block_idle: Annotated[
        float, "seconds without use until an extra copy of a busy block is unloaded; 0: no extra copies"
    ] = 60.0
    prefix_cache: Annotated[bool, "reuse the KV of equal prompt prefixes"] = True
    hidden_pages: Annotated[str, "keep what lower tiers leave for higher ones: on, off, or auto: if there are some"] = "auto"
    shared_cache: Annotated[bool, "let tenants reuse each other's prefixes; timing then reveals equal prompts"] = False
    max_rows: Annotated[int, "sequences a worker runs at a time; others wait", Group("Batching")] = 256
    sweep_tokens: Annotated[int, "most tokens in one step (a sweep)"] = 512
    chunk_size: Annotated[int, "most prompt tokens of one sequence in one step"] = 256
    drafts: Annotated[
        Texts,
        "model id: source of drafts for requests that name none: off, prompt or auto; * for models without an entry",
        Group("Drafts"),
    ] = field(default_factory=dict)
    draft_tokens: Annotated[int, "tokens drafted in a step, at most 16; 0: as many as pay"] = 0
    max_model_len: Annotated[
        int,
        "most tokens of prompt and answer together; 0: what the checkpoint says, at most 8192",
        Group("Limits of requests"),
    ] = 0
    max_body: Annotated[
        int, "maximum size of a request's body in bytes (or 32MiB); 0: 4 MiB and 6 bytes for each character that may fit"
    ] = 0
    max_characters: Annotated[int, "most characters of a text to tokenize; each takes about 150 bytes"] = 4_000_000
    max_waiting: Annotated[int, "most requests in the server, over all gateways; more are refused"] = 4096
    max_waiting_tokens: Annotated[int, "most tokens still to compute; more requests are refused; 0: no limit"] = 0
    request_timeout: Annotated[float, "seconds from arrival after which an unfinished request fails; 0: never"] = 0.0
    unknown_fields: Annotated[str, "warn (list unknown request fields in the header x-ignored-fields) or reject"] = "warn"
    tenant_models: Annotated[Texts, "tenant: model ids it may use, separated by commas; default: all", Group("Tenants")] = (
        field(default_factory=dict)
    )
    requests_per_minute: Annotated[Counts, "tenant: requests per minute; * for tenants without an entry"] = field(
        default_factory=dict
    )
    tokens_per_minute: Annotated[Counts, "tenant: prompt and answer tokens per minute; * as above"] = field(
        default_factory=dict
    )
    tokens_per_day: Annotated[Counts, "tenant: prompt and answer tokens per day (UTC); * as above"] = field(
        default_factory=dict
    )
    concurrent_requests: Annotated[Counts, "tenant: requests running or waiting at a time; * as above"] = field(
        default_factory=dict
    )
    tenant_weights: Annotated[
        Counts, "tenant (or application, without keys): its share of a worker's time; * for others, else 1"
    ] = field(default_factory=dict)
    tenant_kv_share: Annotated[
        dict[str, float],
        "tenant or application: the most of a worker's KV memory it may hold, 0 to 1; * for others; :left and :right for "
        "the two sides of offline batches",
    ] = field(default_factory=dict)
    host: Annotated[str, "address to listen on", Group("Network, keys and TLS")] = "127.0.0.1"
    port: Annotated[int, "port to listen on; 0: any free one"] = 8000
    api_keys: Annotated[Texts, "key: tenant; if this and admin_keys are empty, no key is needed"] = field(
        default_factory=dict
    )
    admin_keys: Annotated[Texts, "key: tenant; if there are any, only these may use /admin"] = field(default_factory=dict)
    tls_cert: Annotated[str, "certificate chain (PEM file); with tls_key the server speaks https only"] = ""
    tls_key: Annotated[str, "private key (PEM file) of tls_cert"] = ""
    cors_origins: Annotated[str, "origins whose web pages may send requests, separated by commas, or *; empty: none"] = ""
    allowed_hosts: Annotated[
        str,
        "host names accepted in requests, separated by commas, or *; empty: all, or on loopback without keys the local ones",
    ] = ""
    gateways: Annotated[int, "gateways, the processes that answer HTTP; all on the same port"] = 1
    gateway_in_head: Annotated[
        str, "yes: the first gateway shares the head's process; no: each has its own; auto: no with more than 2 cores"
    ] = "auto"
    max_connections: Annotated[
        int, "connections per gateway process, more are refused; 0: as many as open files (ulimit -n) allow"
    ] = 8192
    read_timeout: Annotated[float, "seconds a client has to send a request, plus one for each 16 KiB of its body"] = 60.0
    keep_alive: Annotated[
        float, "seconds of silence in a stream before a comment with the queue position or prefill progress, at least 0.001"
    ] = 10.0
    directory: Annotated[str, "folder for the cluster's sockets; empty: a fresh private one"] = ""
    heartbeat: Annotated[float, "seconds between a worker's heartbeats, at least 0.01", Group("Faults and shutdown")] = 0.5
    silence: Annotated[float, "seconds without a heartbeat after which a worker is declared down"] = 2.0
    stall_timeout: Annotated[
        float, "seconds without progress in a step (beyond pace) that mean a hung worker; it is replaced"
    ] = 10.0
    worker_wait: Annotated[float, "seconds requests wait while no worker can serve them; then they fail"] = 30.0
    drain_timeout: Annotated[float, "seconds for requests to finish after SIGTERM, or when their model is removed"] = 30.0
    check: Annotated[bool, "verify the memory accounts after every seventh step, not only when idle"] = False
    dispatch: Annotated[
        str,
        "choice of a worker for a request: outstanding (least work), or a policy of docs/scheduling.md",
        Group("Dispatch"),
    ] = OUTSTANDING
    dispatch_candidates: Annotated[int, "routes to compare for each request, drawn at random; 0: all"] = 0
    dispatch_timeout: Annotated[float, "seconds a worker's predictor may take to answer a dispatcher"] = 0.05
    dispatch_sample: Annotated[float, "share of requests for which all routes are asked, to rank the choice, 0 to 1"] = 0.01
    dispatchers: Annotated[int, "dispatchers; gateways ask them in turn"] = 1
    slo_ttft: Annotated[float, "target for the first token, in seconds, of the policies predicted-slo and ours"] = 3.0
    slo_latency: Annotated[float, "target for the last token, in seconds, of the policy predicted-slo"] = 30.0
    autoscale: Annotated[
        str,
        "start and drain workers by latency: off, preemptive (by forecasts, see dispatch) or relief (by measurements)",
        Group("Autoscaling"),
    ] = "off"
    autoscale_latency: Annotated[float, "seconds from arrival to end above which one more worker starts"] = 0.0
    autoscale_max_workers: Annotated[
        int, "most workers; threads and memory are divided by this number (workers is the least)"
    ] = 0
    autoscale_cooldown: Annotated[float, "seconds between one new worker being ready and the next one starting"] = 30.0
    autoscale_window: Annotated[
        float,
        "seconds for which latency * n / (n - 1), with n workers, must be below half of autoscale_latency before one stops",
    ] = 60.0
    overload: Annotated[
        str,
        "on: when KV memory runs out, replicas drop parameters that others hold, and reload them after the burst; off",
        Group("Overload"),
    ] = "off"
    overload_throttled: Annotated[float, "share of a worker's KV memory in use that counts as full, 0.5 to 1"] = 0.95
    overload_quiet: Annotated[float, "share of all KV memory in use below which parameters are reloaded, 0 to 1"] = 0.5
    overload_horizon: Annotated[
        float, "seconds ahead that KV use is extrapolated, to act before memory is full; 0: act when it is"
    ] = 0.0
    overload_most: Annotated[int, "most workers in a pipeline formed by dropping parameters"] = 4
    batch_dir: Annotated[
        str,
        "folder that keeps files and batches through any crash, used by one server only; empty: no batches",
        Group("Offline batches"),
    ] = ""
    batch_requests: Annotated[int, "most requests in a batch"] = 50_000
    batch_bytes: Annotated[int, "maximum size of a batch's input file in bytes (or 200MiB)"] = 200 << 20
    offline_delay: Annotated[
        float,
        "most by which batch requests may slow other answers: 0 (they join only if that costs nothing) to 1 (twice as slow)",
    ] = 0.03
    offline_sweep: Annotated[float, "most seconds for a step of batch requests alone; new requests wait for it"] = 0.02
    log_format: Annotated[
        str, "text, or json: one object per line, on standard output and error", Group("Logs and traces")
    ] = "text"
    log_level: Annotated[str, "least important level that is logged: debug, info, warning or error"] = "warning"
    event_log: Annotated[str, "folder for the workers' event logs (with prompts and answers as token ids); empty: off"] = ""
    event_log_size: Annotated[int, "bytes (or 64MiB) per worker's event log; older entries are deleted"] = 64 << 20
    otlp_traces_endpoint: Annotated[
        str, "URL to send trace spans of requests to (http://HOST:4318/v1/traces; needs the extra otlp); empty: off"
    ] = ""
    tagger: Annotated[
        str,
        "source of the estimates of answer lengths: off, history (of past requests) or trained:FILE (which keeps learning)",
        Group("Forecasts of answer lengths"),
    ] = "off"
    tagger_folder: Annotated[str, "folder where the tagger keeps what it has learned; empty: nowhere"] = ""
    request_log: Annotated[
        str, "folder for logs of requests (hashed features and lengths, no tokens) to train a tagger on; empty: off"
    ] = ""
    request_log_size: Annotated[int, "bytes (or 64MiB) per gateway's request log; older requests are deleted"] = 64 << 20

    def may_serve(self, name: str) -> bool:
        """Return whether an application has this id, or may have a tier of this id."""
        return name in self.applications or family_of(name) in self.applications

    @property
    def largest_body(self) -> int:
        """Return the bytes that a request's body may have.

        Without ``max_body`` they follow from the context. A token has at most ``TOKEN_CHARACTERS`` characters, apart from
        odd texts, and JSON writes a character in up to 6 bytes. The rest is space for lists of prompts and fields of
        messages.
        """
        context = TOKEN_CHARACTERS * (self.max_model_len or LONGEST_CONTEXT)
        return self.max_body or (4 << 20) + 6 * min(self.max_characters, context)

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} is {getattr(self, name)}; give at least 1")
        for name in _COUNTS:
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
            "instruction_set": ("", "amx", "avx512_bf16", "avx512", "avx2", "generic"),
            "unknown_fields": ("warn", "reject"),
            "overload": ("off", "on"),
            "hidden_pages": ("auto", "on", "off"),
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
            if name and not self.may_serve(name):
                raise SettingsError(f"{label} names no application; there are: {', '.join(self.applications)}")
        self._check_bases()
        self._check_autoscale()
        self._check_overload()
        self._check_logs()
        self._check_front()
        if fault := settings_fault(self.drafts, self.draft_tokens, None if self._more_may_come else self.applications):
            raise SettingsError(fault)
        for name in _SECONDS:
            if getattr(self, name) <= 0:
                raise SettingsError(f"{name} is {getattr(self, name)}; give a positive number of seconds")
        for name, least in LEAST.items():
            if not getattr(self, name) >= least:
                raise SettingsError(f"{name} is {getattr(self, name)}; give at least {least} seconds")
        for name, without in {"request_timeout": "no limit", "block_idle": "no extra copies of blocks"}.items():
            if getattr(self, name) < 0:
                raise SettingsError(f"{name} is {getattr(self, name)}; give seconds, or 0 for {without}")
        if self.silence < 2 * self.heartbeat:
            raise SettingsError(f"silence is {self.silence} s; give at least twice heartbeat ({self.heartbeat} s)")
        if self.sweep_tokens < self.max_rows:
            raise SettingsError(
                f"sweep_tokens is {self.sweep_tokens}, less than max_rows ({self.max_rows}); every running sequence "
                "needs a token in each step: raise sweep_tokens or lower max_rows"
            )

    @property
    def _spans(self) -> Counts:
        """Return the pipeline stages, by the name of the setting that gives them."""
        return {"pipeline": self.pipeline, **{f"pipelines.{name}": span for name, span in self.pipelines.items()}}

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
            raise SettingsError("autoscale_latency is missing; give the seconds a request may take")
        for label, span in self._spans.items():
            if span > 1:
                raise SettingsError(f"{label} is {span}, but autoscale adds single workers; give 1, or autoscale=off")

    def _check_overload(self) -> None:
        for name, least in {"overload_throttled": 0.5, "overload_quiet": 0.0}.items():
            if not least < (value := getattr(self, name)) <= 1:
                raise SettingsError(f"{name} is {value}; give more than {least:g}, at most 1 (all KV memory)")
        if self.overload_quiet >= self.overload_throttled:  # restored parameters would be dropped again at once
            throttled = f"overload_throttled ({self.overload_throttled})"
            raise SettingsError(f"overload_quiet is {self.overload_quiet}; give less than {throttled}")
        if self.overload_horizon < 0:
            raise SettingsError(f"overload_horizon is {self.overload_horizon}; give seconds, or 0 for no extrapolation")
        if self.overload_most < 2:
            raise SettingsError(f"overload_most is {self.overload_most}; give at least 2, or overload=off")
        if self.overload == "off":
            return
        if max(self.workers, self.autoscale_max_workers) < 2:
            raise SettingsError("overload is on with 1 worker, which holds nothing twice; give 2 or more, or overload=off")
        for label, span in self._spans.items():
            if span > 1:
                raise SettingsError(f"{label} is {span}, but overload makes pipelines of replicas; give 1, or overload=off")
        if not self.prefix_cache:
            raise SettingsError(
                "overload is on, but prefix_cache is off, which it needs; set prefix_cache=on, or overload=off"
            )

    @property
    def _more_may_come(self) -> bool:
        """True if models are served, now or later, that no setting names."""
        return bool(self.app_roots or self.adapters or self.apps_file)

    def _check_bases(self) -> None:
        if self.default_model and not (self.may_serve(self.default_model) or self._more_may_come):
            there = _listed(self.applications)
            raise SettingsError(f"default_model is {self.default_model!r}, which is not served; there are: {there}")
        for name, base in self.bases.items():
            for one in (name, base):
                if not self.may_serve(one) and not (one is name and self._more_may_come):
                    raise SettingsError(
                        f"bases.{name} = {base!r}: {one} is not an application; there are: {_listed(self.applications)}"
                    )

    def _check_logs(self) -> None:
        for name in ("event_log_size", "request_log_size"):
            if getattr(self, name) < LEAST_LOG:
                raise SettingsError(f"{name} is {getattr(self, name)}; give at least {LEAST_LOG} bytes")
        if self.tagger not in ("off", "history") and not self.tagger.partition(TRAINED)[2]:
            raise SettingsError(f"tagger is {self.tagger!r}; choose one of off, history, {TRAINED}FILE")

    def _check_front(self) -> None:
        if self.device != "cpu":
            why = "but there is no GPU back end yet; choose cpu, which is the default"
            raise SettingsError(f"device is {self.device!r}, {why}")
        if bool(self.tls_cert) != bool(self.tls_key):
            missing = "tls_key" if self.tls_cert else "tls_cert"
            raise SettingsError(f"{missing} is missing; https needs tls_cert and tls_key")
        for origin in filter(None, (part.strip() for part in self.cors_origins.split(","))):
            if origin != "*" and "://" not in origin:
                raise SettingsError(f"cors_origins names {origin!r}; give origins like https://example.org, or *")
        if (traces := self.otlp_traces_endpoint) and not traces.startswith(("http://", "https://")):
            raise SettingsError(f"otlp_traces_endpoint is {traces!r}; give a URL like http://localhost:4318/v1/traces")
        tenants = {*self.api_keys.values(), *self.admin_keys.values()}
        for tenant in sorted(filter(is_offline_account, tenants)):
            raise SettingsError(f"tenant {tenant!r} begins with ':', as the accounts of batches do; give it another name")
        limits = ("requests_per_minute", "tokens_per_minute", "tokens_per_day", "concurrent_requests")
        for name in ("tenant_models", *limits):
            for tenant, value in getattr(self, name).items():
                if tenant not in tenants and (tenant != "*" or name == "tenant_models"):
                    raise SettingsError(f"{name}.{tenant} names no tenant that has a key; there are: {_listed(tenants)}")
                if name in limits and value < 1:
                    raise SettingsError(f"{name}.{tenant} is {value}; give at least 1, or leave it out for no limit")
        accounts = tenants or {*self.applications}
        anything = self._more_may_come and not tenants  # without keys, each model is an account
        for name in ("tenant_weights", "tenant_kv_share"):
            for account in getattr(self, name):
                known = {*accounts, "*", *(SIDES if name == "tenant_kv_share" else ())}
                if not (anything or account in known or (not tenants and self.may_serve(account))):
                    kind = "tenant that has a key" if tenants else "application"
                    raise SettingsError(f"{name}.{account} names no {kind}; there are: {_listed(accounts)}")
        for account, weight in self.tenant_weights.items():
            if not 1 <= weight <= MOST_WEIGHT:
                raise SettingsError(f"tenant_weights.{account} is {weight}; give 1 to {MOST_WEIGHT}")
        for account, share in self.tenant_kv_share.items():
            if not 0 < share <= 1:
                raise SettingsError(f"tenant_kv_share.{account} is {share}; give more than 0, at most 1 (all KV memory)")
        if not 0 <= self.dispatch_sample <= 1:
            raise SettingsError(f"dispatch_sample is {self.dispatch_sample}; give a share of requests, 0 to 1")
        if not 0 <= self.offline_delay <= 1:
            raise SettingsError(f"offline_delay is {self.offline_delay}; give a share of a step, 0 to 1")
        if not 0 <= self.kv_reserve <= 0.9:
            raise SettingsError(f"kv_reserve is {self.kv_reserve}; give 0 to 0.9")
        for tenant, models in self.tenant_models.items():
            for model in models.split(","):
                if not (self.may_serve(model.strip()) or self._more_may_come):
                    there = f"which is not served; there are: {_listed(self.applications)}"
                    raise SettingsError(f"tenant_models.{tenant} names {model.strip()!r}, {there}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
