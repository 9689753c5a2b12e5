"""Dispatch policies on twelve simulated instances with the constants of the Block paper.

    python benchmarks/scheduling.py [--quick] [--json PATH] [--jobs N]

Instances run the scheduler of live workers; ``examples/simulate/twelve.toml`` has the cost of a sweep. Lengths come from
ShareGPT (../shared/traces, else the example's sample), cut at 2,048 tokens. Answers end at a token that no scheduler
foresees; requests allow 2,048. Arrivals in the first 40 s are not counted. Policies get the same requests at the same times
(a trace for each seed), so that differences are paired; intervals are of 95 %, over seeds. Forecast times are made wrong by
1 %, which exceeds the effect of sweeps that vary by 5 % on a forecast of hundreds of them.

``load/R``: at R times ``CAPACITY``; far beyond it for half as long. ``capacity/base``: the rates at which these curves reach
a P99 of the TTFT of 3 and 10 s. ``capacity/batch-24``: the same with half as many sequences, on a finer grid. At
``CAPACITY`` itself, with one seed: ``length-error/..``, ``staleness/..``, ``herd/..``, ``gamma/..``, ``objective/..``,
``correction/..``, ``forecast-error/..``. ``hindsight/R``: the rank of the choice. ``*`` marks length estimates with the
errors of the paper's tagger; otherwise lengths are known.

The result of each run is stored in ``build/``, so that an interrupted run continues, as long as the sources are the same.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import harness
import scheduling_runs as runs
from harness import OURS, ROOT, Bar, Options, Report
from scheduling_kept import keep
from scheduling_runs import Run

CAPACITY = 33.0  # requests a second: Llumnix- with a P99 of the TTFT below 10 s (``capacity/base``)
REFERENCE = "llumnix-minus-code"
HERD = 0.25  # seconds of staleness beside four dispatchers
LIMITS = (3.0, 10.0)  # seconds, of the P99 of the TTFT
WRONG = "dispatch.forecast_error=0.01"
TAGGER = ("workload.length_error=0.3",)  # a mean relative error of 24 %, as the paper's
# Provisioning as in the paper:
FLEET = 10  # instances
START = 6  # instances at the beginning
RATE = 24.0  # requests a second
# Modes of provisioning and limits in seconds. No forecast knows who comes later, so that with the limit of relief fewer
# instances are started: it is compared at a limit that starts no more.
RELIEF = "relief"
PROVISIONING = {RELIEF: (RELIEF, 70), OURS: ("preemptive", 54)}
SAME_LIMIT = {"preemptive-70s": ("preemptive", 70)}
MEASURES = ("ttft_mean_s", "ttft_p99_s", "latency_mean_s", "latency_p99_s")


def policy(name: str, *more: str) -> tuple[str, ...]:
    return (f"dispatch.policy={name}", WRONG, *more)


BLOCK = policy("predicted-latency")
BEST = policy("ours")
BASE = policy(REFERENCE)
KEPT = ROOT / "build" / "scheduling.jsonl"
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
# The loads between which a subject is measured, where those are not all: it takes long, and tells little elsewhere.
BETWEEN = {
    **dict.fromkeys(("infaas", "infaas-code", "llumnix-minus", "outstanding"), (0.95, 1.15)),
    **dict.fromkeys(("block*", f"{OURS}*"), (0.95, 1.15)),
    **dict.fromkeys(("po4", "po8"), (0.95, 1.05)),
}
BEYOND = 1.15  # of the capacity: half as long, as ever more wait, and forecasts take ever longer
NARROW = (25.0, ("instances.0.max_rows=24",))
SETTINGS = ("base", "batch-24")
BARS = (
    Bar("near/oracle", "ttft_p99_cut", at_least=0.75),
    Bar("near/tagger", "ttft_p99_cut", at_least=0.25),
    Bar("provisioning/cold-0s", "latency_p99_s", RELIEF, at_most=0.8),
    Bar("provisioning/cold-0s", "instances", RELIEF, at_most=1.0),
    *(Bar("capacity/batch-24", f"qps_{limit:g}s", REFERENCE, at_least=1.1) for limit in LIMITS),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured: ``seeds`` of the curves; ``few`` of what has a bar of its own; ``one`` of all else, and of what
    takes minutes."""

    loads: tuple[float, ...] = (0.6, 0.8, 0.9, 1.0, 1.1, 1.2)
    seeds: tuple[int, ...] = (1, 2, 3)
    few: tuple[int, ...] = (1, 2)
    one: tuple[int, ...] = (1,)
    warm: float = 40.0
    seconds: float = 120.0
    tried: int = 10  # requests that are tried everywhere

    @classmethod
    def chosen(cls, quick: bool) -> Plan:
        return cls(loads=(0.6, 1.0), seeds=(1, 2), few=(1,), warm=20.0, seconds=40.0, tried=2) if quick else cls()

    def seeds_of(self, subject: str, load: float) -> tuple[int, ...]:
        """Where forecasts of all instances take minutes (who waits makes them longer), or say what all others say: fewer."""
        if subject not in ("block", "block*", OURS, f"{OURS}*"):
            return self.seeds
        if load > 1.05 and subject.endswith("*"):
            return self.one
        return self.seeds if 0.85 < load < 1.05 else self.few

    def run(self, changes: Sequence[str], rate: float, seed: int) -> Run:
        return Run(changes=tuple(changes), rate=rate, seed=seed, warm=self.warm, seconds=self.seconds)


