"""A thousand simulated workers: one cell or eight, a head that is away, workers that are cut off, a roll; messages.

    python benchmarks/cells.py [--quick] [--json PATH] [--workers N] [--trace FILE] [--jobs N]

The policies are the live ones (docs/simulator.md). A worker is a declared server of 200 GB/s and 3 TFLOP/s with a model of 3
billion parameters in bfloat16 (``cells_runs.COSTS``); lengths are those of Azure's conversation trace (the whole one where a
folder above this checkout has shared/traces, or the committed sample), prompts cut at 2,048 tokens; arrivals are Poisson,
0.25 a second for each worker. Requests of the first 10 s are not counted.

``cells/..``: seconds to first tokens with one cell, and with 8 of an eighth of the workers behind a balancer that hashes the
session or the model of a request (32 models, the n-th with a share of 1 / n); 8 gateways in all. They know workers exactly;
or as they were up to 500 or 2,000 ms ago, and of the requests since then their own; or (``alone``, as live gateways) nothing
but their own requests. ``random``, ``round-robin`` and ``power-of-two`` are policies of the routers of vLLM and SGLang, each
of one process; ours is least work. ``choice/..``: the gateway's processor time to choose.

``outage/..``, always with a burst of twice the traffic for 10 s from 14 s on: nothing else (``undisturbed``); a tenth of the
workers die in turn from 12 s on while the head stays, or is away for 10 or 60 s; a tenth is cut off for 30 s and comes back
warm or cold; a roll with 2 % surge, in which sequences are computed again elsewhere or end on the drained worker.
``ratio``: P99 over the undisturbed one. ``read_models``: parameters read after the start, in models.

``messages``: a second, beside section 9 of the design. ``distribution``: to workers without files, by the live controller.
``rest``: the head's node at rest (``controller_node.py``).

The result of each run is stored in ``build/``, so that an interrupted benchmark continues, as long as the sources are equal.
"""

from __future__ import annotations

import asyncio
import functools
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cells_messages
import cells_runs as runs
import controller_step
import harness
from cells_distribution import Distribution
from cells_runs import Traffic
from controller_node import node
from harness import OURS, ROOT, Bar, Options, Report
from scheduling_kept import keep, kept

CELLS = GATEWAYS = 8
EXACT, ALONE = "exact", "alone"
KNOWN: dict[str, dict[str, Any]] = {
    EXACT: {},
    "500ms": {"staleness": 0.5, "in_flight": "own"},
    "2000ms": {"staleness": 2.0, "in_flight": "own"},
    ALONE: {"in_flight": "alone"},
}
ROUND_ROBIN, TWO = "round-robin", "power-of-two"
POLICIES: dict[str, dict[str, Any]] = {
    "random": {"policy": "random"},
    ROUND_ROBIN: {"policy": "round-robin"},
    TWO: {"choices": 2},
    OURS: {},
}
INFORMED = (TWO, OURS)  # policies that know anything of workers
KEPT = ROOT / "build" / "cells.jsonl"
BURST, LOST = 10.0, 12.0  # seconds of the burst; when the head is lost and workers begin to die
SURGE = 0.02
APPLICATIONS, WHOLE_EVERY = 10, 60.0  # at rest: models; seconds between two whole publications for all gateways
UNDISTURBED = "outage/undisturbed"
OUTAGES = ("outage/head-0s", "outage/head-10s", "outage/head-60s", "outage/cut-warm", "outage/cut-cold", "outage/roll-again",
           "outage/roll-grace")  # fmt: skip
BARS = [
    *(Bar(case, metric, at_most=0.0) for case in (UNDISTURBED, *OUTAGES) for metric in ("lost", "doubled")),
    Bar("outage/cut-warm", "read_models", at_most=0.0),
    Bar("distribution", "rounds_over", at_most=0.0),
    Bar("distribution", "origin_share", at_most=1.1),
    Bar("messages", "head_per_s", "section 9", at_most=1.0),
    Bar("messages", "gateway_reports_per_s", "section 9", at_most=1.0),
    Bar("rest", "core_share", at_most=0.05),
]


