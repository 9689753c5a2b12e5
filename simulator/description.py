"""Description of a simulation, read from a TOML or JSON file: workload, models, instances, dispatch, limits.

Everything is checked before anything runs; a mistake is one sentence with the file, its line and the field.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from ..policies.cluster.provisioning import MODES
from ..policies.plan.coefficients import TERMS, Coefficients
from ..policies.prediction.dispatching import POLICIES
from ..policies.requests import kv_dispatch
from ..policies.requests.absent import COLD
from .dispatch_spec import DispatchSpec
from .model_spec import ModelSpec, check_places, check_surrogates, placed, with_shared
from .outage_spec import CutSpec, DeathSpec, HeadLossSpec, Outages, RollSpec, check_deaths
from .record import Bytes, Most, Share, Size, Tokens, record

ARRIVALS = ("poisson", "gamma", "trace", "log")
LAWS = ("constant", "exponential")
ERROR_LAWS = ("lognormal", "gaussian")
MOST_ERROR = 10.0  # standard deviation of a logarithm: a length is then wrong by a factor of 22,000
MOST_DEVICES = 10_000
MOST_PARTS = 1 << 16  # chunks, or pages, in the smallest memory that holds whole ones of both: it is mapped at once
Bandwidth = Annotated[float, Size()]  # bytes a second
OVERLOAD = ("off", "drop")
IN_FLIGHT = ("shared", "own", "none", "alone")
LEAST_WORK = "least-work"  # the gateway's own rule
DISPATCH = (LEAST_WORK, *POLICIES)


class DescriptionError(ValueError):
    """A mistake in a description, in one sentence: file, line, field, remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """The requests, and their arrival times.

    Lengths come from ``lengths`` (a file), from the trace, or are drawn around means.
    """

    arrivals: str = "poisson"  # "poisson" | "gamma" | "trace": the times of the file ``trace`` | "log": recorded (--from)
    rate: float = 0.0  # requests a second; for a trace, 0 means its own rate
    cv: float = 1.0  # coefficient of variation of the times between requests (gamma)
    count: Annotated[int, Most(10_000_000)] = 0  # requests; 0: 1,000, or all that were recorded
    trace: str = ""  # file with times, and lengths unless ``lengths`` is given
    lengths: str = ""  # file with lengths; for rates of clients, with the quantiles of their lengths
    client_model: str = ""  # for rates of clients: the model of the clients to use; "": the first
    start: float = 0.0  # seconds into the trace
    speed: float = 1.0  # the trace's times are divided by it
    input_tokens: Tokens = 0  # mean, if no file gives lengths
    output_tokens: Tokens = 0
    law: str = "constant"  # "constant" | "exponential": distribution around the mean
    most_input: int = 0  # longer prompts are cut to it; 0: never
    most_output: int = 0
    max_tokens: Tokens = 0  # limit that requests give, while answers end at a stop token; 0: answers are as long as allowed
    length_error: float = 0.0  # error of the estimates of answers' lengths, by ``error_law``; 0: they are exact
    # kind of length_error: standard deviation of their logarithm | "gaussian": of the factor itself
    error_law: str = "lognormal"
    urgent: Share = 0.0  # share of the requests that are of the service class urgent; all others are normal
    batch: Share = 0.0  # share of the requests that are of the service class batch


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSpec:
    """Equal instances. Each serves all models. Give ``memory`` or ``blocks``."""

    name: str = "instance"
    count: int = 1
    stages: int = 1  # devices in a row that the layers are spread over evenly; the fields below are for each of them
    profile: str  # file of a device profile, or of cost coefficients alone
    memory: Bytes = 0  # bytes for parameters and KV
    blocks: Annotated[int, Most(10_000_000)] = 0  # pages of KV of the first model; instead of ``memory``
    memory_chunk: Bytes = 2 << 20  # bytes that are mapped at a time
    page_size: int = 16
    chunk_size: int = 512
    sweep_tokens: Annotated[int, Most(1 << 20)] = 512
    max_rows: Annotated[int, Most(1 << 14)] = 256
    prefix_cache: bool = True
    ahead: bool = True  # a plan is made while the one before it runs, as on a live worker
    class_ageing: float = 10.0  # seconds of waiting after which a request rises by a service class; 0: never

    @property
    def names(self) -> list[str]:
        """The names of the instances."""
        return [f"{self.name}-{n}" for n in range(self.count)] if self.count > 1 else [self.name]

    def devices(self, instance: str) -> list[str]:
        """Return the names of an instance's devices, the first one first."""
        return [f"{instance}.{n}" for n in range(self.stages)] if self.stages > 1 else [instance]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpec:
    """Links between the devices of a pipeline."""

    latency: float = 0.0  # seconds until a message arrives
    bandwidth: Bandwidth = 0.0  # bytes of hidden states a second; 0: unlimited


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSpec:
    """Limits, as in the settings of a gateway."""

    max_waiting: int = 1 << 30  # requests that have not ended; more are refused
    request_timeout: float = 0.0  # seconds; 0: none
    latency: float = 0.0  # seconds from the gateway to an instance, and back


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisioningSpec:
    """The rules by which instances are active, the first ones first. Times are in seconds."""

    mode: str = "off"  # "off": always the same | "preemptive" | "relief"
    limit: float = 0.0  # limit of a latency
    start: int = 0  # number of instances at the beginning, and at least; 0: all
    most: int = 0  # most instances; 0: all
    cold_start: float = 0.0  # from the decision until an instance accepts requests
    cool_down: float = 0.0  # after which the next one may start
    window: float = 60.0  # after which an instance that is not needed stops
    overlap: bool = False  # one may start while another one starts
    grace: float = 30.0  # for requests to end on an instance that stops; after it they go on elsewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadingSpec:
    """The time it takes to load parameters after the start, when all that belongs on instances is there already."""

    disk: Bandwidth = 0.0  # bytes a second that an instance reads; 0: parameters are there at once
    kv_reserve: Share = 0.1  # of the memory that the largest model leaves, kept for KV beside others (as in the settings)
    block_idle: float = 0.0  # seconds without use until an extra copy of a busy model goes; 0: no extra copies


