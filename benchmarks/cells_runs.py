"""Runs of simulated clusters for ``cells.py``: their requests, one cluster or several behind a balancer, and outages."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from harness import ROOT
from scheduling_kept import fingerprint

from blockwright.policies.plan.coefficients import Coefficients
from blockwright.simulator.assembly import simulation_of
from blockwright.simulator.description import DescriptionSource, scenario
from blockwright.simulator.simulation import ClusterSimulation
from blockwright.simulator.traces import read_trace
from blockwright.simulator.workload import WorkloadRequest

SAMPLE = Path(__file__).parent / "azure_conversation.json"
TRACE = "azure_llm_2023_conv.csv.gz"
# A server of 200 GB/s and 3 TFLOP/s with a model of 3 billion parameters in bfloat16, 28 layers and 8 heads of KV.
COSTS = Coefficients(base=0.03, token=0.002, context=5.7e-7)
KV_BYTES = 114_688
PARAMETERS, MEMORY = 6_400_000_000, 24_000_000_000
DISK = 1e9  # bytes a second
LONGEST = 2048  # tokens of a prompt, at most
RATE = 0.25  # requests a second for each worker
WARM = 10.0  # seconds in which requests are not counted
MODELS = 32  # that share the workers, as fine-tunes do; the n-th has a share of 1 / n
SESSIONS = 10  # for each worker
MODEL = "m"


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The requests of one run. burst: seconds of twice as many requests, from ``at`` on. rate: as ``RATE``."""

    workers: int
    seconds: float
    seed: int
    rate: float = RATE
    burst: float = 0.0
    at: float = WARM + 4

    def times(self) -> list[float]:
        """Return the seconds of all requests: a Poisson process."""
        source, found = random.Random(f"{self.seed} times"), list[float]()
        now = 0.0
        while True:
            rate = self.rate * self.workers * (2 if self.at <= now < self.at + self.burst else 1)
            now += source.expovariate(rate)
            if now >= self.seconds:
                return found
            found.append(now)


def file_of_lengths(trace: Path | None) -> Path:
    """Return a file of requests: the one that is named, the whole trace near this checkout, or the sample."""
    near = (above / "shared" / "traces" / TRACE for above in ROOT.parents)
    return trace or next(filter(Path.exists, near), SAMPLE)


@cache
def lengths(trace: Path | None) -> list[tuple[int, int]]:
    """Return tokens of prompts and of answers."""
    path = file_of_lengths(trace)
    if path == SAMPLE:
        table = json.loads(SAMPLE.read_text())
        shapes = [*zip(table["input_tokens"], table["output_tokens"], strict=True)]
    else:
        shapes = [(one.prompt, one.output) for one in read_trace(path)]
    return [(min(prompt, LONGEST), output) for prompt, output in shapes]


def sources(trace: Path | None) -> str:
    """Return a fingerprint of what decides the outcome of a run."""
    here = Path(__file__)
    return fingerprint((ROOT / "policies", ROOT / "simulator", here, here.with_name("cells.py"), file_of_lengths(trace)))


def requests(traffic: Traffic, shapes: Sequence[tuple[int, int]]) -> list[WorkloadRequest]:
    """Return requests with the lengths of requests drawn from a trace."""
    source = random.Random(f"{traffic.seed} lengths")
    drawn = ((at, *source.choice(shapes)) for at in traffic.times())
    return [WorkloadRequest(n, at, MODEL, prompt, output) for n, (at, prompt, output) in enumerate(drawn)]


def keys(traffic: Traffic, count: int, by: str) -> list[str]:
    """Return what a balancer sees of each request: its ``session`` or its ``model``."""
    source = random.Random(f"{traffic.seed} {by}")
    if by == "session":
        return [f"{source.randrange(SESSIONS * traffic.workers)}" for _ in range(count)]
    return [f"{n}" for n in source.choices(range(MODELS), [1 / (n + 1) for n in range(MODELS)], k=count)]


def cell_of(key: str, cells: int) -> int:
    """Return the cell that a balancer hashes a key to."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") % cells


def split(demands: Sequence[WorkloadRequest], seen: Sequence[str], cells: int) -> list[list[WorkloadRequest]]:
    """Return the requests of each cell, numbered there."""
    found: list[list[WorkloadRequest]] = [[] for _ in range(cells)]
    for demand, key in zip(demands, seen, strict=True):
        cell = found[cell_of(key, cells)]
        cell.append(replace(demand, number=len(cell)))
    return found


def cluster_table(workers: int, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of a cluster. ``more``: further tables of it."""
    one = {"name": "w", "count": workers, "profile": "declared", "memory": MEMORY, "max_rows": 64, "prefix_cache": False}
    return {
        "workload": {"rate": 1.0, "input_tokens": 1, "output_tokens": 1},
        "models": [{"name": MODEL, "kv_bytes": KV_BYTES, "parameters": PARAMETERS}],
        "instances": [one],
        **more,
    }


def cluster(
    workers: int, demands: Sequence[WorkloadRequest], more: Mapping[str, Any], log: list[dict[str, Any]] | None = None
) -> ClusterSimulation:
    """Simulate one cluster to its end."""
    made = scenario(cluster_table(workers, more), DescriptionSource(Path("cells"), ""))
    simulation = simulation_of(made, [COSTS], demands, note=None if log is None else log.append)
    simulation.run()
    return simulation


def first_tokens(simulations: Sequence[ClusterSimulation]) -> dict[str, float]:
    """Return seconds to first tokens, of the requests that are counted, and how many were lost."""
    every = [one for simulation in simulations for one in simulation.requests]
    waits = sorted(one.first - one.demand.at for one in every if one.demand.at >= WARM and not one.failed)
    found = {f"ttft_p{share}_s": waits[min(len(waits) - 1, len(waits) * share // 100)] for share in (50, 99)}
    return found | {"lost": float(sum(bool(one.failed) or one.ended < 0 for one in every))}


def interrupted(workers: int, demands: Sequence[WorkloadRequest], more: Mapping[str, Any]) -> dict[str, float]:
    """Simulate one cluster with outages; the figures, and how often what happened."""
    log = list[dict[str, Any]]()
    simulation = cluster(workers, demands, {"loading": {"disk": DISK}, **more} if more else {}, log)
    answered = Counter(entry["request"] for entry in log if entry["what"] == "finished")
    doubled = sum(count > 1 for count in answered.values())
    counts = simulation.control() or {"loaded_bytes": 0, "restarts": 0}
    again = {"read_models": counts["loaded_bytes"] / PARAMETERS, "restarts": float(counts["restarts"])}
    return {**first_tokens([simulation]), "doubled": float(doubled), **again, "ended_s": simulation.now}
