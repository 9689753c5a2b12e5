"""Benchmark of ``kv_dispatch``: requests go to the owner of their KV, against recomputation and the least busy instance.

    python benchmarks/adaptive_kv.py [--quick] [--json PATH]

Simulated, by a profile of the demo checkpoint that is measured on this machine in the same run: four instances of one
model that serve conversations, which come back with their history after a pause. The loads are shares of the requests a
second that ``recompute`` serves if all come at once. ``ratio``: P95 of the latency over the least P95 of the three
modes at that load, with a bar for ``owner``. ``p95_s``: seconds. ``moved_mb``: KV that was copied between instances.
``cached``: share of the prompt tokens that were found. KV moves with the bandwidth that the profile has for TCP.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import harness
from harness import OURS, ROOT, Bar, Options, Report

MODEL = ROOT / "examples" / "demo-checkpoint"
MODES = ("owner", "recompute", "least-busy")
LOADS = (0.4, 0.7, 0.9)
INSTANCES = 4
TURNS, ANSWER = 5, 60  # requests of a conversation, tokens of an answer
FIRST, MORE = (750, 2250), (60, 360)  # tokens of the first prompt, and of what each turn adds
PAUSE = 30.0  # mean pause of a conversation, in times that a request takes alone
HELD = 80_000  # tokens of KV that an instance holds
BARS = [Bar(f"load-{load:g}/owner", "ratio", at_most=1.1) for load in LOADS]


@dataclass(frozen=True, slots=True)
class Machine:
    """A profile: costs of sweeps, bytes of KV of a token, and the link on which KV moves."""

    costs: dict[str, float]
    kv_bytes: int
    latency: float
    bandwidth: float

    @classmethod
    def measured(cls, repeats: int) -> Machine:
        """Return the profile of the demo checkpoint with one thread."""
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "profile.json"
            command = [sys.executable, "-m", "blockwright", "profile", str(MODEL), "-o", str(path), "--threads", "1"]
            subprocess.run([*command, "--repeats", str(repeats)], check=True, stdout=subprocess.DEVNULL)
            found = json.loads(path.read_text())
        link = found["links"]["tcp"]
        costs = found["coefficients"]
        return cls(costs, int(costs["kv"]), link["latency"], link["bandwidth"])


@dataclass(frozen=True, slots=True)
class Outcome:
    """One simulated run. moved: bytes."""

    p95: float
    mean: float
    moved: int
    cached: float
    seconds: float


def conversations(count: int, rate: float, pause: float, seed: int) -> list[Any]:
    """Return ``count`` requests, in the order of their times. ``rate``: of requests; 0: all come at once."""
    from blockwright.simulator.workload import WorkloadRequest

    source, asked = random.Random(seed), list[tuple[float, tuple[int, ...]]]()
    begins, number = 0.0, 0
    while len(asked) < 2 * count:
        begins += source.expovariate(rate / TURNS) if rate else 0.0
        number += 1
        at, tokens = begins, [number] * source.randint(*FIRST)
        for turn in range(TURNS):
            asked.append((at, tuple(tokens)))
            tokens = tokens + [(1 << 20) + number * TURNS + turn] * source.randint(*MORE)
            at += source.expovariate(1 / pause) if rate else 0.0
    chosen = sorted(asked)[:count]
    return [WorkloadRequest(n, at, "m", len(tokens), ANSWER, tokens=tokens) for n, (at, tokens) in enumerate(chosen)]


def run(machine: Machine, mode: str, requests: Sequence[Any]) -> Outcome:
    """Simulate one mode."""
    from blockwright.policies.plan.coefficients import Coefficients
    from blockwright.simulator.description import DescriptionSource, scenario
    from blockwright.simulator.simulation import ClusterSimulation

    memory = HELD * machine.kv_bytes + (1 << 20)
    table = {
        "workload": {"rate": 1.0, "input_tokens": 1, "output_tokens": 1},
        "models": [{"name": "m", "kv_bytes": machine.kv_bytes, "parameters": 1 << 20}],
        "links": {"latency": machine.latency, "bandwidth": machine.bandwidth},
        "dispatch": {"kv_dispatch": mode},
        "instances": [
            {"name": "i", "count": INSTANCES, "profile": "measured", "memory": memory, "memory_chunk": 1 << 16,
             "chunk_size": 256, "max_rows": 64}
        ],
    }  # fmt: skip
    made = scenario(table, DescriptionSource(Path("adaptive_kv"), ""))
    simulation = ClusterSimulation(made, [Coefficients.from_table(machine.costs)], requests)
    simulation.run()
    assert not any(one.failed for one in simulation.requests), "every request fits"
    latencies = sorted(one.ended - one.demand.at for one in simulation.requests)
    found = sum(one.state.counters.get("cached_tokens", 0) for one in simulation.instances)
    moved = simulation.kv_copies.moved if simulation.kv_copies is not None else 0
    asked = sum(one.prompt for one in requests)
    last = max(one.ended for one in simulation.requests)
    return Outcome(latencies[int(0.95 * len(latencies))], sum(latencies) / len(latencies), moved, found / asked, last)


def compare(report: Report, machine: Machine, count: int, seed: int) -> None:
    """Simulate all modes at all loads."""
    together = conversations(count, 0.0, 0.0, seed)
    most = count / run(machine, "recompute", together).seconds
    alone = run(machine, "recompute", [replace(together[0], at=0.0)]).mean
    for load in LOADS:
        requests = conversations(count, load * most, PAUSE * alone, seed)
        found = {mode: run(machine, mode, requests) for mode in MODES}
        least = min(one.p95 for one in found.values())
        for mode, one in found.items():
            figures = {"ratio": one.p95 / least, "p95_s": one.p95, "moved_mb": one.moved / 1e6, "cached": one.cached}
            report.add(f"load-{load:g}/{mode}", OURS, figures)


@harness.claim("Sending requests to the owner of their KV gives a P95 within 1.1 of the best of three modes", of="adaptive")
def main(options: Options) -> None:
    machine = Machine.measured(4 if options.quick else 7)
    report = Report("adaptive_kv", {"profile": machine.costs, "instances": INSTANCES, "loads": list(LOADS)}, ())
    for seed in range(1 if options.quick else 3):
        compare(report, machine, 300 if options.quick else 600, seed)
    harness.finish(report, options, BARS)


if __name__ == "__main__":
    main(harness.parse(__doc__))