@dataclass(frozen=True, slots=True, kw_only=True)
class OverloadSpec:
    """The reaction of replicas when KV memory runs out (``policies/overload``). Shares are of KV memory."""

    mode: str = "off"  # "off": preempt | "drop": parameters
    layers: int = 0  # layers of the model, between which it can be cut
    most: int = 4  # members of a pipeline
    throttled: float = 0.95  # share in use from which an instance drops
    quiet: float = 0.5  # all are restored if they use less than this share of the KV memory without a drop
    horizon: float = 0.0  # seconds for which usage is extrapolated
    prepare: float = 0.005  # seconds from the last sweep of the old instances until the new one begins: memory is mapped
    restore: bool = True
    exchange: bool = True  # KV moves; otherwise it is computed again
    priorities: bool = True  # on links, activations before KV before parameters
    lookahead: bool = True  # pipelines cut prompts so that microbatches take equally long


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """The content of one file. Paths in it are relative to it."""

    seed: int = 0
    workload: WorkloadSpec
    models: tuple[ModelSpec, ...]
    instances: tuple[InstanceSpec, ...]
    dispatch: DispatchSpec = field(default_factory=DispatchSpec)
    limits: LimitSpec = field(default_factory=LimitSpec)
    links: LinkSpec = field(default_factory=LinkSpec)
    provisioning: ProvisioningSpec = field(default_factory=ProvisioningSpec)
    overload: OverloadSpec = field(default_factory=OverloadSpec)
    loading: LoadingSpec = field(default_factory=LoadingSpec)
    deaths: tuple[DeathSpec, ...] = ()
    heads: tuple[HeadLossSpec, ...] = ()
    cuts: tuple[CutSpec, ...] = ()
    roll: RollSpec | None = None
    redundant_pages: float = 0.0  # seconds between looks for cached pages that several instances have; 0: never

    @property
    def on_demand(self) -> bool:
        """True if some model is loaded when requests ask for it."""
        return any(model.on_demand for model in self.models)

    @property
    def varied(self) -> bool:
        """True if some model has equivalents."""
        return any(model.equivalents for model in self.models)

    @property
    def controlled(self) -> bool:
        """True if what the instances hold or serve can change, so that the controller decides."""
        return self.changing or self.on_demand

    @property
    def changing(self) -> bool:
        """True if instances come, go, or change what they hold for another reason than models on demand."""
        scaled, drops = self.provisioning.mode != "off", self.overload.mode != "off"
        gone = bool(self.deaths or self.interrupted)
        return scaled or drops or gone or self.loading.block_idle > 0

    @property
    def interrupted(self) -> bool:
        """True if the head goes away, workers are cut off, or they are rolled."""
        return bool(self.heads or self.cuts or self.roll)

    @property
    def outages(self) -> Outages:
        """All outages that are described beside deaths of instances."""
        others = {
            "provisioning": self.provisioning.mode != "off" or self.provisioning.start,
            "overload": self.overload.mode != "off",
            "on_demand of a model": self.on_demand, "block_idle": self.loading.block_idle,
            "stages of an instance": any(one.stages > 1 for one in self.instances),
            "deaths": self.roll is not None and self.deaths,
        }  # fmt: skip
        workers = sum(one.count for one in self.instances)
        return Outages(self.heads, self.cuts, self.roll, workers, [name for name, given in others.items() if given])


