"""Cost of a forecast for one more request on a worker, by the number of running and waiting sequences.

    python benchmarks/forecast.py [--quick] [--json PATH]

Lengths are spread as in ShareGPT (lognormal, clipped to 2,048). Each state is queried about four requests: ``first``
includes the part that they share, the worker played forward without any of them; ``next`` does not. ``machine`` is the same
by the sweep machine itself, the fallback of forecasts.
"""

from __future__ import annotations

import gc
import random
import statistics
import time

import harness
from harness import Bar, Options, Report
from sweep import LAYERS, PAGE, routed

CASES = ((16, 0), (64, 0), (64, 64))  # sequences that run, and that wait
BARS = (Bar("forecast/64running-64waiting", "p99_ms", at_most=5.0),)


def worker(running: int, waiting: int, seed: int):  # type: ignore[no-untyped-def]
    """A machine in the middle of its work, and the requests that are asked about."""
    from blockwright.policies.plan.sweep_plan import SweepResult
    from blockwright.policies.sweep.config import SweepConfig

    chance = random.Random(seed)
    config = SweepConfig(worker="w0", numerics="none", budget=4 << 30, slot_unit=8192, max_rows=running)
    state = routed(config)
    for number in range(running + waiting):
        state.apply(_submission(number, chance), 0.0)
    while (plan := state.plan(0.0)) is not None and len(plan.sample) < running:
        state.commit(plan, SweepResult(plan.number, [7] * len(plan.sample)), 0.0)
    state.take_effects()
    return state, plan, [_submission((1 << 31) + n, chance) for n in range(4)]


def _submission(number: int, chance: random.Random):  # type: ignore[no-untyped-def]
    from blockwright.policies.model.lineage import page_hashes
    from blockwright.policies.plan.sampling import SamplingParams
    from blockwright.policies.sweep.events import Submission

    prompt = [number % 50_000, *range(min(2047, round(chance.lognormvariate(4.9, 1.1))))]
    answer = max(1, min(2048, round(chance.lognormvariate(4.9, 1.0))))
    return Submission(
        request=f"r{number}", attempt=1, gateway="head/gateway", route="m@w0", route_version=1, tokens=prompt,
        prompt_length=len(prompt), page_hashes=page_hashes(prompt, PAGE), max_length=len(prompt) + 2048, stop_tokens=[49],
        sampling=SamplingParams(), arrival=float(number), expected=answer,
    )  # fmt: skip


def measure(running: int, waiting: int, states: int) -> dict[str, float]:
    """Milliseconds of one forecast, and how many sweeps it plays."""
    from blockwright.policies.plan.coefficients import Coefficients
    from blockwright.policies.plan.cost import cost
    from blockwright.policies.prediction.forecast import Forecaster
    from blockwright.policies.prediction.replay import MachineReplay
    from blockwright.policies.prediction.timeline import TimelineEntry

    costs = Coefficients(base=5e-3, token=2e-5, context=1e-8, prefill=1e-8)
    spent: dict[str, list[float]] = {"first": [], "next": [], "machine": []}
    sweeps: list[int] = []
    for seed in range(states):
        state, plan, targets = worker(running, waiting, seed)
        present = TimelineEntry(state, costs, [(plan, cost(plan, costs))])
        forecaster = Forecaster([present], 0.0)
        gc.collect()
        gc.disable()
        for target in targets:
            began = time.perf_counter()
            found = forecaster.forecast(target)
            spent["first" if target is targets[0] else "next"].append(1e3 * (time.perf_counter() - began))
            sweeps.append(found.sweeps)
        if seed < states // 10:
            began = time.perf_counter()
            replay = MachineReplay([present], targets[-1:], 0.0)
            replay.play(targets[-1].request, 1 << 30)
            spent["machine"].append(1e3 * (time.perf_counter() - began))
            assert abs(replay.timeline.ends[targets[-1].request] - found.last_token) < 1e-6, "the forecasts differ"
        gc.enable()
    every = spent["first"] + spent["next"]
    percentiles = {"p50_ms": statistics.median(every), "p99_ms": statistics.quantiles(every, n=100)[98]}
    medians = {f"{name}_ms": statistics.median(values) for name, values in spent.items()}
    return {**percentiles, **medians, "sweeps": statistics.median(sweeps)}


@harness.claim("A forecast at 64 running and 64 waiting requests takes less than 5 ms", of="prediction")
def main(options: Options) -> None:
    report = Report("forecast", {"kv_layers": LAYERS, "page": PAGE}, ())
    for _ in range(1 if options.quick else 3):
        for running, waiting in CASES:
            found = measure(running, waiting, 30 if options.quick else 100)
            report.add(f"forecast/{running}running-{waiting}waiting", harness.OURS, found)
    harness.finish(report, options, BARS)


if __name__ == "__main__":
    main(harness.parse(__doc__))