@dataclass(frozen=True, slots=True)
class Job:
    """What one process does at a time."""

    case: str
    subject: str
    measure: partial[dict[str, float]]  # of a run, and more


def jobs(plan: Plan) -> Iterator[Job]:
    """Of each case and subject in the order of seeds."""
    for case, subject, load, changes, seeds, estimates in cases(plan):
        for seed in seeds:
            run = replace(plan.run(changes, load * CAPACITY, seed), estimates=estimates)
            if load > BEYOND:
                run = replace(run, warm=run.warm / 2, seconds=run.seconds / 2)
            yield Job(case, subject, partial(runs.simulate, run))
    rate, changes = NARROW
    for subject in (REFERENCE, "block", OURS, f"{OURS}*"):
        for seed in plan.one if subject.endswith("*") else plan.few:
            run = plan.run((*SUBJECTS[subject], *changes), rate, seed)
            yield Job("capacity/batch-24", subject, partial(runs.capacity, run, LIMITS))
    for load in (plan.loads[0], 1.0):
        for subject in ("random", REFERENCE, "po2", "block"):
            run = plan.run(SUBJECTS[subject], load * CAPACITY, 1)
            yield Job(f"hindsight/{load:.2f}", subject, partial(runs.hindsight, run, plan.tried))


Case = tuple[str, str, float, tuple[str, ...], tuple[int, ...], str]  # its name, subject, load, changes, seeds, estimates


