"""The runs of ``offline.py``: batches, orders, ablations, and the figures taken from them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

from harness import OURS

ORDERS = {"dfs": "dfs", "dfs-weight": "dfs-weight", "lpm": "lpm", "random": "balance"}  # of the simulator, and as published
TRACES = {1: (1.4, 0.35), 2: (0.9, 0.35), 3: (1.4, 0.05), 4: (0.9, 0.05)}  # density, sharing
RHOS = tuple(round(0.80 + 0.05 * n, 2) for n in range(13))
SHARINGS = (0.05, 0.15, 0.25, 0.35, 0.45)
SEEDED = [(rho, sharing) for rho in RHOS[::4] for sharing in SHARINGS[::2]]  # points of the grid that are drawn again
SEEDS = 3  # draws of each of these, the grid's own included
CHATS = ("sharegpt", "wildchat", "azure")  # besides BurstGPT, of which traces and grid are made
COUNT = 40_000
QUICK = 10_000
LARGE = 200_000
OVERLAPS = ("ideal", "calibrated")
DFS = "nanoflow-dfs"
BALANCE = "nanoflow-balance"
VLLM = "vllm-dfs"
PACED = "-paced"  # the same order with our steps
PEERS = {"gain": DFS, "gain_paced": DFS + PACED, "gain_balance": BALANCE, "gain_vllm": VLLM}


def ablations() -> dict[str, Any]:
    from blockwright.policies.offline.order import OrderRules
    from blockwright.simulator.offline_orders import OfflineRules

    return {
        **{f"sampling-{100 * part:g}": OfflineRules(sampling=part) for part in (0.0, 0.001, 0.1, 1.0)},
        "split-off": OfflineRules(order=OrderRules(mode="off")),
        "split-paper": OfflineRules(order=OrderRules(mode="paper")),
        **{f"split-{100 * t:g}": OfflineRules(order=OrderRules(allowance=t)) for t in (0.0, 0.001, 0.05)},
        "merge-off": OfflineRules(order=OrderRules(likeness=0.0)),
        "half-and-half": OfflineRules(share=0.5),
        "target-1": OfflineRules(target=1.0),
        "steps-full": OfflineRules(paced=False),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A batch and the orders it is run in. ``paced``: of these, with our steps besides. ``changed``: ours with these rules,
    by name."""

    case: str
    rho: float
    sharing: float
    count: int
    chat: str = "burstgpt"
    seed: int = 0
    orders: Sequence[str] = ("dfs", "random")
    paced: Sequence[str] = ("dfs",)
    changed: Sequence[str] = ()
    lengths: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True, slots=True)
class Figures:
    """By subject its metrics under each back end; of the batch itself what is known. ``point``: density and sharing that
    were asked for."""

    case: str
    point: tuple[float, float] = (0.0, 0.0)
    subjects: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    batch: dict[str, float] = field(default_factory=dict)


def measure(run: Run) -> Figures:
    """All orders of one batch."""
    from blockwright.simulator.offline_orders import OfflineComparison, llama_8b_on_a100
    from blockwright.simulator.offline_workload import mixed

    engine = llama_8b_on_a100()
    batch = mixed(run.rho, run.sharing, run.count, engine.costs, chat=run.chat, lengths=run.lengths, seed=run.seed)
    began = time.process_time()
    comparison = OfflineComparison(engine, batch, run.seed)
    whole, tree = comparison.whole, comparison.tree
    found = Figures(run.case, (run.rho, run.sharing))
    found.batch.update(density=whole.rho, shared_tokens=tree.sharing, tree_s=time.process_time() - began)
    for order in run.orders:
        name, plain = f"nanoflow-{ORDERS[order]}", comparison.baseline(order)
        found.subjects[name] = {overlap: _metrics(plain, overlap) for overlap in OVERLAPS}
        if order in run.paced:
            paced = comparison.baseline(order, pace=whole.rho)
            found.subjects[name + PACED] = {overlap: _metrics(paced, overlap) for overlap in OVERLAPS}
        if order == "dfs":
            found.subjects[VLLM] = dict.fromkeys(OVERLAPS, _metrics(plain, "sequential"))
    rules = ablations()
    for name in (OURS, *run.changed):
        began = time.process_time()
        outcome = comparison.blended(rules[name]) if name in rules else comparison.blended()
        found.subjects[name] = {overlap: _metrics(outcome, overlap) for overlap in OVERLAPS}
        if name == OURS:
            found.batch["simulation_s"] = time.process_time() - began
    return found


