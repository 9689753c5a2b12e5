"""Benchmark of adaptive chains on twelve simulated devices: P95 latency with 20 and 30 applications.

    python benchmarks/adaptive_simulated.py [--quick] [--json PATH]

The devices, the model's sizes and the lengths of requests are the ones of ``examples/simulate/twelve.toml``. Applications
are fine-tunes in families of ``FAMILY``, whose members may serve for each other. Each is placed on ``COPIES`` devices, drawn
by a seed so that devices hold equally many. Popularity is 1 / rank, with ranks drawn by the seed, and arrivals
are Poisson. Load is relative to the cluster's capacity: the requests a second that all devices answer when everything waits.

``off``: each model's own places only. ``equal``: the live rules for variants, at the start of a request and by switches.
``ideal``: every model is placed everywhere, and a switch costs neither recomputation nor a copy. So each choice of ``equal``
is there too, for less; but it takes the best one for each request by itself, so a gain may be a little more than 1.
``gain``: what ``equal`` takes off the P95 of ``off``, as a part of what the ideal takes off, by the means over all seeds.
Where the ideal takes off less than ``LEAST_CUT`` there is no gain, and no bar. P95 is of the latency to the last token.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import harness
from harness import OURS, ROOT, Bar, Options, Report

EXAMPLE = ROOT / "examples" / "simulate" / "twelve.toml"
DEVICES = 12
APPLICATIONS = (20, 30)
FAMILY = 5
COPIES = 2
LOADS = (0.6, 0.8)
LEAST_CUT = 0.05
SUBJECTS = ("off", "equal", "ideal")
BARS = [Bar(f"applications-{count}/load-{load:g}", "gain", at_least=0.85) for count in APPLICATIONS for load in LOADS]


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of simulating: requests of a run, and seeds."""

    requests: int = 4000
    seeds: tuple[int, ...] = (1, 2, 3)

    @classmethod
    def chosen(cls, quick: bool) -> Plan:
        return cls(requests=400, seeds=(1,)) if quick else cls()


def models(subject: str, count: int, seed: int) -> list[dict[str, Any]]:
    """Return the applications with their popularity, places and equivalents."""
    source = random.Random(f"{seed} places")
    ranks = source.sample(range(1, count + 1), count)
    slots = [device for _ in range(-(-count * COPIES // DEVICES)) for device in source.sample(range(DEVICES), DEVICES)]
    found = []
    for n in range(count):
        family = range(n - n % FAMILY, n - n % FAMILY + FAMILY)
        one: dict[str, Any] = {"name": f"app-{n}", "kv_bytes": 524288, "context": 4096, "share": 1 / ranks[n]}
        if subject != "ideal":
            one["only"] = sorted({f"a30-{device}" for device in slots[n * COPIES : (n + 1) * COPIES]})
        if subject != "off":
            one["equivalents"] = [f"app-{other}" for other in family if other != n]
        found.append(one)
    return found


def simulate(subject: str, count: int, rate: float, plan: Plan, seed: int) -> Any:
    """Return the simulation of one subject at its end."""
    import tomllib

    from blockwright.simulator.assembly import simulation_of
    from blockwright.simulator.description import DescriptionSource, profile, scenario
    from blockwright.simulator.workload import demands

    table = tomllib.loads(EXAMPLE.read_text())
    device = {**table["instances"][0], "count": 1, "prefix_cache": True}
    table["seed"], table["models"] = seed, models(subject, count, seed)
    table["workload"] |= {"rate": rate, "count": plan.requests}
    table["instances"] = [{**device, "name": f"a30-{n}"} for n in range(DEVICES)]
    table["dispatch"] = {"free_switches": True} if subject == "ideal" else {}
    source = DescriptionSource(EXAMPLE, "")
    made = scenario(table, source)
    costs = [profile(spec, n, source) for n, spec in enumerate(made.instances)]
    run = simulation_of(made, costs, demands(made.workload, made.models, made.seed, EXAMPLE.parent))
    run.run()
    return run


def capacity(count: int, plan: Plan, seed: int) -> float:
    """Return the requests a second of all devices while everything waits: until four fifths have ended."""
    ended = sorted(one.ended for one in simulate("ideal", count, 1e6, plan, seed).requests)
    done = len(ended) * 4 // 5
    return done / float(ended[done - 1])


def figures(run: Any) -> dict[str, float]:
    """Return the figures of the requests after the first fifth."""
    from blockwright.api.load.figures import percentile

    counted: Sequence[Any] = run.requests[len(run.requests) // 5 :]
    latency = sorted(one.ended - one.demand.at for one in counted)
    found = {"p95_s": percentile(latency, 95), "mean_s": sum(latency) / len(latency)}
    found |= {"failed": sum(bool(one.failed) for one in run.requests)}
    if (variants := run.variants()) is not None:
        found |= {name: variants[name] / len(run.requests) for name in ("requests", "switches")}
    return found


def compare(report: Report, count: int, load: float, most: float, plan: Plan) -> None:
    """Report the subjects on the same traces. ``most``: the capacity."""
    case, p95 = f"applications-{count}/load-{load:g}", dict[str, float]()
    for subject in SUBJECTS:
        found = [figures(simulate(subject, count, load * most, plan, seed)) for seed in plan.seeds]
        for values in found:
            report.add(f"{case}/{subject}", OURS, values)
        p95[subject] = statistics.fmean(values["p95_s"] for values in found)
    report.add(case, OURS, {"rate": load * most} | gain_of(p95))


def gain_of(p95: Mapping[str, float]) -> dict[str, float]:
    """Return what the ideal cuts from P95, and the part of it that ``equal`` cuts, if it is worth while."""
    off, equal, ideal = (p95[subject] for subject in SUBJECTS)
    cut = 1 - ideal / off
    return {"cut": cut} | ({"gain": (off - equal) / (off - ideal)} if cut >= LEAST_CUT else {})


@harness.claim("On twelve simulated devices variants cut most of the P95 that an ideal cuts", of="adaptive")
def main(options: Options) -> None:
    plan = Plan.chosen(options.quick)
    report = Report(
        "adaptive_simulated", {"devices": DEVICES, "family": FAMILY, "copies": COPIES, "requests": plan.requests}, ()
    )
    for count in APPLICATIONS:
        most = capacity(count, plan, plan.seeds[0])
        for load in LOADS:
            compare(report, count, load, most, plan)
    harness.finish(report, options, [bar for bar in BARS if report.median(bar.case, bar.metric, OURS) is not None])


if __name__ == "__main__":
    main(harness.parse(__doc__))
