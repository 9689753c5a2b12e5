"""Accuracy of a simulated cluster: the same requests, served and simulated.

    python benchmarks/fidelity.py [--quick] [--json PATH]

Requests come from ``azure_conversation.json``, shorter by ``SHORTER`` and at ``LOAD`` of the rate that the simulator says
the workers could handle. The cost of a sweep is measured beforehand by ``blockwright profile``, the cost of HTTP and gateway
by requests to the idle server; nothing is fitted to the trace. ``one``: a worker with one thread and the real kernels.
``four``: workers with a tiny model, whose sweeps are held to ``SLOWER`` times the profile's seconds (setting ``pace``), so
that there can be more of them than cores; once for each dispatch policy. ``error``s are |simulated - live| / live of the
mean of all live runs. ``from``: the result of ``blockwright simulate --from`` on the event logs of a live run, beside the
recorded outcome. ``order``: pairs of policies whose live means lie further apart than their runs, and the pairs among them
that the simulator orders the other way round.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import harness
from harness import OURS, Bar, Options, Report
from models import SIZES, make_model, prompts, shapes
from server import Served, served

TRACE = Path(__file__).parent / "azure_conversation.json"
SHORTER = {"one": 8, "four": 16}
LOAD = {"one": 0.6, "four": 0.8}
SLOWER = 4.0
WORKERS = 4
LIVE, LOGGED = "live", "log"
POLICIES = {name: name for name in ("random", "round-robin", "ours")}  # the setting ``dispatch``, and the simulator's
POLICIES["outstanding"] = "least-work"
SEEDS = 5  # of simulations, where the policy draws
PROBES, PROBED = 30, 16  # requests to the idle server, and tokens of their prompts
PAUSE = 0.1  # seconds between these and the trace
METRICS = {"ttft": "ttft_ms", "latency": "latency_ms"}
MEAN, P99 = 0.15, 0.25  # bars
FROM = 0.15
SETTINGS = {"page_size": 16, "chunk_size": 256, "sweep_tokens": 512, "max_rows": 256}  # the defaults of a server, stated


@dataclass(frozen=True, slots=True)
class Asked:
    """A request; ``at``: seconds from the beginning."""

    at: float
    prompt: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Cluster:
    """The workload, as settings of a server and as a description of a simulation."""

    name: str
    size: str
    workers: int
    costs: dict[str, float]  # coefficients

    def table(self, policy: str, latency: float) -> dict[str, Any]:
        """The simulator's description."""
        size, nbytes = SIZES[self.size], parameters(self.size)
        model = {"name": "m", "kv_bytes": 8 * size.layers * size.kv_heads * 64, "context": size.max_position, **nbytes}
        instance = {"name": "w", "count": self.workers, "profile": "measured", "memory": 8 << 30, **SETTINGS}
        return {
            "workload": {"arrivals": "log"},
            "models": [model],
            "instances": [instance],
            "dispatch": {"policy": policy},
            "limits": {"latency": latency},
        }


def parameters(size: str) -> dict[str, int]:
    """Bytes in float32, as the simulator wants them."""
    found = {name: 4 * width[0] * (width[1] if len(width) > 1 else 1) for name, width in shapes(SIZES[size]).items()}
    head = found["lm_head.weight"] + found["model.norm.weight"]
    return {"parameters": sum(found.values()), "embedding": found["model.embed_tokens.weight"], "head": head}


