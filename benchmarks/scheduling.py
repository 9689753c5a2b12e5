"""Where requests should go: dispatch policies on twelve simulated instances with the constants of the Block paper.

    python benchmarks/scheduling.py [--quick] [--json PATH]

Instances run the scheduler of live workers; a sweep costs what ``examples/simulate/twelve.toml`` says. Lengths are those of
ShareGPT (../shared/traces, else the example's sample), cut at 2,048 tokens; answers end at a token that no scheduler
foresees, requests allow 2,048. Who arrives in the first 40 s is not counted. Policies meet the same requests at the same
times (a trace for each seed), so that differences are paired; intervals are of 95 %, over seeds. Forecast times are made
wrong by 1 %, more than what sweeps that vary by 5 % do to a forecast of hundreds of them.

``load/R``: at R times ``CAPACITY``. ``capacity/SETTING``: the largest rates with a P99 of the TTFT below 3 and 10 s. At
``CAPACITY`` itself: ``length-error/..``, ``staleness/..``, ``herd/..``, ``gamma/..``, ``objective/..``, ``correction/..``.
``hindsight/R``: the rank of the choice. ``*`` marks estimates of lengths that are wrong as those of the paper's tagger are;
otherwise lengths are known.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import harness
import scheduling_runs as runs
from harness import OURS, ROOT, Bar, Options, Report
from scheduling_runs import Run

CAPACITY = 33.0  # requests a second: Llumnix- with a P99 of the TTFT below 10 s (``capacity/base``)
REFERENCE = "llumnix-minus-code"
HERD = 0.25  # seconds of staleness beside four dispatchers
LIMITS = (3.0, 10.0)  # seconds, of the P99 of the TTFT
WRONG = "dispatch.forecast_error=0.01"
TAGGER = ("workload.length_error=0.3",)  # a mean relative error of 24 %, as the paper's
FLEET, START, RATE = 10, 6, 24.0  # provisioning as in the paper: instances, those at the beginning, rate
# Modes of provisioning and limits in seconds. No forecast knows who comes later, so that with the limit of relief fewer
# instances are started: it is compared at the limit that starts as many.
RELIEF = "relief"
PROVISIONING = {RELIEF: (RELIEF, 70), OURS: ("preemptive", 52)}
SAME_LIMIT = {"preemptive-70s": ("preemptive", 70), "preemptive-60s": ("preemptive", 60)}
MEASURES = ("ttft_mean_s", "ttft_p99_s", "latency_mean_s", "latency_p99_s")


def policy(name: str, *more: str) -> tuple[str, ...]:
    return (f"dispatch.policy={name}", WRONG, *more)


BLOCK, BEST, BASE = policy("predicted-latency"), policy("ours"), policy(REFERENCE)
HEURISTICS = ("random", "round-robin", "min-qpm", "infaas", "infaas-code", "llumnix-minus", REFERENCE)
SUBJECTS = {
    **{name: policy(name) for name in HEURISTICS},
    "outstanding": policy("least-work"),  # what gateways do by themselves
    **{f"po{k}": (*BLOCK, f"dispatch.choices={k}") for k in (2, 4, 8)},
    "block": BLOCK,
    "block*": (*BLOCK, *TAGGER),
    OURS: BEST,
    f"{OURS}*": (*BEST, *TAGGER),
}
NEAR_ALONE = ("po4", "po8", "block*", f"{OURS}*")
SETTINGS = {
    "base": (CAPACITY, ()),
    "batch-24": (25.0, ("instances.0.max_rows=24",)),
}
BARS = (
    Bar("near/oracle", "ttft_p99_cut", at_least=0.75),
    Bar("near/tagger", "ttft_p99_cut", at_least=0.25),
    Bar("provisioning/cold-0s", "latency_p99_s", RELIEF, at_most=0.8),
    Bar("provisioning/cold-0s", "instances", RELIEF, at_most=1.0),
    *(Bar("capacity/batch-24", f"qps_{limit:g}s", REFERENCE, at_least=1.1) for limit in LIMITS),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured."""

    loads: tuple[float, ...] = (0.6, 0.8, 0.9, 1.0, 1.1, 1.2)
    seeds: tuple[int, ...] = (1, 2, 3)
    few: tuple[int, ...] = (1, 2)
    warm: float = 40.0
    seconds: float = 120.0
    tried: int = 10  # requests that are tried everywhere

    @classmethod
    def chosen(cls, quick: bool) -> Plan:
        return cls(loads=(0.6, 1.0), seeds=(1, 2), few=(1,), warm=20.0, seconds=40.0, tried=2) if quick else cls()

    def run(self, changes: Sequence[str], rate: float, seed: int) -> Run:
        return Run(changes=tuple(changes), rate=rate, seed=seed, warm=self.warm, seconds=self.seconds)


@dataclass(frozen=True, slots=True)
class Job:
    """What one process does at a time."""

    case: str
    subject: str
    measure: Callable[[], dict[str, float]]