def cases(plan: Plan) -> Iterator[Case]:
    for load in plan.loads:
        for subject, changes in SUBJECTS.items():
            low, high = BETWEEN.get(subject, (0.0, 2.0))
            if low < load < high:
                yield f"load/{load:.2f}", subject, load, changes, plan.seeds_of(subject, load), "oracle"

    def near(case: str, subject: str, changes: Sequence[str], estimates: str = "oracle") -> Case:
        return case, subject, 1.0, (*SUBJECTS[subject], *changes), plan.one, estimates

    for part in (0.25, 0.5, 1.0):
        wrong = (f"workload.length_error={part}", "workload.error_law=gaussian")
        yield near(f"length-error/{part:.0%}", OURS, wrong)
    yield near("length-error/50%", "block", ("workload.length_error=0.5", "workload.error_law=gaussian"))
    for subject in ("block", OURS):
        yield near("length-error/trained", subject, (), "trained")
    yield near("length-error/none", "po2", (), "none")  # of few: every forecast plays to the limit
    yield near("correction/learned", OURS, TAGGER)
    yield near("correction/10", OURS, (*TAGGER, "dispatch.spread=false"))
    yield near("correction/none", OURS, (*TAGGER, "dispatch.spread=false", "dispatch.correction=1"))
    for part in (0.05, 0.25):
        yield near(f"forecast-error/{part:.0%}", OURS, (f"dispatch.forecast_error={part}",))
    for subject in (REFERENCE, OURS):
        for seconds, known in ((0.1, "shared"), (0.5, "shared"), (0.5, "none"), (2.0, "shared")):
            old = (f"dispatch.staleness={seconds}", f"dispatch.in_flight={known}")
            yield near(f"staleness/{1000 * seconds:.0f}ms/{known}", subject, old)
        for known in ("shared", "own", "none"):
            four = ("dispatch.dispatchers=4", f"dispatch.staleness={HERD}", f"dispatch.in_flight={known}")
            yield near(f"herd/{known}", subject, four)
        for shape in (0.25, 0.5, 2.0):
            yield near(f"gamma/{shape:g}", subject, ("workload.arrivals=gamma", f"workload.cv={shape**-0.5}"))
    for name in ("predicted-latency", "predicted-ttft", "predicted-delay", "predicted-slo"):
        yield f"objective/{name}", OURS, 1.0, policy(name), plan.one, "oracle"
    for cold in (0, 30):
        some = (f"instances.0.count={FLEET}", f"provisioning.start={START}", f"provisioning.cold_start={cold}")
        for subject, (mode, limit) in (PROVISIONING if cold else PROVISIONING | SAME_LIMIT).items():
            changes = (*BLOCK, *some, f"provisioning.mode={mode}", f"provisioning.limit={limit}")
            seeds = plan.one if cold or subject in SAME_LIMIT else plan.few
            yield f"provisioning/cold-{cold}s", subject, RATE / CAPACITY, changes, seeds, "oracle"


def measured(job: Job) -> dict[str, float]:
    return job.measure()


def work(job: Job) -> float:
    """About how long it takes, beside others: forecasts do, and who waits makes them longer."""
    run: Run = job.measure.args[0]
    several = {runs.capacity: 6, runs.hindsight: 2}.get(job.measure.func, 1)
    words = dict(change.split("=", 1) for change in run.changes)
    knows = words["dispatch.policy"] in (*HEURISTICS, "least-work")
    forecasts = 0 if knows else int(words.get("dispatch.choices", 12))
    return several * (0.1 + forecasts / 12) * run.rate**2


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


def curves(report: Report, plan: Plan) -> None:
    """The capacity of each subject, by seed, from what it did at the loads."""
    for subject in SUBJECTS:
        points = {load: report.samples.get((f"load/{load:.2f}", "ttft_p99_s", subject), []) for load in plan.loads}
        for place in range(len(plan.seeds)):
            curve = [(load * CAPACITY, seconds[place]) for load, seconds in points.items() if place < len(seconds)]
            rates = {f"qps_{limit:g}s": runs.crossed(curve, limit) for limit in LIMITS}
            report.add("capacity/base", subject, {name: rate for name, rate in rates.items() if rate is not None})


@harness.claim("Preemptive provisioning has a P99 20 % below relief with no more instances", of="prediction")
def main(options: Options, processes: int) -> None:
    plan = Plan.chosen(options.quick)
    lengths = str(runs.lengths().relative_to(ROOT)) if runs.lengths() == runs.SAMPLE else "shared/traces, all"
    report = Report(
        "scheduling", {"lengths": lengths, "capacity": CAPACITY, "seeds": len(plan.seeds), "few": len(plan.few)}, ()
    )
    for name, figures in runs.trained()[1].items():
        report.add(f"estimates/{name}", OURS, figures)
    report.add("estimates/tagger-like", OURS, runs.noise_figures(0.3))
    asked = list(jobs(plan))
    order = sorted(range(len(asked)), key=lambda place: -work(asked[place]))  # the longest first
    with multiprocessing.Pool(processes, keep, (KEPT, runs.sources())) as pool:
        found = dict(zip(order, pool.imap(measured, [asked[place] for place in order]), strict=True))
    for place, job in enumerate(asked):
        report.add(job.case, job.subject, found[place])
    compare(report)
    curves(report, plan)
    harness.finish(report, options, BARS)


if __name__ == "__main__":
    parser = harness.parser(__doc__)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="processes at a time (one per core)")
    chosen = parser.parse_args()
    main(Options(chosen.quick, chosen.json), chosen.jobs)
