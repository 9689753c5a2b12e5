"""Runs of a simulated cluster for ``scheduling.py``: a policy's result on one trace, each run in a process of its own."""

from __future__ import annotations

import bisect
import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from harness import ROOT
from scheduling_kept import fingerprint, kept

EXAMPLE = ROOT / "examples" / "simulate" / "twelve.toml"
SAMPLE = EXAMPLE.parent / "sharegpt_lengths.csv"
LIMIT = 2048  # tokens to which prompts and answers are cut, and that requests allow
STUDENT = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}  # 97.5 %, by degrees of freedom


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """``rate``: requests a second. ``warm``, ``seconds``: who arrives in the first is not counted, in the second is.
    ``estimates``: "oracle" (or as ``changes`` say), "trained" (on other requests of the trace) or "none"."""

    changes: tuple[str, ...]
    rate: float
    seed: int
    warm: float
    seconds: float
    estimates: str = "oracle"


def lengths() -> Path:
    """ShareGPT's lengths: all where a folder above this checkout has shared/traces, or the sample of the example."""
    found = (above / "shared" / "traces" / "sharegpt_lengths.csv.gz" for above in ROOT.parents)
    return next(filter(Path.exists, found), SAMPLE)


def sources() -> str:
    """A fingerprint of what decides the outcome of a run."""
    profile = EXAMPLE.parent / "a30-llama-2-7b.json"
    return fingerprint((ROOT / "policies", ROOT / "simulator", Path(__file__), EXAMPLE, profile, lengths()))


@kept
def simulate(run: Run) -> dict[str, float]:
    """Seconds, and what memory was like."""
    from blockwright.simulator.assembly import simulation_of

    scenario, coefficients, requests = described(run)
    forecasts: dict[int, float] = {}

    def note(entry: dict[str, Any]) -> None:
        if entry["what"] == "dispatched" and (load := entry["loads"][entry["compared"].index(entry["instance"])]):
            forecasts[entry["request"]] = load[0]

    noted = note if scenario.dispatch.policy == "predicted-latency" else None
    simulation = simulation_of(scenario, coefficients, requests, note=noted)
    simulation.run()
    counted = [one for one in simulation.requests if one.demand.at >= run.warm]
    assert not any(one.failed for one in counted), "a request was refused"
    ttft, latency = [one.first - one.demand.at for one in counted], [one.ended - one.demand.at for one in counted]
    samples = [sample.memory for sample in simulation.samples if sample.at >= run.warm]
    found = {
        "ttft_mean_s": statistics.fmean(ttft), "ttft_p99_s": percentile(ttft, 0.99),
        "latency_mean_s": statistics.fmean(latency), "latency_p99_s": percentile(latency, 0.99),
        "preemptions": sum(one.preemptions for one in counted) / len(counted),
        "memory_used": statistics.fmean(map(statistics.fmean, samples)),
        "memory_spread": statistics.fmean(map(statistics.pstdev, samples)),
        "requests_per_s": len(counted) / (max(one.ended for one in counted) - run.warm),
        "instances": simulation.provisioner.mean(simulation.now),
    }  # fmt: skip
    wrong = [
        abs(actual - forecasts[one.demand.number]) / actual
        for one, actual in zip(counted, latency, strict=True)
        if one.demand.number in forecasts
    ]
    return found | ({"forecast_error": statistics.fmean(wrong)} if wrong else {})


def described(run: Run):  # type: ignore[no-untyped-def]
    """Scenario, coefficients and requests of a run."""
    from blockwright.simulator.description import profile, read
    from blockwright.simulator.workload import demands

    shapes = (f"workload.lengths={lengths()}", f"workload.most_input={LIMIT}", f"workload.most_output={LIMIT}")
    count = round(run.rate * (run.warm + run.seconds))
    changes = (
        *shapes,
        f"workload.max_tokens={LIMIT}",
        f"workload.rate={run.rate}",
        f"workload.count={count}",
        *run.changes,
    )
    scenario, source = read(EXAMPLE, [*changes, f"seed={run.seed}"])
    coefficients = [profile(spec, n, source) for n, spec in enumerate(scenario.instances)]
    requests = demands(scenario.workload, scenario.models, scenario.seed, EXAMPLE.parent)
    if run.estimates == "none":
        requests = [replace(one, expected=0) for one in requests]
    elif run.estimates == "trained":
        requests = [replace(one, expected=guess(one.prompt)) for one in requests]
    return scenario, coefficients, requests


def capacity(run: Run, limits: Sequence[float], step: float = 1.04) -> dict[str, float]:
    """The largest rates at which the P99 of the TTFT is below each of the limits (seconds): on a grid of rates, upwards or
    downwards from ``run.rate``, and between its neighbors there on a line in the logarithm."""
    seen: dict[int, float] = {}

    def at(place: int) -> float:
        if place not in seen:
            seen[place] = simulate(replace(run, rate=run.rate * step**place))["ttft_p99_s"]
        return seen[place]

    found, place = {}, 0
    for limit in limits:
        while at(place) >= limit:
            place -= 1
        while at(place + 1) < limit:
            place += 1
        part = math.log(limit / at(place)) / math.log(at(place + 1) / at(place))
        found[f"qps_{limit:g}s"] = run.rate * step ** (place + part)
    return found


