"""The runs of ``overload.py``: clusters, loads, and the figures taken from one simulation."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from harness import OURS, ROOT
from scheduling_kept import fingerprint, kept

COSTS = {"base": 0.001, "read": 0.0097, "beyond": 4.1e-5, "row": 1e-6, "context": 7.3e-8, "prefill": 2.5e-9}
MEMORY = 80_000_000_000  # bytes of a device
PARAMETERS = 28_000_000_000  # bytes
KV = 196_608  # bytes of a token
LAYERS = 48
INSTANCES = 8
LINK = 25e9
HOST = 25e9
LONGEST, MOST = 8192, 4096  # tokens of a prompt, of an answer
ENDLESS = 0.5  # of mean TTFT in a window, seconds: from there on a cluster is beyond its limit


@dataclass(frozen=True, slots=True)
class LengthSet:
    """``longer``: by which answers are. ``rate``: requests a second and instance. ``burst``: seconds."""

    file: str
    longer: int
    rate: float
    burst: float
    before: float = 120.0
    after: float = 60.0


SETS = {
    "sharegpt": LengthSet("sharegpt_lengths", 4, 3.75, 30.0),
    "azure": LengthSet("azure_llm_2023_conv", 4, 3.6, 20.0),
    "arxiv": LengthSet("arxiv_summarization_lengths", 4, 2.0, 20.0),
    "azure-as-it-is": LengthSet("azure_llm_2023_conv", 1, 7.6, 30.0, before=40.0),
}


@dataclass(frozen=True, slots=True)
class System:
    """Something to do when memory runs out. ``policy``: another paper's. ``memory``: times as much for KV."""

    overload: Mapping[str, Any] = field(default_factory=lambda: {"mode": "off"})
    stages: int = 1
    dispatch: str = "prefix-aware"
    memory: float = 1.0
    policy: str = ""


SYSTEMS = {
    "preempt": System(),
    "pipelines": System(stages=2),
    "swap": System(policy="swap"),
    "migrate": System(policy="migrate", dispatch="llumnix-minus-code"),
    OURS: System({"mode": "drop"}),
    "endless-memory": System(memory=10.0),
}
BASELINES = ("preempt", "pipelines", "swap", "migrate")


@dataclass(frozen=True, slots=True)
class Load:
    """``quiet``: requests a second of the cluster at first and at last; from ``before`` on, for ``burst`` seconds, ``times``
    as many; then ``after`` seconds more."""

    sizes: Sequence[tuple[int, int]]
    quiet: float
    before: float
    burst: float
    after: float
    times: float = 2.0

    def demands(self, seed: int) -> list[Any]:
        from blockwright.simulator.workload import WorkloadRequest

        source = random.Random(seed)
        now = 0.0
        made = list[WorkloadRequest]()
        first = self.before
        last = self.before + self.burst
        end = self.before + self.burst + self.after
        while (now := now + source.expovariate(self.quiet * (self.times if first <= now < last else 1.0))) < end:
            prompt, output = source.choice(self.sizes)
            made.append(WorkloadRequest(len(made), now, "qwen-14b", prompt, output))
        return made


def _lengths(one: LengthSet) -> Path:
    """A file with prompts and answers; the example's sample where the traces are not there."""
    found = [above / "shared" / "traces" / f"{one.file}.csv.gz" for above in ROOT.parents]
    return next((path for path in found if path.exists()), ROOT / "examples" / "simulate" / "sharegpt_lengths.csv")


def lengths(one: LengthSet) -> list[tuple[int, int]]:
    """Prompt and answer of each request of a set."""
    from blockwright.simulator.traces import read_trace

    sizes = read_trace(_lengths(one))
    return [(min(size.prompt, LONGEST), min(max(one.longer * size.output, 2), MOST)) for size in sizes if size.prompt]