def trace(count: int, shorter: int, rate: float) -> list[Asked]:
    """``count`` requests, ``rate`` a second on average; infinite: all at once."""
    kept = json.loads(TRACE.read_text())
    at = 0.0
    mean = statistics.mean(kept["gap_s"][:count])
    found = []
    for gap, asked, answered in zip(kept["gap_s"], kept["input_tokens"], kept["output_tokens"], strict=True):
        found.append(Asked(at, max(2, asked // shorter), max(2, answered // shorter)))
        at += gap / mean / rate
    return found[:count]


Seen = tuple[list[float], list[float]]  # seconds until the first token, and until the last, of each request


def simulated(
    cluster: Cluster, asked: Sequence[Asked], policy: str, latency: float = 0.0, seed: int = 0
) -> tuple[Seen, float]:
    """What the simulator says of these requests, and when the last one ends."""
    from blockwright.policies.plan.coefficients import Coefficients
    from blockwright.simulator.description import DescriptionSource, scenario
    from blockwright.simulator.simulation import ClusterSimulation
    from blockwright.simulator.workload import WorkloadRequest

    described = scenario({**cluster.table(policy, latency), "seed": seed}, DescriptionSource(Path("fidelity"), ""))
    demands = [WorkloadRequest(n, one.at, "m", one.prompt, one.tokens) for n, one in enumerate(asked)]
    simulation = ClusterSimulation(described, [Coefficients(**cluster.costs)], demands)
    simulation.run()
    assert not any(one.failed for one in simulation.requests)
    times = [(one.first - one.demand.at, one.ended - one.demand.at) for one in simulation.requests]
    return ([first for first, _ in times], [last for _, last in times]), max(one.ended for one in simulation.requests)


async def live(server: Served, size: str, asked: Sequence[Asked], seed: int, began: float) -> Seen:
    """Each request at its time; seconds count from there."""

    async def one(number: int, request: Asked) -> tuple[float, float]:
        (prompt,) = prompts(size, 1, request.prompt, seed=(seed << 16) + number)
        due, times = began + request.at, []
        await asyncio.sleep(due - time.monotonic())
        async for at, _, _ in server.stream(prompt, request.tokens):
            times.append(at)
        return times[0] - due, times[-1] - due

    found = await asyncio.gather(*(one(number, request) for number, request in enumerate(asked)))
    return [first for first, _ in found], [last for _, last in found]


async def probed(server: Served, size: str, seed: int) -> float:
    """Median seconds of a token from the idle server."""
    times = []
    for (prompt,) in (prompts(size, 1, PROBED, seed=(seed << 16) - n) for n in range(1, PROBES + 1)):
        began = time.monotonic()
        async for at, _, _ in server.stream(prompt, 1):
            times.append(at - began)
    return statistics.median(times)


def figures(seen: Seen) -> dict[str, float]:
    """Milliseconds."""
    found = {}
    for name, times in zip(METRICS, seen, strict=True):
        found[f"{name}_ms"] = 1e3 * statistics.mean(times)
        found[f"{name}_p99_ms"] = 1e3 * statistics.quantiles(times, n=100)[98]
    return found


def errors(found: dict[str, float], truth: dict[str, float]) -> dict[str, float]:
    """Relative, by metric."""
    return {f"{name.removesuffix('_ms')}_error": abs(found[name] - truth[name]) / truth[name] for name in truth}


async def run(
    report: Report, cluster: Cluster, model: Path, asked: Sequence[Asked], policy: str, seed: int, pace: str
) -> None:
    """One live run, what the simulator says of it, and what it says of its logs."""
    case = f"{cluster.name}/{policy}"
    with tempfile.TemporaryDirectory() as logs:
        settings = {**SETTINGS, "workers": cluster.workers, "threads": 1, "event_log": logs, "pace": pace}
        settings |= {"dispatch": policy, "profile": pace}
        words = (word for name, value in settings.items() for word in ("--set", f"{name}={value}"))
        async with served(model, *words) as server:
            opened = time.monotonic()  # some ms after the first request of the log
            idle = await probed(server, cluster.size, seed)
            began = time.monotonic() + 2 * PAUSE
            seen = await live(server, cluster.size, asked, seed, began)
        recorded(report, f"{case}/from", Path(logs), began - opened - PAUSE)
    (_, (alone,)), _ = simulated(cluster, [Asked(0.0, PROBED, 1)], POLICIES[policy])
    front = max(0.0, (idle - alone) / 2)
    report.add(case, LIVE, {**figures(seen), "front_ms": 1e3 * front})
    for turn in range(SEEDS if policy == "random" else 1):
        report.add(case, OURS, figures(simulated(cluster, asked, POLICIES[policy], front, turn)[0]))


def recorded(report: Report, case: str, logs: Path, start: float) -> None:
    """Requests that came ``start`` seconds after the first and later are the trace; those before were probes."""
    target = logs / "figures.json"
    command = [sys.executable, "-m", "blockwright", "simulate", "--json", str(target), "--set", f"workload.start={start}"]
    files = (word for path in sorted(logs.glob("*.events")) for word in ("--from", str(path)))
    subprocess.run([*command, *files], check=True, stdout=subprocess.DEVNULL)
    found = json.loads(target.read_text())
    said, was = (
        {f"{name}{share}_ms": 1e3 * table[name][key] for name in METRICS for share, key in (("", "mean"), ("_p99", "p99"))}
        for table in (found["figures"], found["recorded"])
    )
    report.add(case, OURS, {**said, **errors(said, was), "requests": found["requests"]})
    report.add(case, LOGGED, was)


def judge(report: Report, cluster: str, policies: Sequence[str]) -> None:
    """Errors against the mean of all live runs, and the order of policies."""
    for policy in policies:
        case = f"{cluster}/{policy}"
        names = [f"{name}{share}_ms" for name in METRICS for share in ("", "_p99")]
        said, was = (
            {name: statistics.mean(report.samples[case, name, subject]) for name in names} for subject in (OURS, LIVE)
        )
        report.add(case, OURS, errors(said, was))
    apart = wrong = 0
    for name in METRICS.values():
        for one, other in combinations(policies, 2):
            here, there = (report.samples[f"{cluster}/{policy}", name, LIVE] for policy in (one, other))
            if max(here) < min(there) or max(there) < min(here):
                apart += 1
                first, second = (report.samples[f"{cluster}/{policy}", name, OURS] for policy in (one, other))
                lower = statistics.mean(first) < statistics.mean(second)
                wrong += lower != (statistics.mean(here) < statistics.mean(there))
    if len(policies) > 1:
        report.add(f"{cluster}/order", OURS, {"pairs_apart": apart, "pairs_wrong": wrong})


def profiled(model: Path, target: Path, repeats: int) -> dict[str, Any]:
    """``blockwright profile`` with one thread."""
    command = [sys.executable, "-m", "blockwright", "profile", str(model), "-o", str(target)]
    subprocess.run([*command, "--threads", "1", "--repeats", str(repeats)], check=True, stdout=subprocess.DEVNULL)
    return dict(json.loads(target.read_text()))


def paced(costs: dict[str, float], size: str) -> dict[str, float]:
    """As if a sweep of this model took ``SLOWER`` times what one of the profile's does."""
    nbytes, chosen = parameters(size), SIZES[size]
    sizes = {"parameters": nbytes["parameters"] - nbytes["embedding"], "kv": 8 * chosen.layers * chosen.kv_heads * 64}
    return {**{name: SLOWER * value for name, value in costs.items()}, **sizes}


async def measure(report: Report, options: Options, folder: Path) -> None:
    count, runs = (60, 1) if options.quick else (300, 3)
    models = {size: make_model(size, "f32", folder / size) for size in ("S", "tiny")}
    found = profiled(models["S"], folder / "profile.json", 4 if options.quick else 7)
    report.add("profile", OURS, {name: found["error"][name] for name in ("mape", "spread")})
    costs = found["coefficients"]
    slow = paced(costs, "tiny")
    (folder / "pace.json").write_text(json.dumps(slow))
    clusters = (
        (Cluster("one", "S", 1, costs), ("outstanding",)),
        (Cluster("four", "tiny", WORKERS, slow), tuple(POLICIES)),
    )
    for cluster, policies in clusters:
        burst = trace(count, SHORTER[cluster.name], float("inf"))
        rate = LOAD[cluster.name] * count / simulated(cluster, burst, "least-work")[1]
        asked = trace(count, SHORTER[cluster.name], rate)
        report.add(cluster.name, OURS, {"rate": rate})
        for seed in range(1, runs + 1):  # in turn, so that what the machine does meanwhile meets all of them
            for policy in policies:
                pace = str(folder / "pace.json") if cluster.name == "four" else ""
                await run(report, cluster, models[cluster.size], asked, policy, seed, pace)
        judge(report, cluster.name, policies)


def bars() -> list[Bar]:
    found = []
    for case in ("one/outstanding", *(f"four/{policy}" for policy in POLICIES)):
        for name in METRICS:
            found += [Bar(case, f"{name}_error", at_most=MEAN), Bar(case, f"{name}_p99_error", at_most=P99)]
            found.append(Bar(f"{case}/from", f"{name}_error", at_most=FROM))
    return [*found, *([Bar("four/order", "pairs_wrong", at_most=0)] if len(POLICIES) > 1 else [])]


@harness.claim("Simulated means are within 15 % and P99 within 25 % of a live cluster", of="simulator")
def main(options: Options) -> None:
    settings = {"trace": TRACE.name, "load": LOAD, "shorter": SHORTER, "slower": SLOWER, "workers": WORKERS}
    report = Report("fidelity", settings)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(report, options, Path(folder)))
    harness.finish(report, options, bars())


if __name__ == "__main__":
    main(harness.parse(__doc__))
