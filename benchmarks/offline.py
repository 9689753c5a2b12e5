"""An offline batch in our order, beside the orders of other engines, on a simulated A100 with Llama-3.1-8B.

    python benchmarks/offline.py [--quick] [--json PATH] [--trace FILE]

BlendServe's four traces and its grid of 65 batches (density 0.80 to 1.40, sharing 5 to 45 %), 40,000 requests each of
BurstGPT, OpenVid and MMLU, whose lengths follow laws fitted to the paper's table. The engine, its memory, its prefix cache,
the admission rule and the estimates of lengths are the same for all orders. Steps of the others have as many tokens as
possible, as in chunked prefill. ``paced`` has their orders with our steps, which follow the batch's density, and
``steps-full`` ours with theirs. vLLM's and SGLang's rows do not overlap; NanoFlow's and ours do, ideally or with the mutual
slowdown of NanoFlow's kernels (``policies/offline/step_time.py``). ``large`` is trace 2 with 200,000 requests.
``optimum_share`` is the share of the time in which all compute and all memory traffic could overlap from beginning to end,
with every shared token computed once. ``seeds``: a part of the grid drawn three times, so that no figure depends on one
draw.

``--trace``: lengths of the chat requests of one further batch (any format of ``simulator/traces.py``).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import harness
from harness import OURS, Bar, Options, Report
from offline_runs import (
    CHATS,
    COUNT,
    LARGE,
    ORDERS,
    OVERLAPS,
    PEERS,
    QUICK,
    RHOS,
    SEEDED,
    SEEDS,
    SHARINGS,
    TRACES,
    Figures,
    Run,
    ablations,
    gain,
    means,
    measure,
    scheduling,
    spread,
)

SCANNED = 100_000
BARS = (
    Bar("sim/grid/ideal", "mean_gain", at_least=1.20),
    Bar("sim/grid/ideal", "worst_gain", at_least=1.10),
    Bar("sim/grid/calibrated", "optimum_share", at_least=0.90),
    *(Bar(f"sim/trace{n}/{overlap}", "sharing_share", at_least=0.97) for n in TRACES for overlap in OVERLAPS),
    Bar("sim/grid/ideal", "worst_sharing", at_least=0.97),
    Bar("sim/seeds/ideal", "worst_gain", at_least=1.10),
    Bar("sim/seeds/ideal", "worst_sharing", at_least=0.97),
    Bar("scanner/100000", "p99_us", at_most=200.0),
)


def runs(quick: bool, lengths: Sequence[tuple[int, int]] = ()) -> list[Run]:
    """All batches, those that take longest first."""
    count = QUICK if quick else COUNT
    found = [
        Run(
            case=f"sim/trace{n}", rho=rho, sharing=sharing, count=count, seed=n, orders=tuple(ORDERS),
            paced=("dfs", "random"),
            changed=() if quick and n > 1 else tuple(ablations()),
        )
        for n, (rho, sharing) in TRACES.items()
    ]  # fmt: skip
    found += [
        Run(case=f"sim/chat-{chat}", rho=1.1, sharing=0.25, count=count, chat=chat, seed=5)
        for chat in (() if quick else CHATS)
    ]
    if not quick:
        found.append(Run(case="sim/large", rho=0.9, sharing=0.35, count=LARGE, seed=3))
    if lengths:
        found.append(Run(case="sim/chat-file", rho=1.1, sharing=0.25, count=count, seed=6, lengths=lengths))
    rhos, sharings = (RHOS[::6], SHARINGS[::2]) if quick else (RHOS, SHARINGS)
    for sharing in sharings:
        found += [Run(case="sim/grid", rho=rho, sharing=sharing, count=count, seed=round(100 * rho)) for rho in rhos]
    for rho, sharing in () if quick else SEEDED:
        seeds = [1000 * more + round(100 * rho) for more in range(1, SEEDS)]
        found += [Run(case="sim/seeds", rho=rho, sharing=sharing, count=count, seed=seed) for seed in seeds]
    return found


def fill(report: Report, done: Sequence[Figures]) -> None:
    """Rows of the batches, and the means of the grid."""
    for figures in done:
        if figures.case in ("sim/grid", "sim/seeds"):
            continue
        for subject, metrics in figures.subjects.items():
            for overlap in OVERLAPS:
                report.add(f"{figures.case}/{overlap}", subject, metrics[overlap])
        for overlap in OVERLAPS:
            gains = {name: gain(figures, overlap, peer) for name, peer in PEERS.items()}
            report.add(f"{figures.case}/{overlap}", OURS, gains)
        report.add(figures.case, OURS, figures.batch)
    grid = [figures for figures in done if figures.case == "sim/grid"]
    for overlap, subjects in means(grid).items():
        for subject, figures_of in subjects.items():
            report.add(f"sim/grid/{overlap}", subject, figures_of)
    seeded = [figures for figures in done if figures.case == "sim/seeds"]
    points = {figures.point for figures in seeded}
    seeded += [figures for figures in grid if figures.point in points]
    for overlap in OVERLAPS if seeded else ():
        report.add(f"sim/seeds/{overlap}", OURS, spread(seeded, overlap))


@harness.claim("The simulated order has 1.2 times the throughput of depth-first order and 97 % of its sharing", of="offline")
def main(options: Options, lengths: Sequence[tuple[int, int]] = ()) -> None:
    from blockwright.policies.offline.admission import SPARE

    chosen = runs(options.quick, lengths)
    settings = {"requests": chosen[0].count, "grid": sum(run.case == "sim/grid" for run in chosen), "spare": SPARE}
    report = Report("offline", settings, ())
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        fill(report, list(pool.map(measure, chosen)))
    report.add(f"scanner/{SCANNED}", OURS, scheduling(SCANNED))
    harness.finish(report, options, BARS)


def trace(path: Path | None) -> list[tuple[int, int]]:
    from blockwright.simulator.traces import read_trace

    return [(one.prompt, one.output) for one in read_trace(path)] if path else []


if __name__ == "__main__":
    parser = harness.parser(__doc__)
    parser.add_argument("--trace", type=Path, metavar="FILE", help="lengths of chat requests")
    given = parser.parse_args()
    main(Options(given.quick, given.json), trace(given.trace))