def jobs(plan: Plan) -> Iterator[Job]:
    """Of each case and subject in the order of seeds."""
    for case, subject, load, changes, seeds, estimates in cases(plan):
        for seed in seeds:
            run = replace(plan.run(changes, load * CAPACITY, seed), estimates=estimates)
            yield Job(case, subject, partial(runs.simulate, run))
    for setting, (rate, changes) in SETTINGS.items():
        for subject in (REFERENCE, "block", OURS, f"{OURS}*"):
            for seed in plan.few:
                run = plan.run((*SUBJECTS[subject], *changes), rate, seed)
                yield Job(f"capacity/{setting}", subject, partial(runs.capacity, run, LIMITS))
    for load in (plan.loads[0], 1.0):
        for subject in ("random", REFERENCE, "po2", "block"):
            run = plan.run(SUBJECTS[subject], load * CAPACITY, 1)
            yield Job(f"hindsight/{load:.2f}", subject, partial(runs.hindsight, run, plan.tried))


Case = tuple[str, str, float, tuple[str, ...], tuple[int, ...], str]  # its name, subject, load, changes, seeds, estimates


def cases(plan: Plan) -> Iterator[Case]:
    for load in plan.loads:
        for subject, changes in SUBJECTS.items():
            if subject in NEAR_ALONE and not 0.85 < load < 1.15:
                continue  # they take longest, and tell little far from the capacity
            yield f"load/{load:.2f}", subject, load, changes, plan.seeds, "oracle"

    def near(case: str, subject: str, changes: Sequence[str], estimates: str = "oracle") -> Case:
        return case, subject, 1.0, (*SUBJECTS[subject], *changes), plan.few, estimates

    for subject in ("block", OURS):
        for part in (0.25, 0.5, 1.0):
            wrong = (f"workload.length_error={part}", "workload.error_law=gaussian")
            yield near(f"length-error/{part:.0%}", subject, wrong)
        for estimates in ("trained", "none"):
            yield near(f"length-error/{estimates}", subject, (), estimates)
    yield near("correction/learned", OURS, TAGGER)
    yield near("correction/10", OURS, (*TAGGER, "dispatch.spread=false"))
    yield near("correction/none", OURS, (*TAGGER, "dispatch.spread=false", "dispatch.correction=1"))
    for part in (0.05, 0.25):
        yield near(f"forecast-error/{part:.0%}", OURS, (f"dispatch.forecast_error={part}",))
    for subject in (REFERENCE, OURS):
        for seconds in (0.1, 0.5, 2.0):
            for known in ("shared", "none"):
                old = (f"dispatch.staleness={seconds}", f"dispatch.in_flight={known}")
                yield near(f"staleness/{1000 * seconds:.0f}ms/{known}", subject, old)
        for known in ("shared", "own", "none"):
            four = ("dispatch.dispatchers=4", f"dispatch.staleness={HERD}", f"dispatch.in_flight={known}")
            yield near(f"herd/{known}", subject, four)
        for shape in (0.25, 0.5, 2.0):
            yield near(f"gamma/{shape:g}", subject, ("workload.arrivals=gamma", f"workload.cv={shape**-0.5}"))
    for name in ("predicted-latency", "predicted-ttft", "predicted-delay", "predicted-slo"):
        yield f"objective/{name}", OURS, 1.0, policy(name), plan.few, "oracle"
    for cold in (0, 30):
        some = (f"instances.0.count={FLEET}", f"provisioning.start={START}", f"provisioning.cold_start={cold}")
        for subject, (mode, limit) in (PROVISIONING if cold else PROVISIONING | SAME_LIMIT).items():
            changes = (*BLOCK, *some, f"provisioning.mode={mode}", f"provisioning.limit={limit}")
            yield f"provisioning/cold-{cold}s", subject, RATE / CAPACITY, changes, plan.few, "oracle"


def measured(job: Job) -> dict[str, float]:
    return job.measure()


def compare(report: Report) -> None:
    """Parts by which each subject is below the reference on the same traces: those of its own case, or of the load."""
    near = f"load/{1:.2f}"
    for case, metric, subject in list(report.samples):
        if metric not in MEASURES or subject == REFERENCE or case.startswith("provisioning/"):
            continue
        ours = report.samples[case, metric, subject]
        peers = report.samples.get((case, metric, REFERENCE)) or report.samples[near, metric, REFERENCE]
        cut, low, high = runs.paired(ours, peers[: len(ours)])
        name = metric.removesuffix("_s")
        found = {f"{name}_cut": cut, f"{name}_cut_low": low, f"{name}_cut_high": high}
        report.add(case, subject, found)
        if case == near and subject in (OURS, f"{OURS}*"):
            report.add("near/tagger" if subject.endswith("*") else "near/oracle", OURS, found)


def main(options: Options) -> None:
    plan = Plan.chosen(options.quick)
    lengths = str(runs.lengths().relative_to(ROOT)) if runs.lengths() == runs.SAMPLE else "shared/traces, all"
    report = Report(
        "scheduling", {"lengths": lengths, "capacity": CAPACITY, "seeds": len(plan.seeds), "few": len(plan.few)}, ()
    )
    for name, figures in runs.trained()[1].items():
        report.add(f"estimates/{name}", OURS, figures)
    report.add("estimates/tagger-like", OURS, runs.noise_figures(0.3))
    asked = list(jobs(plan))
    with multiprocessing.Pool(os.cpu_count()) as pool:
        for job, found in zip(asked, pool.imap(measured, asked), strict=True):
            report.add(job.case, job.subject, found)
    compare(report)
    harness.finish(report, options, BARS)


if __name__ == "__main__":
    main(harness.parse(__doc__))