def _metrics(outcome: Any, back_end: str) -> dict[str, float]:
    bound = back_end if back_end in OVERLAPS else "sequential"
    return {
        "tok_per_s": outcome.rate(back_end),
        "optimum_share": outcome.optimum_share(bound),
        "sharing_share": outcome.sharing_share,
        "stops": float(outcome.stops),
    }


def means(found: Sequence[Figures]) -> dict[str, dict[str, dict[str, float]]]:
    """Of many batches: by overlap and subject the mean of each metric; of ours also the mean, worst and best gain."""
    made: dict[str, dict[str, dict[str, float]]] = {}
    for overlap in OVERLAPS:
        made[overlap] = {}
        for subject in found[0].subjects:
            rows = [figures.subjects[subject][overlap] for figures in found]
            made[overlap][subject] = {metric: mean(row[metric] for row in rows) for metric in rows[0]}
        for name, peer in PEERS.items():
            gains = [gain(figures, overlap, peer) for figures in found]
            made[overlap][OURS] |= {f"mean_{name}": mean(gains), f"worst_{name}": min(gains), f"best_{name}": max(gains)}
        made[overlap][OURS]["worst_sharing"] = min(f.subjects[OURS][overlap]["sharing_share"] for f in found)
    return made


def spread(found: Sequence[Figures], overlap: str) -> dict[str, float]:
    """Of several draws of the same points: mean and worst gain, and the largest difference between two of one point."""
    gains: dict[tuple[float, float], list[float]] = {}
    for figures in found:
        gains.setdefault(figures.point, []).append(gain(figures, overlap, DFS))
    every = [one for those in gains.values() for one in those]
    return {
        "mean_gain": mean(every),
        "worst_gain": min(every),
        "gain_spread": max(max(those) - min(those) for those in gains.values()),
        "worst_sharing": min(figures.subjects[OURS][overlap]["sharing_share"] for figures in found),
        "draws": float(min(len(those) for those in gains.values())),
    }


def gain(figures: Figures, overlap: str, peer: str) -> float:
    """Our throughput by the peer's."""
    ours, theirs = (figures.subjects[subject][overlap]["tok_per_s"] for subject in (OURS, peer))
    return ours / theirs


def scheduling(count: int) -> dict[str, float]:
    """Microseconds of one step of the scanner among so many requests: one ends, and what fits then starts."""
    from array import array

    from blockwright.policies.offline.order import Unit
    from blockwright.policies.offline.scanner import DualScanner

    size = 200
    units = [
        Unit(array("i", range(at, min(at + size, count))), 10.0 - 9.9 * at / count, 1.0, size * 100, size * 150.0)
        for at in range(0, count, size)
    ]
    scanner = DualScanner(units, lambda request: 100.0 + request % 101, 450_000.0, 1.0)
    running: list[int] = []
    spent: list[float] = []
    while scanner.waiting:
        began = time.perf_counter()
        if running:
            scanner.finished(running.pop(len(running) // 2))
        while (admission := scanner.admit()) is not None:
            running.append(admission.request)
        spent.append(1e6 * (time.perf_counter() - began))
    spent.sort()
    return {"p50_us": spent[len(spent) // 2], "p99_us": spent[len(spent) * 99 // 100]}
