"""Benchmark of KV of conversations that are away: copies ahead of their return, and cold KV that moves or goes first.

    python benchmarks/adaptive_absent.py [--quick] [--json PATH]

Simulated, with fixed costs and links, so the figures are the same on any machine. Conversations of four requests come back
with their history after a pause. ``ahead``: all of them begin alike, so one of three instances owns their KV, and the link
is too slow to copy it in time; ``proactive_copies`` against none. ``cold``: a small cache and a large one. ``short``: two
small ones. Both compare ``cold_kv=least-waste`` with LRU. ``first_s``: mean time to the first token. ``cached``: share of
the prompt tokens that were found. ``moved``: tokens of KV that were copied. ``saved``: part of ``first_s`` that the rule
saves; there is no ideal, so no bar.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import harness
from harness import OURS, Options, Report

WITHOUT = "without"
COSTS = {"base": 0.01, "token": 1e-4, "context": 1e-6}
KV_BYTES = 8
TURNS, ANSWER = 4, 40  # requests of a conversation, tokens of an answer
MORE = (8, 24)  # tokens that each turn adds


@dataclass(frozen=True, slots=True)
class Case:
    """One setting. blocks: pages of KV of each instance. common: tokens with which all begin. gap: mean seconds between two.

    bandwidth: bytes of KV a second. rule: what is compared with nothing.
    """

    blocks: tuple[int, ...]
    bandwidth: float
    conversations: int
    pause: float
    gap: float
    common: int
    rule: Mapping[str, Any]


COLD = {"cold_kv": "least-waste"}
CASES = {
    "ahead": Case((9000, 9000, 9000), 4000.0, 50, 4.0, 0.3, 600, {"proactive_copies": True}),
    "cold": Case((900, 20_000), 20_000.0, 40, 10.0, 0.4, 0, COLD),
    "short": Case((900, 900), 20_000.0, 40, 10.0, 0.4, 0, COLD),
}


def conversations(case: Case, seed: int) -> list[Any]:
    """Return the requests in the order of their times."""
    from blockwright.simulator.workload import WorkloadRequest

    source, asked = Random(seed), list[tuple[float, tuple[int, ...]]]()
    begins, first = 0.0, (50, 300) if case.common else (200, 900)
    for number in range(case.conversations):
        begins += source.expovariate(1 / case.gap)
        at, tokens = begins, [7] * case.common + [number + 10] * source.randint(*first)
        for turn in range(TURNS):
            asked.append((at, tuple(tokens)))
            tokens = tokens + [100_000 + 10 * number + turn] * source.randint(*MORE)
            at += source.expovariate(1 / case.pause)
    return [WorkloadRequest(n, at, "m", len(one), ANSWER, tokens=one) for n, (at, one) in enumerate(sorted(asked))]


def run(case: Case, rule: Mapping[str, Any], requests: list[Any]) -> dict[str, float]:
    """Return the figures of one run."""
    from blockwright.policies.plan.coefficients import Coefficients
    from blockwright.simulator.description import DescriptionSource, scenario
    from blockwright.simulator.simulation import ClusterSimulation

    each = {"count": 1, "profile": "fixed", "page_size": 4, "max_rows": 8, "sweep_tokens": 64, "chunk_size": 64}
    table = {
        "workload": {"rate": 1.0, "input_tokens": 1, "output_tokens": 1},
        "models": [{"name": "m", "kv_bytes": KV_BYTES, "context": 2000}],
        "links": {"latency": 1e-3, "bandwidth": case.bandwidth},
        "dispatch": {"kv_dispatch": "owner", **rule},
        "instances": [{**each, "name": f"i{n}", "blocks": many, "prefix_cache": True} for n, many in enumerate(case.blocks)],
    }
    made = scenario(table, DescriptionSource(Path("adaptive_absent"), ""))
    simulation = ClusterSimulation(made, [Coefficients.from_table(COSTS)] * len(case.blocks), requests)
    simulation.run()
    assert not any(one.failed for one in simulation.requests), "every request fits"
    found = sum(one.state.counters.get("cached_tokens", 0) for one in simulation.instances)
    moved = simulation.kv_copies.moved if simulation.kv_copies is not None else 0
    first = sum(one.first - one.demand.at for one in simulation.requests) / len(requests)
    return {"first_s": first, "cached": found / sum(one.prompt for one in requests), "moved": moved / KV_BYTES}


@harness.claim(
    "Copies of KV ahead of a return, and cold KV that goes to a cache with room, save time to the first token", of="adaptive"
)
def main(options: Options) -> None:
    report = Report("adaptive_absent", {"costs": COSTS, "turns": TURNS, "answer": ANSWER}, ())
    for name, case in CASES.items():
        for seed in range(1, 2 if options.quick else 6):
            requests = conversations(case, seed)
            without, ours = run(case, {}, requests), run(case, case.rule, requests)
            report.add(name, WITHOUT, without)
            report.add(name, OURS, ours | {"saved": 1 - ours["first_s"] / without["first_s"]})
    harness.finish(report, options)


if __name__ == "__main__":
    main(harness.parse(__doc__))