@dataclass(frozen=True, slots=True)
class DescriptionSource:
    """The text of a description, for messages with a place; empty if it was not written by a person."""

    path: Path
    text: str

    def error(self, place: Iterable[str | int], says: str) -> DescriptionError:
        steps = list(place)
        name = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).lstrip(".")
        where = f"{self.path}, line {self.line(steps)}" if self.text else str(self.path)
        return DescriptionError(f"{where}: {name} {says}")

    def line(self, steps: list[str | int]) -> int:
        """Return the line of a field; for a missing one, the line of the table that lacks it."""
        at = 0
        for n, step in enumerate(steps):
            if isinstance(step, int):
                for _ in range(step):  # the first element was found with the name
                    again = re.compile(rf"^\[\[{re.escape(str(steps[n - 1]))}\]\]" if self._toml else r"\{", re.MULTILINE)
                    found = again.search(self.text, at + 1)
                    at = found.start() if found else at
            else:
                found = re.compile(rf'(?<![\w.])"?{re.escape(step)}"?(?=\s*[=:\]])').search(self.text, at)
                at = found.start() if found else at
        return self.text.count("\n", 0, at) + 1

    @property
    def _toml(self) -> bool:
        return self.path.suffix != ".json"


def read(path: Path, changes: Iterable[str] = ()) -> tuple[Scenario, DescriptionSource]:
    """Read a description. Raises DescriptionError.

    ``changes`` are other values for fields, such as ``workload.rate=20``.
    """
    try:
        source = DescriptionSource(path, path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise DescriptionError(
            f"{path} cannot be read ({getattr(error, 'strerror', None) or error}); check the path"
        ) from None
    try:
        table = json.loads(source.text) if path.suffix == ".json" else tomllib.loads(source.text)
    except json.JSONDecodeError as error:
        raise DescriptionError(f"{path}, line {error.lineno}: this is no JSON ({error.msg})") from None
    except (ValueError, RecursionError) as error:  # also a number of too many digits, and endlessly nested tables
        raise DescriptionError(f"{path}: this is no {'JSON' if path.suffix == '.json' else 'TOML'} ({error})") from None
    return changed(table, changes, source), source


def changed(table: Any, changes: Iterable[str], source: DescriptionSource) -> Scenario:
    """Return a scenario from parsed TOML or JSON, with other values for some fields."""
    for change in changes:
        _change(table, change)
    return scenario(table, source)


def _change(table: Any, change: str) -> None:
    """Apply one ``field=value``. The value is JSON, or else a text."""
    name, sign, text = change.partition("=")
    *steps, last = name.split(".")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    at = table
    try:
        for step in steps:
            at = at[int(step) if step.isdecimal() else len(at)] if isinstance(at, list) else at.setdefault(step, {})
        if not sign or not last or not isinstance(at, dict):
            raise TypeError
    except (ValueError, IndexError, TypeError, AttributeError):
        raise DescriptionError(f"{change!r} names no field; write it like workload.rate=20 or instances.0.count=4") from None
    at[last] = value


def scenario(table: Any, source: DescriptionSource) -> Scenario:
    """Return a checked scenario from parsed TOML or JSON."""
    made = record(Scenario, with_shared(table, source.error), source.error, [])
    workload = made.workload
    for table_name, name, text, allowed in (
        ("workload", "arrivals", workload.arrivals, ARRIVALS),
        ("workload", "law", workload.law, LAWS),
        ("workload", "error_law", workload.error_law, ERROR_LAWS),
        ("dispatch", "policy", made.dispatch.policy, DISPATCH),
        ("dispatch", "in_flight", made.dispatch.in_flight, IN_FLIGHT),
        ("dispatch", "kv_dispatch", made.dispatch.kv_dispatch, kv_dispatch.MODES),
        ("dispatch", "cold_kv", made.dispatch.cold_kv, COLD),
    ):
        if text not in allowed:
            raise source.error([table_name, name], f"is {text!r}; give one of: {', '.join(allowed)}")
    if workload.arrivals == "trace" and not workload.trace:
        raise source.error(["workload", "trace"], "is missing; name the file whose times are wanted")
    if workload.arrivals not in ("trace", "log") and workload.rate <= 0:
        raise source.error(["workload", "rate"], f"is {workload.rate:g}; give the requests a second")
    if (
        workload.arrivals != "log"
        and not workload.trace
        and not workload.lengths
        and not (workload.input_tokens and workload.output_tokens)
    ):
        raise source.error(["workload"], "has no lengths; give lengths = FILE, or input_tokens and output_tokens")
    for table_name, name, value in (
        ("workload", "cv", workload.cv),
        ("workload", "speed", workload.speed),
        ("dispatch", "dispatchers", made.dispatch.dispatchers),
        ("dispatch", "correction", made.dispatch.correction),
    ):
        if value <= 0:
            raise source.error([table_name, name], f"is {value:g}; give more than 0")
    if workload.arrivals == "gamma" and not 1e-3 <= workload.cv <= 1e3:
        raise source.error(["workload", "cv"], f"is {workload.cv:g}; give 0.001 to 1000")
    if workload.urgent + workload.batch > 1:
        raise source.error(["workload", "batch"], f"is {workload.batch:g}; with urgent it is more than 1, so give less")
    if workload.length_error > MOST_ERROR:
        raise source.error(["workload", "length_error"], f"is {workload.length_error:g}; give at most {MOST_ERROR:g}")
    if made.dispatch.in_flight == "alone" and (made.dispatch.policy != LEAST_WORK or made.varied):
        raise source.error(["dispatch", "in_flight"], f"is 'alone'; it needs policy = {LEAST_WORK!r}, and no equivalents")
    _check_parts(made, source)
    _check_variants(made, source)
    _check_pipelines(made, source)
    _check_provisioning(made, source)
    _check_overload(made, source)
    _check_control(made, source)
    if made.dispatch.kv_dispatch != kv_dispatch.OFF:
        _check_kv(made, source)
    if name := made.dispatch.needs_copies:
        raise source.error(["dispatch", name], "needs kv_dispatch = 'owner' or 'least-busy'")
    return made


def _check_parts(made: Scenario, source: DescriptionSource) -> None:
    """Check models and instances, each by itself."""
    known, names = [one.name for one in made.models], [spec.name for spec in made.instances]
    for n, model in enumerate(made.models):
        if model.kv_bytes <= 0 or model.kv_bytes % 4:
            raise source.error(["models", n, "kv_bytes"], f"is {model.kv_bytes}; give bytes, a multiple of 4")
        if model.embedding + model.head > model.parameters:
            raise source.error(["models", n, "parameters"], "is less than embedding and head together")
        if known.count(model.name) > 1:
            raise source.error(["models", n, "name"], f"is {model.name!r} twice; give each model its own")
    if made.models and not any(model.share for model in made.models):
        raise source.error(["models", 0, "share"], "is 0 for every model; give one of them more")
    for n, spec in enumerate(made.instances):
        if spec.name in names[:n]:
            raise source.error(["instances", n, "name"], f"is {spec.name!r} twice; give each entry its own")
        if bool(spec.memory) == bool(spec.blocks):
            raise source.error(["instances", n, "memory"], "or blocks is needed, and not both")
        for name in ("count", "page_size", "chunk_size", "sweep_tokens", "max_rows", "memory_chunk", "stages"):
            if getattr(spec, name) <= 0:
                raise source.error(["instances", n, name], f"is {getattr(spec, name)}; give more than 0")
        for model in placed(made.models, spec.name) if spec.memory else ():
            page, chunk = model.kv_bytes // spec.stages * spec.page_size, spec.memory_chunk
            parts = max(page, chunk) // max(1, math.gcd(page, chunk))
            if parts > MOST_PARTS:
                says = f"is {chunk:,}; with KV pages of {page:,} bytes {parts:,} are mapped at once; give a power of two"
                raise source.error(["instances", n, "memory_chunk"], says)
    if (devices := sum(spec.count * spec.stages for spec in made.instances)) > MOST_DEVICES:
        raise source.error(["instances", 0, "count"], f"makes {devices:,} devices in all; describe at most {MOST_DEVICES:,}")
    if not made.models or not made.instances:
        raise source.error(["instances" if made.models else "models"], "is empty; describe at least one")


def _check_variants(made: Scenario, source: DescriptionSource) -> None:
    """Check places and equivalents: they do not change, and the gateway compares all routes, each on one device."""
    check_places(made.models, [spec.name for spec in made.instances], source.error)
    dispatch, usual = made.dispatch, DispatchSpec()
    if dispatch.switches != usual.switches and not made.varied:
        raise source.error(["dispatch", "switches"], "is given, and no model has equivalents; leave it out")
    if made.varied and dispatch.policy != LEAST_WORK:
        says = f"is {dispatch.policy!r}; with equivalents give {LEAST_WORK!r}, by which gateways compare chains"
        raise source.error(["dispatch", "policy"], says)
    if made.varied and dispatch.choices:
        says = f"is {dispatch.choices}; with equivalents all routes are compared, so leave it out"
        raise source.error(["dispatch", "choices"], says)
    if dispatch.free_switches and not (made.varied and dispatch.switches):
        raise source.error(["dispatch", "free_switches"], "is given, and no request switches; leave it out")
    for n, spec in enumerate(made.instances):
        if made.varied and spec.stages > 1:
            raise source.error(["instances", n, "stages"], f"is {spec.stages}; with equivalents instances have one stage")
        if dispatch.free_switches and not spec.prefix_cache:
            raise source.error(
                ["instances", n, "prefix_cache"], "is false; with free_switches KV is found there, so leave it out"
            )
    for n, model in enumerate(made.models):
        field = "equivalents" if model.equivalents else "only"
        changes = made.changing or made.provisioning.start or (model.only and made.on_demand)
        if (model.only or model.equivalents) and changes:
            says = "is given, and deaths, provisioning, overload, on_demand or block_idle change what instances hold"
            raise source.error(["models", n, field], f"{says}; leave out one or the other")
    if made.varied and made.on_demand and dispatch.free_switches:
        raise source.error(["dispatch", "free_switches"], "is given, and models are on_demand; leave out one or the other")


def _check_pipelines(made: Scenario, source: DescriptionSource) -> None:
    """Check that the devices of a pipeline can share the bytes of each model evenly, and surrogates."""
    stages = [spec.stages for spec in made.instances if spec.stages > 1]
    check_surrogates(made.models, source.error, pipelines=bool(stages))
    for n, model in enumerate(made.models if stages else ()):
        if not model.parameters:
            raise source.error(["models", n, "parameters"], "is missing; devices of a pipeline cost by their part of them")
        for count in stages:
            if model.kv_bytes % (4 * count):
                says = f"is {model.kv_bytes}; give a multiple of {4 * count}, for {count} stages"
                raise source.error(["models", n, "kv_bytes"], says)


def _check_provisioning(made: Scenario, source: DescriptionSource) -> None:
    spec, count = made.provisioning, sum(one.count for one in made.instances)
    if spec.mode not in MODES:
        raise source.error(["provisioning", "mode"], f"is {spec.mode!r}; give one of: {', '.join(MODES)}")
    if spec.mode != "off" and not spec.limit:
        raise source.error(["provisioning", "limit"], "is missing; give the seconds that a latency may take")
    for name, least in (("start", 0), ("most", spec.start)):
        if (value := getattr(spec, name)) and not least <= value <= count:
            raise source.error(["provisioning", name], f"is {value}; give {least} to {count}, the instances described")
    policy = made.dispatch.policy
    if spec.mode == "preemptive" and (policy == LEAST_WORK or not POLICIES[policy].fallback):
        those = ", ".join(name for name, known in POLICIES.items() if known.fallback)
        raise source.error(["provisioning", "mode"], f"is 'preemptive', and {policy} forecasts nothing; dispatch by {those}")


def _check_overload(made: Scenario, source: DescriptionSource) -> None:
    """Check the requirements of overload.

    There must be one model, and each instance must be a replica that knows its memory and finds pages that were moved.
    """
    spec, policy = made.overload, made.dispatch.policy
    if spec.mode not in OVERLOAD:
        raise source.error(["overload", "mode"], f"is {spec.mode!r}; give one of: {', '.join(OVERLOAD)}")
    if spec.mode == "off":
        return
    model, parts = made.models[0], 4 * max(spec.layers, 1)
    faults: list[tuple[object, list[str | int], str]] = [
        (spec.layers < 2, ["overload", "layers"], f"is {spec.layers}; give the layers of the model, 2 or more"),
        (len(made.models) > 1, ["models"], "are several; with overload a cluster serves one model"),
        (model.kv_bytes % parts, ["models", 0, "kv_bytes"], f"is {model.kv_bytes}; give a multiple of {parts}"),
        (not model.parameters, ["models", 0, "parameters"], "is missing; they are what is dropped"),
        (model.drafts, ["models", 0, "drafts"], "is given, and a drop plays no drafts; leave it out, or the overload"),
        (not made.links.bandwidth, ["links", "bandwidth"], "is missing; KV moves over links"),
        (policy != LEAST_WORK and POLICIES[policy].fallback, ["dispatch", "policy"], f"is {policy}; take one that does not"
         " forecast, for forecasts know nothing of what moves"),
    ]  # fmt: skip
    for fault, place, says in faults:
        if fault:
            raise source.error(place, says)
    for n, one in enumerate(made.instances):
        if one.stages > 1 or not one.memory or not one.prefix_cache:
            raise source.error(["instances", n], "needs memory, one stage and a prefix cache, for KV that moves")


def _check_control(made: Scenario, source: DescriptionSource) -> None:
    """Check what the controller needs: instances that are alike, and only fields that something uses."""
    for n, model in enumerate(made.models):
        if model.on_demand and not (model.parameters or model.own):
            raise source.error(["models", n, "parameters"], "is missing; they are what is loaded on demand")
    for n, one in enumerate(made.instances) if made.controlled else ():
        if one.stages != made.instances[0].stages:
            says = f"is {one.stages}; where instances die or load on demand, all have the same number of stages"
            raise source.error(["instances", n, "stages"], says)
        if one.stages > 1 and (made.provisioning.mode != "off" or made.loading.block_idle):
            what = "provisioning" if made.provisioning.mode != "off" else "extra copies (block_idle)"
            raise source.error(["instances", n, "stages"], f"is {one.stages}; with {what} instances have one stage")
        if (made.on_demand or made.loading.block_idle) and not one.memory:
            what = "models on demand" if made.on_demand else "extra copies (block_idle)"
            raise source.error(["instances", n, "memory"], f"is missing; {what} take their parameters from it")
    names = [worker for one in made.instances for name in one.names for worker in one.devices(name)]
    check_deaths(made.deaths, names, source.error)
    made.outages.check(source.error)
    loading, usual = made.loading, LoadingSpec()
    if loading.disk and not made.controlled:
        says = "is given, and nothing is loaded after the start; leave it out, or describe deaths, provisioning, overload"
        raise source.error(["loading", "disk"], f"{says} or a model on_demand")
    if loading.kv_reserve != usual.kv_reserve and not made.on_demand:
        raise source.error(["loading", "kv_reserve"], "is given, and no model is on_demand; leave it out")


def _check_kv(made: Scenario, source: DescriptionSource) -> None:
    """Check that instances find KV, and that links carry what is copied."""
    mode = made.dispatch.kv_dispatch
    if made.dispatch.policy != LEAST_WORK:
        raise source.error(["dispatch", "kv_dispatch"], f"is {mode!r}; it needs policy = '{LEAST_WORK}'")
    if made.controlled or len(made.models) > 1:
        raise source.error(
            ["dispatch", "kv_dispatch"], f"is {mode!r}; with several models or instances that change leave it out"
        )
    if mode != kv_dispatch.RECOMPUTE and not made.links.bandwidth:
        raise source.error(["links", "bandwidth"], "is missing; KV that another instance has is copied over links")
    if any(one.stages > 1 or not one.prefix_cache for one in made.instances):
        raise source.error(["instances"], "need one stage and a prefix cache each, for KV that is found again")


def profile(spec: InstanceSpec, n: int, source: DescriptionSource) -> Coefficients:
    """Return the cost model that an instance names: a device profile's, or coefficients alone."""
    path = source.path.parent / spec.profile
    try:
        table = json.loads(path.read_text())
        found = Coefficients.from_table(table.get("coefficients", table) if isinstance(table, dict) else table)
    except OSError as error:
        raise source.error(["instances", n, "profile"], f"names {path}, which cannot be read ({error.strerror})") from None
    except json.JSONDecodeError as error:
        raise DescriptionError(f"{path}, line {error.lineno}: this is no JSON ({error.msg})") from None
    except (ValueError, RecursionError) as error:
        raise DescriptionError(f"{path}: {error}") from None
    if not any(getattr(found, term) for term in TERMS):
        raise source.error(["instances", n, "profile"], f"names {path}, by which sweeps take no time; give coefficients")
    return found
