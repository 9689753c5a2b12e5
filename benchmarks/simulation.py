"""Speed of a simulated cluster: virtual seconds for each second of one core.

    python benchmarks/simulation.py [--quick] [--json PATH]

``examples/simulate/twelve.toml``: twelve instances with the constants of Llama-2-7B, 30 requests per second, lengths of
ShareGPT. ``1000`` is the same with 1,000 instances and 2,500 requests per second; ``choices-2`` compares two drawn at
random; ``ahead`` makes plans ahead like live workers. Virtual time counts until the last request arrives, the time of the
core until the last one has ended, so that the idle end of a run adds nothing.
"""

from __future__ import annotations

import gc
import time
from pathlib import Path

import harness
from harness import OURS, Bar, Options, Report

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "simulate" / "twelve.toml"
MANY = ("instances.0.count=1000", "workload.rate=2500")
CASES: dict[str, tuple[str, ...]] = {
    "12/llumnix-minus-code": (),
    "12/round-robin": ("dispatch.policy=round-robin",),
    "12/least-work": ("dispatch.policy=least-work",),
    "12/predicted-latency/choices-2": ("dispatch.policy=predicted-latency", "dispatch.choices=2"),
    "12/predicted-latency": ("dispatch.policy=predicted-latency",),
    "12/llumnix-minus-code/ahead": ("instances.0.ahead=true",),
    "1000/round-robin": (*MANY, "dispatch.policy=round-robin"),
    "1000/llumnix-minus-code/choices-2": (*MANY, "dispatch.choices=2"),
}
BARS = (
    Bar("12/llumnix-minus-code", "times_real_time", at_least=100),
    Bar("12/round-robin", "times_real_time", at_least=100),
    Bar("12/predicted-latency/choices-2", "times_real_time", at_least=5),
    Bar("12/predicted-latency", "times_real_time", at_least=1),
    Bar("1000/round-robin", "times_real_time", at_least=1),
    Bar("1000/llumnix-minus-code/choices-2", "times_real_time", at_least=1),
)


def measure(changes: tuple[str, ...], count: int) -> dict[str, float]:
    """One run of so many requests."""
    from blockwright.simulator.description import profile, read
    from blockwright.simulator.simulation import ClusterSimulation
    from blockwright.simulator.workload import demands

    scenario, source = read(EXAMPLE, [*changes, f"workload.count={count}"])
    coefficients = [profile(spec, n, source) for n, spec in enumerate(scenario.instances)]
    requests = demands(scenario.workload, scenario.models, scenario.seed, EXAMPLE.parent)
    simulation = ClusterSimulation(scenario, coefficients, requests)
    gc.collect()
    began = time.process_time()
    simulation.run()
    seconds = time.process_time() - began
    assert not any(one.failed for one in simulation.requests)
    return {"times_real_time": requests[-1].at / seconds, "us_per_request": 1e6 * seconds / count}


@harness.claim("A cluster of 1,000 instances is simulated in real time or faster", of="simulator")
@harness.claim("A cluster of twelve instances is simulated 100 times faster than real time", of="simulator")
def main(options: Options) -> None:
    report = Report("simulation", {"example": "examples/simulate/twelve.toml"}, ())
    for case, changes in CASES.items():
        count = 20_000 if case.startswith("1000") else 1_500 if "predicted" in case else 6_000
        for _ in range(1 if options.quick else 3):
            report.add(case, OURS, measure(changes, count // 5 if options.quick else count))
    harness.finish(report, options, BARS)


if __name__ == "__main__":
    main(harness.parse(__doc__))
