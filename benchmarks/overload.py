"""A burst on eight simulated replicas: drop parameters, preempt, or serve in pipelines all the time; and lookahead batches.

    python benchmarks/overload.py [--quick] [--json PATH]

Qwen-2.5-14B: 48 layers, 28 GB of weights on 80 GB, 192 KB of KV a token, links of 200 Gbit/s. What a sweep costs follows
from the medians of Vidur's operator table for an H100 (Llama-2-70B, by operations and bytes). Requests come at the rate at
which replicas use 60 % of their KV memory on average, twice as often for 30 s, with the lengths of ShareGPT, Azure's
conversations and arXiv summaries where a folder above this checkout has shared/traces; else of the example's sample alone. A
drop's ablations are simulated on the last set. ``lookahead``: random prompts
with outliers on a pipeline of two and of four stages.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import harness
from harness import OURS, ROOT, Bar, Options, Report

COSTS = {"base": 0.001, "read": 0.0097, "beyond": 4.1e-5, "row": 1e-6, "context": 7.3e-8, "prefill": 2.5e-9}
MEMORY, PARAMETERS, KV = 80_000_000_000, 28_000_000_000, 196_608  # bytes of a device, of the model, of a token
LAYERS, INSTANCES, LINK = 48, 8, 25e9
BEFORE, BURST, AFTER = 40.0, 30.0, 50.0  # seconds
SETS = {"sharegpt": "sharegpt_lengths", "azure": "azure_llm_2023_conv", "arxiv": "arxiv_summarization_lengths"}
LONGEST = 8192  # tokens of a prompt
SYSTEMS: dict[str, dict[str, Any]] = {"preempt": {"mode": "off"}, "pipelines": {"mode": "off"}, OURS: {}}
ABLATIONS: dict[str, dict[str, Any]] = {
    "recompute": {"exchange": False},
    "no-priorities": {"priorities": False},
    "no-restore": {"restore": False},
    "most-2": {"most": 2},
    "most-8": {"most": 8},
    "throttled-85": {"throttled": 0.85},
    "horizon-2": {"horizon": 2.0},
}
BARS = tuple(Bar(name, "ttft_p99", peer, at_most=1 / 12) for name in SETS for peer in ("preempt", "pipelines"))


def lengths(name: str) -> list[tuple[int, int]]:
    """Prompt and answer of each request of a set."""
    from blockwright.simulator.traces import read_trace

    found = [above / "shared" / "traces" / f"{SETS[name]}.csv.gz" for above in ROOT.parents]
    path = next((path for path in found if path.exists()), ROOT / "examples" / "simulate" / "sharegpt_lengths.csv")
    return [(min(one.prompt, LONGEST), max(one.output, 2)) for one in read_trace(path) if one.prompt]


def rate_of(sizes: Sequence[tuple[int, int]], share: float) -> float:
    """Requests a second at which one replica uses such a share of its KV memory: Little's law over what a sweep costs."""
    prompt, output = mean(size for size, _ in sizes), mean(size for _, size in sizes)
    held = share * (MEMORY - PARAMETERS) / KV  # tokens
    rows = held / (prompt + output / 2)
    sweep = COSTS["base"] + COSTS["read"] + COSTS["beyond"] * rows + COSTS["context"] * held
    return rows / (output * sweep + rows * prompt * COSTS["beyond"])


@dataclass(frozen=True, slots=True)
class Load:
    """``quiet``: requests a second at first and at last; in between ``times`` as many."""

    sizes: Sequence[tuple[int, int]]
    quiet: float
    times: float = 2.0
    shorter: float = 1.0  # divides all times

    def demands(self, seed: int) -> list[Any]:
        from blockwright.simulator.workload import Demand

        source, now, made = random.Random(seed), 0.0, list[Demand]()
        first, last, end = (t / self.shorter for t in (BEFORE, BEFORE + BURST, BEFORE + BURST + AFTER))
        while (now := now + source.expovariate(self.quiet * (self.times if first <= now < last else 1.0))) < end:
            prompt, output = source.choice(self.sizes)
            made.append(Demand(len(made), now, "qwen-14b", prompt, output))
        return made


