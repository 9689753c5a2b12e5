"""Pipelines beside replicas on the same simulated devices: time per token, throughput, idle time of the stages.

    python benchmarks/pipelines.py [--quick] [--json PATH]

Four devices serve Qwen-2.5-14B (as in ``overload.py``) as four replicas, as two pipelines of two, and as one of four, with
the lengths of arXiv summaries and 52 or 16 GB of KV memory beside a whole model. ``loaded``: Poisson arrivals at which
replicas use 60 % of that memory. ``saturated``: all at once; tokens per second, including prompts, until 80 % have ended.
``bubbles``: the share of stage time in which a stage is idle while sequences run. ``limit``: a replica's time per token plus
one sweep's own time for each further stage, if all microbatches were equally long.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import harness
import overload_runs as overload
from harness import OURS, Bar, Options, Report

DEVICES = 4
ROOMS = (52, 16)
REPLICAS = "replicas"
WHOLE = "whole-prompts"  # without lookahead
LIMIT = "limit"
CASES = tuple(f"{room}GB/{stages}" for room in ROOMS for stages in (2, 4))
BARS = (
    *(Bar(f"loaded/{case}", "tpot_p50", REPLICAS, at_most=1.25) for case in CASES),
    *(Bar(f"saturated/{case}", "tokens_per_s", REPLICAS, at_least=0.9) for case in CASES),
    *(Bar(f"loaded/{case}", "bubbles", WHOLE, at_most=0.8) for case in CASES),
)


def rate_of(sizes: Sequence[tuple[int, int]], share: float) -> float:
    """Requests a second at which one replica uses such a share of its KV memory: Little's law over what a sweep costs."""
    costs = overload.COSTS
    prompt = mean(size for size, _ in sizes)
    output = mean(size for _, size in sizes)
    held = share * (overload.MEMORY - overload.PARAMETERS) / overload.KV  # tokens
    rows = held / (prompt + output / 2)
    sweep = costs["base"] + costs["read"] + costs["beyond"] * rows + costs["context"] * held
    return rows / (output * sweep + rows * prompt * costs["beyond"])


def asked(sizes: Sequence[tuple[int, int]], rate: float, count: int) -> list[Any]:
    """So many requests; rate 0: all at once."""
    from blockwright.simulator.workload import WorkloadRequest

    source = random.Random(1)
    now = 0.0
    made = list[WorkloadRequest]()
    for number in range(count):
        now += source.expovariate(rate) if rate else 0.0
        made.append(WorkloadRequest(number, now, "qwen-14b", *source.choice(sizes)))
    return made


def simulate(stages: int, room: int, demands: Sequence[Any], *, lookahead: bool = True) -> dict[str, float]:
    """One run; of requests that come while the first are still starting there are no figures."""
    from blockwright.api.load.figures import percentile
    from blockwright.policies.plan.coefficients import Coefficients
    from blockwright.policies.prediction.pipeline_instance import PipelineInstance
    from blockwright.simulator.simulation import ClusterSimulation

    run = ClusterSimulation(described(stages, room), [Coefficients(**overload.COSTS)], demands)
    pipelines = [one for one in run.instances if isinstance(one, PipelineInstance)]
    for pipeline in pipelines if not lookahead else ():
        for machine in pipeline.machines.values():
            machine.state.parts.config = replace(machine.state.config, lookahead=0)
    run.run()
    steady = [one for one in run.requests if one.demand.number >= len(demands) // 5]
    each = sorted((one.ended - one.first) / (one.demand.output - 1) for one in steady)
    first = sorted(one.first - one.demand.at for one in steady)
    done = sorted(run.requests, key=lambda one: one.ended)[: len(demands) * 4 // 5]
    found = {f"tpot_p{share}": percentile(each, share) for share in (50, 99)}
    found |= {f"ttft_p{share}": percentile(first, share) for share in (50, 99)}
    found["tokens_per_s"] = sum(one.demand.prompt + one.demand.output for one in done) / done[-1].ended
    found["preemptions"] = float(sum(one.preemptions for one in run.requests))
    if pipelines:
        found["bubbles"] = mean(one.bubbles / (one.bubbles + one.busy) for one in pipelines)
    return found


def described(stages: int, room: int) -> Any:
    from blockwright.simulator.description import DescriptionSource, scenario

    model = {"name": "qwen-14b", "kv_bytes": overload.KV, "parameters": overload.PARAMETERS, "hidden_bytes": 10_240}
    instance = {"name": "i", "count": DEVICES // stages, "stages": stages, "profile": "-", "max_rows": 1024}
    sizes = {"memory": overload.PARAMETERS + room * 10**9, "chunk_size": 1024, "sweep_tokens": 2048}
    table = {
        "workload": {"arrivals": "log"},
        "models": [{**model, "embedding": 1_557_000_000, "head": 1_557_000_000, "context": 40_000}],
        "instances": [{**instance, **sizes}],
        "links": {"latency": 1e-5, "bandwidth": overload.LINK},
        "dispatch": {"policy": "prefix-aware"},
    }
    return scenario(table, DescriptionSource(Path("pipelines.toml"), ""))


@harness.claim("Pipelines of two stages take at most 1.25 times the time per token of replicas", of="parameter-dropping")
def main(options: Options) -> None:
    report = Report("pipelines", {"devices": DEVICES, "model": "Qwen-2.5-14B", "device": "H100"}, ())
    sizes, count = overload.lengths(replace(overload.SETS["arxiv"], longer=1)), 160 if options.quick else 600
    for room in ROOMS:
        rate = DEVICES * rate_of(sizes, 0.6 * room * 1e9 / (overload.MEMORY - overload.PARAMETERS))
        for load, demands in (("loaded", asked(sizes, rate, count)), ("saturated", asked(sizes, 0.0, count))):
            replicas = simulate(1, room, demands)
            for stages in (2, 4):
                case = f"{load}/{room}GB/{stages}"
                report.add(case, REPLICAS, replicas)
                report.add(case, LIMIT, {"tpot_p50": replicas["tpot_p50"] + (stages - 1) * overload.COSTS["base"]})
                report.add(case, WHOLE, simulate(stages, room, demands, lookahead=False))
                report.add(case, OURS, simulate(stages, room, demands))
    harness.finish(report, options, BARS)


if __name__ == "__main__":
    main(harness.parse(__doc__))