@dataclass(frozen=True, slots=True)
class Plan:
    """The size of the simulations. cells, outages: seconds of requests. away: seconds without a head, one run for each."""

    workers: int = 1000
    cells: float = 20.0
    outages: float = 75.0
    away: tuple[float, ...] = (0.0, 10.0, 60.0)
    alive: float = 60.0  # seconds in which workers die
    seed: int = 1

    @classmethod
    def chosen(cls, quick: bool, workers: int) -> Plan:
        if quick:
            return cls(workers or 64, cells=25.0, outages=45.0, away=(0.0, 10.0), alive=20.0)
        return cls(workers or 1000)


Job = tuple[str, str, Callable[[], dict[str, float]]]  # case, subject, what is measured


@kept
def cells(plan: Plan, by: str, dispatch: Mapping[str, Any], trace: Path | None) -> dict[str, float]:
    """Simulate one cell (``by`` is empty) or several; seconds to first tokens of all together."""
    traffic = Traffic(workers=plan.workers, seconds=plan.cells, seed=plan.seed)
    demands = runs.requests(traffic, runs.lengths(trace))
    if not by:
        return runs.first_tokens([runs.cluster(plan.workers, demands, {"dispatch": dispatch})])
    parts = runs.split(demands, runs.keys(traffic, len(demands), by), CELLS)
    found = runs.first_tokens([runs.cluster(plan.workers // CELLS, part, {"dispatch": dispatch}) for part in parts])
    return found | {"fullest": CELLS * max(map(len, parts)) / len(demands)}


def cell_jobs(plan: Plan, trace: Path | None) -> Iterator[Job]:
    """Yield the runs of one cell and of several, by policy and age of state."""
    for age, known in KNOWN.items():
        for name, spec in POLICIES.items():
            informed = name in INFORMED
            if age != EXACT and not informed:
                continue
            for by in ("", "session", "model") if age == EXACT else ("", "session"):
                more = {**spec, **known, "dispatchers": 1 if by or not informed else GATEWAYS}
                yield f"cells/{f'by-{by}' if by else 'one'}/{age}", name, functools.partial(cells, plan, by, more, trace)


def outage_jobs(plan: Plan, trace: Path | None) -> Iterator[Job]:
    """Yield the runs with outages, and the undisturbed one."""
    workers, dying = plan.workers, max(1, plan.workers // 10)
    traffic = Traffic(workers=workers, seconds=plan.outages, seed=plan.seed, burst=BURST)
    deaths = [{"instance": f"w-{n}", "at": LOST + (n + 0.5) * plan.alive / dying} for n in range(dying)]
    cases: dict[str, dict[str, Any]] = {UNDISTURBED: {}}
    for away in plan.away:
        cases[f"outage/head-{away:.0f}s"] = {"deaths": deaths, "heads": [{"at": LOST, "away": away}] if away else []}
    for name, warm in (("warm", True), ("cold", False)):
        cases[f"outage/cut-{name}"] = {"cuts": [{"at": LOST, "seconds": min(30.0, plan.alive), "warm": warm}]}
    for case, more in cases.items():
        yield case, OURS, functools.partial(disturbed, workers, traffic, more, trace)
    surge = max(1, round(SURGE * workers))
    for name, grace in (("again", 0.0), ("grace", 30.0)):
        more = {"roll": {"at": LOST, "surge": surge / workers}, "provisioning": {"grace": grace}}
        yield f"outage/roll-{name}", OURS, functools.partial(disturbed, workers + surge, traffic, more, trace)


@kept
def disturbed(workers: int, traffic: Traffic, more: Mapping[str, Any], trace: Path | None) -> dict[str, float]:
    """Simulate one cell with outages."""
    return runs.interrupted(workers, runs.requests(traffic, runs.lengths(trace)), more)


def add_messages(report: Report, plan: Plan, trace: Path | None) -> None:
    """Count the messages of some workers, and those of all by their number, beside the design's estimate."""
    some = min(plan.workers, 32)
    traffic = Traffic(workers=some, seconds=30.0, seed=plan.seed, rate=2.0)
    one = cells_messages.per_worker(some, runs.requests(traffic, runs.lengths(trace)), GATEWAYS, 10.0, 30.0)
    ours = {"head_per_s": cells_messages.heartbeats(plan.workers, GATEWAYS), "sweeps_per_s": one["sweeps"]}
    joined = {"gateway_reports_per_s": plan.workers * one["reports"], "joined_reports_per_s": plan.workers * one["joined"]}
    report.add("messages", OURS, {**ours, **joined, "gateway_beats_per_s": 2 * plan.workers / cells_messages.HEARTBEAT})
    design = {
        "head_per_s": 4.0 * (plan.workers + GATEWAYS),
        "sweeps_per_s": 20.0,
        "gateway_reports_per_s": 20.0 * plan.workers,
    }
    report.add("messages", "section 9", design)


def choice_microseconds(routes: int) -> float:
    """Return the processor time of one choice of least work among as many routes."""
    from blockwright.policies.model.chain import Hop, Route
    from blockwright.policies.requests.dispatch import choose

    all_routes = [Route(f"m@w{n}", 1, "m", (Hop(f"w{n}", 0, 3),)) for n in range(routes)]
    work = {f"w{n}": n * 7919 % 5000 for n in range(routes)}
    room = {one.id: 140_000 for one in all_routes}
    spent = []
    for _ in range(20):
        began = time.process_time()
        choose(all_routes, work, tokens=900, capacity=room)
        spent.append(time.process_time() - began)
    return 1e6 * min(spent)


def add_distribution(report: Report, workers: int) -> None:
    found = Distribution(workers)
    found.run()
    figures = {"rounds": float(found.rounds), "rounds_over": float(max(0, found.rounds - found.bound))}
    report.add("distribution", OURS, {**figures, "origin_share": found.origin_share, "head_s": found.head_seconds})


def add_rest(report: Report, workers: int, seconds: float) -> None:
    """Measure the head's node at rest, with whole publications for all gateways once in a while."""
    state = controller_step.at_rest(workers, APPLICATIONS)
    beats = asyncio.run(node(state, cells_messages.HEARTBEAT, seconds))
    whole = controller_step.publication(state)["encode_ms"] / 1e3
    figures = {"beats_share": beats, "publication_s": whole, "core_share": beats + GATEWAYS * whole / WHOLE_EVERY}
    report.add("rest", OURS, figures)


def measured(job: Job) -> dict[str, float]:
    return job[2]()


@harness.claim("No request is lost or answered twice while the head of 1,000 simulated workers is away", of="simulator")
def main(options: Options, plan: Plan, trace: Path | None = None, processes: int = 1) -> None:
    settings = {
        "workers": plan.workers,
        "cells": CELLS,
        "gateways": GATEWAYS,
        "rate": runs.RATE,
        "lengths": len(runs.lengths(trace)),
    }
    report = Report("cells", {**settings, "costs": asdict(runs.COSTS)}, ())
    add_distribution(report, plan.workers)
    add_rest(report, plan.workers, 10.0 if options.quick else 60.0)
    for routes in (plan.workers // CELLS, plan.workers):
        report.add(f"choice/{routes}", OURS, {"cpu_us": choice_microseconds(routes)})
    add_messages(report, plan, trace)
    jobs = [*outage_jobs(plan, trace), *cell_jobs(plan, trace)]
    with multiprocessing.Pool(processes, keep, (KEPT, runs.sources(trace)), maxtasksperchild=1) as pool:
        for (case, subject, _), found in zip(jobs, pool.imap(measured, jobs, chunksize=1), strict=True):
            report.add(case, subject, found)
            print(case, subject, {name: round(value, 3) for name, value in found.items()}, flush=True)
    least = report.median(UNDISTURBED, "ttft_p99_s", OURS)
    for case in [one for one, _, _ in jobs if one.startswith("outage/") and least]:
        report.add(case, OURS, {"ratio": (report.median(case, "ttft_p99_s", OURS) or 0.0) / (least or 1.0)})
    played = {case for case, _, _ in jobs}
    harness.finish(report, options, [bar for bar in BARS if bar.case not in OUTAGES or bar.case in played])


if __name__ == "__main__":
    parser = harness.parser(__doc__)
    parser.add_argument("--workers", type=int, default=0, metavar="N", help="of all cells together (1,000; 64 with --quick)")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="a trace with the lengths of requests")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="processes at a time (one per core)")
    chosen = parser.parse_args()
    main(Options(chosen.quick, chosen.json), Plan.chosen(chosen.quick, chosen.workers), chosen.trace, chosen.jobs)