def described(system: str, overload: Mapping[str, Any], instances: int) -> Any:
    from blockwright.simulator.description import DescriptionSource, scenario

    stages = 2 if system == "pipelines" else 1
    model = {"name": "qwen-14b", "kv_bytes": KV, "parameters": PARAMETERS, "embedding": 1_557_000_000, "head": 1_557_000_000}
    replicas = {"name": "i", "count": instances // stages, "stages": stages, "profile": "-", "memory": MEMORY}
    table = {
        "workload": {"arrivals": "log"},
        "models": [{**model, "hidden_bytes": 10_240, "context": 40_000}],
        "instances": [{**replicas, "max_rows": 1024, "chunk_size": 1024, "sweep_tokens": 2048}],
        "links": {"latency": 1e-5, "bandwidth": LINK},
        "dispatch": {"policy": "prefix-aware"},
        "overload": {"mode": "drop", "layers": LAYERS, **overload},
    }
    return scenario(table, DescriptionSource(Path("overload.toml"), ""))


def simulate(
    system: str, overload: Mapping[str, Any], demands: Sequence[Any], instances: int = INSTANCES
) -> dict[str, float]:
    """One run, in seconds. ``stall``: pauses of stale sequences. ``capacity``: the most KV memory, over that at first."""
    from blockwright.api.load.figures import percentile
    from blockwright.policies.plan.coefficients import Coefficients
    from blockwright.simulator.overload import OverloadSimulation, simulation_of

    run = simulation_of(described(system, overload, instances), [Coefficients(**COSTS)], demands)
    run.run()
    assert not any(one.failed for one in run.requests)
    first = sorted(one.first - one.demand.at for one in run.requests)
    each = sorted((one.ended - one.first) / (one.demand.output - 1) for one in run.requests)
    found = {f"ttft_p{share}": percentile(first, share) for share in (50, 90, 99)}
    found |= {f"tpot_p{share}": percentile(each, share) for share in (50, 99)}
    found["preemptions"] = float(sum(one.preemptions for one in run.requests))
    found["memory"] = mean(share for sample in run.samples for share in sample.memory)
    if isinstance(run, OverloadSimulation):
        whats = [change["what"] for change in run.changes]
        found |= {"drops": float(whats.count("dropped")), "restores": float(whats.count("restored"))}
        found |= {"stall": mean(run.stalls or [0.0]), "stall_most": max(run.stalls, default=0.0)}
        found["capacity"] = max(one.capacity for one in run.readings) / run.readings[0].capacity
        found["activation_wait_p99"] = percentile(sorted(run.links.waits), 99) if run.links.waits else 0.0
    return found


def greedy(chunks: Sequence[Any], count: int) -> list[list[Any]]:
    """The engine variant without a profile: the longest prompt first, to the microbatch with the fewest tokens."""
    batches: list[list[Any]] = [[] for _ in range(count)]
    for one in sorted(chunks, key=lambda one: -one.count):
        min(batches, key=lambda batch: sum(other.count for other in batch)).append(one)
    return batches


def look_ahead(stages: int, sets: int) -> dict[str, dict[str, float]]:
    """Mean seconds and share of idle stage time, of sets of log-normal prompts of which one in 20 is 16 times as long."""
    from blockwright.policies.plan.coefficients import Coefficients
    from blockwright.policies.plan.lookahead import ChunkCost, Lookahead, Microbatch, PromptChunk, pipeline_seconds

    price, source = ChunkCost.of(Coefficients(**{**COSTS, "prefill": 1e-8}), stages), random.Random(7)
    found: dict[str, list[tuple[float, float]]] = {"token-count": [], "greedy": [], OURS: []}
    for _ in range(sets):
        sizes = [max(1, int(source.lognormvariate(6.0, 0.8) * (16 if source.random() < 0.05 else 1))) for _ in range(16)]
        chunks = [PromptChunk(f"r{n}", 0, size) for n, size in enumerate(sizes)]
        ours = Lookahead(price, 512, stages).form(chunks, waiting=True)
        even = Lookahead(ChunkCost(attention=0.0, token=1.0), 512, stages).form(chunks, waiting=True)
        batches = {"token-count": even, "greedy": [Microbatch([], one) for one in greedy(chunks, len(ours))], OURS: ours}
        for name, made in batches.items():
            times = [[price.microbatch(batch) / stages] * stages for batch in made]
            seconds = pipeline_seconds(times)
            found[name].append((seconds, 1 - sum(map(sum, times)) / (stages * seconds)))
    return {name: {"seconds": mean(s for s, _ in some), "idle": mean(i for _, i in some)} for name, some in found.items()}


def main(options: Options) -> None:
    report = Report("overload", {"instances": INSTANCES, "model": "Qwen-2.5-14B", "device": "H100"}, ())
    names = [*SETS][-1:] if options.quick else [*SETS]
    for name in names:
        sizes = lengths(name)
        load = Load(sizes, INSTANCES * rate_of(sizes, 0.6), shorter=4.0 if options.quick else 1.0)
        demands = load.demands(1)
        for system, overload in SYSTEMS.items():
            report.add(name, system, simulate(system, overload, demands))
        for ablation, overload in ABLATIONS.items() if name == names[-1] else ():
            report.add(f"{name}/{ablation}", OURS, simulate(OURS, overload, demands))
    for stages in (2, 4):
        for subject, figures in look_ahead(stages, 20 if options.quick else 200).items():
            report.add(f"lookahead/{stages}", subject, figures)
    harness.finish(report, options, BARS)


if __name__ == "__main__":
    main(harness.parse(__doc__))