def crossed(curve: Sequence[tuple[float, float]], limit: float) -> float | None:
    """The rate at which a P99 of the TTFT reaches a limit: between the last point below it and the next one, on a line in
    the logarithm; None where one of these is missing. ``curve``: rates, ascending, and seconds."""
    below = [place for place, (_, seconds) in enumerate(curve) if seconds < limit]
    if not below or below[-1] == len(curve) - 1:
        return None
    (rate, seconds), (more, longer) = curve[below[-1] : below[-1] + 2]
    return rate + (more - rate) * math.log(limit / seconds) / math.log(longer / seconds)


# a trained estimator ---------------------------------------------------------------------------------------------------


@cache
def trained() -> tuple[Any, dict[str, dict[str, float]]]:
    """The project's own estimators on the trace, which has no prompts but their lengths: the model, and figures of each on a
    fifth of the requests that it has not seen."""
    from blockwright.policies.prediction.length_models import compared
    from blockwright.policies.prediction.lengths import LengthSample
    from blockwright.simulator.traces import read_trace

    shapes = [one for one in read_trace(lengths()) if one.prompt <= LIMIT and one.output <= LIMIT]
    random.Random(0).shuffle(shapes)
    lessons = [LengthSample(features(one.prompt), one.output, True) for one in shapes[:12_000]]
    some = len(lessons) // 5
    orders = [random.Random(epoch).sample(range(4 * some), 4 * some) for epoch in range(3)]
    return compared(lessons[: 4 * some], lessons[4 * some :], orders)


@cache
def guess(prompt: int) -> int:
    found = trained()[0].estimate(features(prompt))
    assert isinstance(found, int)
    return found


@cache
def features(prompt: int) -> Any:
    from blockwright.policies.prediction.lengths import features_of

    return features_of("m", [0] * prompt, LIMIT)


def noise_figures(deviation: float) -> dict[str, float]:
    """What an error of the logarithm of lengths means in the measures of taggers."""
    from blockwright.policies.prediction.lengths import Accuracy
    from blockwright.simulator.traces import read_trace

    seen, source = Accuracy(), random.Random(0)
    for one in read_trace(lengths()):
        length = min(one.output, LIMIT)
        seen.add(max(1, round(length * source.lognormvariate(0.0, deviation))), length)
    return seen.figures()


# what is best in hindsight ---------------------------------------------------------------------------------------------


@kept
def hindsight(run: Run, tried: int) -> dict[str, float]:
    """The rank of the choice: some requests are sent to every instance in turn, while all others go where they went; by its
    latency there, how many instances would have been better?"""
    from blockwright.simulator.simulation import ClusterSimulation

    scenario, coefficients, requests = described(run)
    simulation = ClusterSimulation(scenario, coefficients, requests)
    simulation.run()
    one_instance = replace(
        scenario, instances=(replace(scenario.instances[0], count=1),), dispatch=replace(scenario.dispatch, policy="random")
    )
    names = [instance.name for instance in simulation.instances]
    there = {name: [one.demand for one in simulation.requests if one.instance == name] for name in names}
    counted = [one for one in simulation.requests if one.demand.at >= run.warm]
    counted = counted[:: max(1, len(counted) // tried)][:tried]
    better = []
    for one in counted:
        took = {}
        for name in names:
            until = one.ended + (one.ended - one.demand.at)
            same = [demand for demand in there[name] if demand.at <= until and demand.number != one.demand.number]
            bisect.insort(same, one.demand, key=lambda demand: demand.at)
            again = ClusterSimulation(one_instance, coefficients, [replace(d, number=n) for n, d in enumerate(same)])
            again.run()
            found = again.requests[same.index(one.demand)]
            took[name] = found.ended - one.demand.at
        better.append(sum(seconds < took[one.instance] - 1e-9 for seconds in took.values()))
    return {"best_share": sum(n == 0 for n in better) / len(better), "rank_mean": 1 + statistics.fmean(better)}


# figures ---------------------------------------------------------------------------------------------------------------


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def paired(ours: Sequence[float], peers: Sequence[float]) -> tuple[float, float, float]:
    """By what part the first are less than the second, run by run with the same trace: geometric mean, and the 95 % interval
    over runs (Student's t of the logarithms)."""
    logs = [math.log(a / b) for a, b in zip(ours, peers, strict=True)]
    mean, half = statistics.fmean(logs), 0.0
    if len(logs) > 1:
        half = STUDENT[min(len(logs) - 1, max(STUDENT))] * statistics.stdev(logs) / math.sqrt(len(logs))
    return 1 - math.exp(mean), 1 - math.exp(mean + half), 1 - math.exp(mean - half)
