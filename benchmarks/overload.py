"""Systems for a shortage of KV memory, on eight simulated replicas, and lookahead batches.

The systems are: drop parameters, preempt, swap, migrate, or pipelines all the time.

    python benchmarks/overload.py [--quick] [--jobs N] [--json PATH]

Qwen-2.5-14B: 48 layers, 28 GB of weights on 80 GB, 192 KB of KV per token, links of 200 Gbit/s, 25 GB/s to host memory. The
cost of a sweep follows from the medians of Vidur's operator table for an H100 (Llama-2-70B, by operations and bytes).
Requests arrive at the rate at which eight replicas use about 60 % of their KV memory, and twice as often for 20 or 30 s.

Prompts come from ShareGPT, Azure's conversations and arXiv summaries (from the example's sample if no folder above this
checkout has shared/traces). Answers are four times as long as in the traces: with the original lengths twice the base load
is more than an H100 computes, however much memory it has (``azure-as-it-is`` shows it). ``endless-memory`` is the time to
first token if memory never runs out: the floor for any system.

SLO shares are ``slo_F``: first token or any other later than F times the median of the best baseline. An endless burst and
ablations of a drop, on the last set, have four instances, and so have pipelines all the time, which take longest to
simulate; tokens per second are for one instance. ``lookahead``: random prompts with outliers on pipelines of two and of four
stages.

Each simulation is stored when it ends (``KEPT``), so that an interrupted run continues; stored results count while the
sources that determine them are the same.
"""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any, NamedTuple

import harness
from harness import OURS, ROOT, Bar, Options, Report
from overload_runs import BASELINES, COSTS, INSTANCES, SETS, SYSTEMS, LoadOf, RunOutcome, System, outcome, sources
from scheduling_kept import keep

ABLATIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "recompute": {"exchange": False},
    "no-priorities": {"priorities": False},
    "no-lookahead": {"lookahead": False},
    "no-restore": {"restore": False},
    "most-2": {"most": 2},
    "throttled-85": {"throttled": 0.85},
    "quiet-30": {"quiet": 0.3},
    "quiet-70": {"quiet": 0.7},
}
MEMORY_BOUND, COMPUTE_BOUND = [*SETS][:-1], [*SETS][-1]
BARS = (
    *(Bar(name, "ttft_p99", peer, at_most=1 / 12) for name in MEMORY_BOUND for peer in BASELINES),
    *(Bar(name, "activation_wait_p99", at_most=2.5) for name in MEMORY_BOUND),
)
KEPT = ROOT / "build" / "overload.jsonl"


class Work(NamedTuple):
    """One simulation."""

    case: str
    subject: str
    system: System
    load: LoadOf


def works(quick: bool) -> list[Work]:
    """All runs, the longest first."""
    instances, few, shorter = (2, 2, 8.0) if quick else (INSTANCES, INSTANCES // 2, 1.0)
    names = MEMORY_BOUND[-1:] if quick else MEMORY_BOUND
    found = [
        Work(name, subject, system, LoadOf(name, few if system.stages > 1 else instances, shorter))
        for name in names
        for subject, system in SYSTEMS.items()
    ]
    compute, last = LoadOf(COMPUTE_BOUND, few, shorter), LoadOf(names[-1], few, shorter)
    found += [Work(COMPUTE_BOUND, name, SYSTEMS[name], compute) for name in ("preempt", OURS, "endless-memory")]
    endless = LoadOf(names[-1], few, shorter, endless=True)
    found += [Work(f"{names[-1]}/endless", name, SYSTEMS[name], endless) for name in ("preempt", OURS)]
    for ablation, changes in ABLATIONS.items():
        found.append(Work(f"{names[-1]}/{ablation}", OURS, System({"mode": "drop", **changes}), last))
    return sorted(found, key=lambda work: -_weight(work.system))  # stable


def _weight(system: System) -> int:
    """Pipelines are played sweep by sweep."""
    return 2 * (system.stages > 1) + int(system.overload["mode"] == "drop")


def run(work: Work) -> RunOutcome:
    return RunOutcome(**outcome(work.system, work.load))


def slo(outcomes: Mapping[str, RunOutcome]) -> dict[str, dict[str, float]]:
    """By system: shares of requests that miss F times the medians of the best baseline."""
    first, each = (min(outcomes[name].figures[metric] for name in BASELINES) for metric in ("ttft_p50", "tpot_p50"))
    return {
        name: {f"slo_{factor}": one.missed(factor * first, factor * each) for factor in range(1, 11)}
        for name, one in outcomes.items()
    }


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


@harness.claim(
    "In a simulated burst, P99 of first tokens is 12 times below preemption, swapping and migration with short prompts",
    of="parameter-dropping",
)
def main(options: Options, processes: int) -> None:
    report = Report("overload", {"instances": INSTANCES, "model": "Qwen-2.5-14B", "device": "H100"}, ())
    todo, outcomes = works(options.quick), dict[tuple[str, str], RunOutcome]()
    with multiprocessing.Pool(processes, keep, (KEPT, sources())) as pool:
        for work, found in zip(todo, pool.imap(run, todo), strict=True):
            outcomes[work.case, work.subject] = found
            print(f"{work.case} {work.subject}: first token P99 {found.figures['ttft_p99']:.2f} s", flush=True)
    for (case, subject), found in sorted(outcomes.items()):
        report.add(case, subject, found.figures)
    for case in dict.fromkeys(case for case, subject in outcomes if subject == BASELINES[-1]):
        for subject, shares in slo({subject: one for (of, subject), one in outcomes.items() if of == case}).items():
            report.add(case, subject, shares)
    for stages in (2, 4):
        for subject, figures in look_ahead(stages, 20 if options.quick else 200).items():
            report.add(f"lookahead/{stages}", subject, figures)
    harness.finish(report, options, BARS)


if __name__ == "__main__":
    parser = harness.parser(__doc__)
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes at a time (1)")
    chosen = parser.parse_args()
    main(Options(chosen.quick, chosen.json), chosen.jobs)