@dataclass(frozen=True, slots=True)
class LoadOf:
    """That of a set of ``SETS``, on so many instances; ``shorter``: by which its times are. ``endless``: the burst does not
    end."""

    name: str
    instances: int = INSTANCES
    shorter: float = 1.0
    endless: bool = False

    @property
    def load(self) -> Load:
        one = SETS[self.name]
        times = (seconds / self.shorter for seconds in (one.before, one.burst, one.after))
        found = Load(lengths(one), one.rate * self.instances, *times)
        return replace(found, burst=found.burst * 6, after=0.0) if self.endless else found


def sources() -> str:
    """A fingerprint of what decides the outcome of a run."""
    files = {_lengths(one) for one in SETS.values()}
    methods = (Path(__file__).with_name(f"overload_{name}.py") for name in ("swapping", "migration"))
    return fingerprint((ROOT / "policies", ROOT / "simulator", Path(__file__), *methods, *sorted(files)))


@kept
def outcome(system: System, of: LoadOf) -> dict[str, Any]:
    """A ``RunOutcome``, as a table."""
    return asdict(simulate(system, of.load, of.instances))


def described(system: System, instances: int) -> Any:
    from blockwright.simulator.description import DescriptionSource, scenario

    memory = PARAMETERS // system.stages + int(system.memory * (MEMORY - PARAMETERS // system.stages))
    model = {"name": "qwen-14b", "kv_bytes": KV, "parameters": PARAMETERS, "embedding": 1_557_000_000, "head": 1_557_000_000}
    replicas = {"name": "i", "count": instances // system.stages, "stages": system.stages, "profile": "-", "memory": memory}
    table = {
        "workload": {"arrivals": "log"},
        "models": [{**model, "hidden_bytes": 10_240, "context": 40_000}],
        "instances": [{**replicas, "max_rows": 1024, "chunk_size": 1024, "sweep_tokens": 2048}],
        "links": {"latency": 1e-5, "bandwidth": LINK},
        "dispatch": {"policy": system.dispatch},
        "overload": {"layers": LAYERS, **system.overload},
    }
    return scenario(table, DescriptionSource(Path("overload.toml"), ""))


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """``figures`` in seconds; ``first`` and ``each``: of every request, its first token, and each further one."""

    figures: dict[str, float]
    first: list[float]
    each: list[float]

    def missed(self, first: float, each: float) -> float:
        """Share of requests that miss one of two limits."""
        return mean(a > first or b > each for a, b in zip(self.first, self.each, strict=True))


def simulate(system: System, one: Load, instances: int = INSTANCES, seed: int = 1) -> RunOutcome:
    """Return the outcome of one run."""
    from blockwright.policies.plan.coefficients import Coefficients

    run = made(system, described(system, instances), [Coefficients(**COSTS)], one.demands(seed))
    run.run()
    assert not any(request.failed for request in run.requests)
    first = [request.first - request.demand.at for request in run.requests]
    each = [(request.ended - request.first) / (request.demand.output - 1) for request in run.requests]
    figures = read_off(run, one) | bubbles(run)
    for name in ("base", "peak"):
        figures[name] *= system.memory
    figures["tokens_per_s"] /= instances
    return RunOutcome(figures, first, each)


def made(system: System, scenario: Any, coefficients: Sequence[Any], demands: Sequence[Any]) -> Any:
    """Return the simulation of a system: its policy is ours, or another paper's."""
    from overload_migration import MigrationPolicy
    from overload_swapping import SwapPolicy

    from blockwright.simulator.assembly import simulation_of
    from blockwright.simulator.simulation import ClusterSimulation

    policies: dict[str, Any] = {"swap": partial(SwapPolicy, bandwidth=HOST), "migrate": MigrationPolicy}
    if not system.policy:
        return simulation_of(scenario, coefficients, demands)
    return ClusterSimulation(scenario, coefficients, demands, policy=policies[system.policy])


def read_off(run: Any, one: Load) -> dict[str, float]:
    """``base``, ``peak``: KV in use before the burst and at most, as a share of all; ``rise``: mean time to first token in
    the worst 5 s, over that of the quiet; ``late``: from the burst's beginning until it is ``ENDLESS``; ``tokens_per_s``: of
    answers, in the burst; ``stall``: pauses of sequences whose KV moved; ``capacity``: most KV memory, over that at first;
    ``activation_wait_p99``: behind KV and parameters on a link, in chunks."""
    found = percentiles("ttft", [request.first - request.demand.at for request in run.requests])
    found |= percentiles("tpot", [(r.ended - r.first) / (r.demand.output - 1) for r in run.requests])
    later = [r for r in run.requests if r.demand.at >= one.before + one.burst]
    found |= percentiles("after_ttft", [request.first - request.demand.at for request in later])
    found |= percentiles("after_tpot", [(r.ended - r.first) / (r.demand.output - 1) for r in later])
    found["preemptions"] = float(sum(request.preemptions for request in run.requests))
    burst = one.before, one.before + one.burst
    found["tokens_per_s"] = sum(
        r.demand.output * overlap((r.first, r.ended), burst) / max(r.ended - r.first, 1e-9) for r in run.requests
    ) / (burst[1] - burst[0])
    means = windows([(r.demand.at, r.first - r.demand.at) for r in run.requests], 5.0)
    quiet = [value for at, value in means if 0.5 * one.before <= at < one.before]
    found["rise"] = max(value for _, value in means) / mean(quiet or [1.0])
    late = [at - one.before for at, value in means if at >= one.before and value > ENDLESS]
    found |= {"late": late[0]} if late else {}
    samples = [(sample.at, mean(sample.memory)) for sample in run.samples]
    found["base"] = mean(used for at, used in samples if 0.6 * one.before <= at < one.before)
    found["peak"] = max(used for _, used in samples)
    return found | moved(run)


def moved(run: Any) -> dict[str, float]:
    """Of a run in which something moves."""
    from blockwright.policies.cluster.chunk_order import LEAST, MOST, TARGET

    if (report := run.overload()) is None:
        return {}
    whats = [change["what"] for change in report["changes"]]
    found = {what.replace("-", "_"): float(whats.count(what)) for what in sorted({*whats})}
    found |= {"stall": report["stall_mean"], "stall_most": report["stall_max"], "moved_gb": report["moved_bytes"] / 1e9}
    if capacities := [reading["capacity"] for reading in report["readings"]]:
        found["capacity"] = max(capacities) / capacities[0]
        chunk = max(LEAST, min(MOST, LINK * TARGET)) / LINK
        found["activation_wait_p99"] = percentiles("wait", run.policy.drops.moves.links.waits or [0.0])["wait_p99"] / chunk
    return found


def bubbles(run: Any) -> dict[str, float]:
    """Share of the time of pipelines' stages in which they have nothing to do while sequences run."""
    from blockwright.policies.prediction.pipeline_instance import PipelineInstance

    pipelines = [one for one in run.served if isinstance(one, PipelineInstance)]
    idle, busy = sum(one.bubbles for one in pipelines), sum(one.busy for one in pipelines)
    return {"bubbles": idle / (idle + busy)} if busy else {}


def percentiles(name: str, values: Sequence[float]) -> dict[str, float]:
    from blockwright.api.load.figures import percentile

    ordered, shares = sorted(values), (50, 90, 99, 99.9) if values else ()
    return {f"{name}_p{str(share).replace('.', '')}": percentile(ordered, share) for share in shares}


def overlap(one: tuple[float, float], other: tuple[float, float]) -> float:
    return max(0.0, min(one[1], other[1]) - max(one[0], other[0]))


def windows(values: Sequence[tuple[float, float]], seconds: float) -> list[tuple[float, float]]:
    """Means of values in windows of time, with the beginning of each."""
    found: dict[int, list[float]] = {}
    for at, value in values:
        found.setdefault(int(at // seconds), []).append(value)
    return [(n * seconds, mean(some)) for n, some in sorted(found.items())]
