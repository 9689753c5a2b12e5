"""The plan of a batch: its figures before it runs, and its steps in several orders, as text for a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

from ...policies.offline.order import Unit, Weigher, density_order, waste
from ...policies.offline.prefix_tree import PrefixTree
from ...policies.offline.step_time import ideal, sequential
from ...simulator.offline_job import Engine
from ...simulator.offline_orders import OfflineComparison, OfflineOutcome, OfflineRules, columns
from ...simulator.offline_workload import OfflineWorkload
from .batch_lines import BatchRequests
from .batch_machine import PlannedMachine
from .output import FittedTable, print_tables
from .simulate_report import WIDTH, plot

REFUSED = 3  # refused lines that are shown
CLIPPED = 0.99  # share of the points of all plots below the upper limit
OTHERS = {"depth first": "dfs", "longest prefix": "lpm", "random": "random"}  # order -> its name in the simulator


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderCourse:
    """A batch in one order.

    ``compute``, ``memory``: seconds of a step, as the means over ``WIDTH`` parts of all steps. ``spread``: standard
    deviation of a step's time, divided by its mean. ``found``: share of prompt tokens found in the cache.
    """

    name: str
    steps: int
    found: float
    seconds: dict[str, float]  # execution model -> seconds
    spread: float
    compute: list[float]
    memory: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """The plan. ``whole``: all requests in the order that computes least. ``made``: seconds to build tree and order."""

    requests: BatchRequests
    machine: PlannedMachine
    tree: PrefixTree
    whole: Unit
    units: list[Unit]
    wasted: int
    made: float
    courses: list[OrderCourse]


def plan(requests: BatchRequests, machine: PlannedMachine) -> BatchPlan:
    """Order the batch, and simulate it in several orders. Raise ValueError for a request that never fits into memory."""
    began = time.perf_counter()
    tree = PrefixTree(requests.prompts)
    weigher = Weigher(tree, machine.costs, requests.limits)
    units, whole = density_order(weigher, memory=machine.positions), weigher.whole()
    made = time.perf_counter() - began
    clocks = {"sequential": sequential(machine.weights), "overlapped": ideal(machine.weights)}
    engine = Engine(costs=machine.costs, memory=machine.positions, weights=machine.weights, clocks=clocks)
    limits = requests.limits  # used as the lengths
    workload = OfflineWorkload(requests.prompts, limits, limits, limits, bytearray(tree.count), ("",))
    compared = OfflineComparison(engine, workload)
    found = {"density": compared.blended(OfflineRules(sampling=1.0))}
    found |= {name: compared.baseline(key) for name, key in OTHERS.items()}
    return BatchPlan(
        requests=requests,
        machine=machine,
        tree=tree,
        whole=whole,
        units=units,
        wasted=waste(tree, units),
        made=made,
        courses=[course_of(name, outcome, tree.tokens) for name, outcome in found.items()],
    )


def course_of(name: str, outcome: OfflineOutcome, tokens: int) -> OrderCourse:
    """Return the course of a simulation. ``tokens``: tokens of all its prompts."""
    counts, compute, memory = (outcome.course[first::3] for first in range(3))
    loads = [(c + m) / n for n, c, m in zip(counts, compute, memory, strict=True)]
    mean = (sum(compute) + sum(memory)) / sum(counts)
    parts = columns(outcome.course, WIDTH)
    squares = sum(n * (load - mean) ** 2 for n, load in zip(counts, loads, strict=True)) / sum(counts)
    return OrderCourse(
        name=name,
        steps=outcome.steps,
        found=outcome.found / tokens if tokens else 0.0,
        seconds=outcome.seconds,
        spread=squares**0.5 / mean if mean else 0.0,
        compute=[part[0] for part in parts],
        memory=[part[1] for part in parts],
    )


def show(title: str, planned: BatchPlan) -> None:
    """Print the plan on standard output."""
    for line in lines(title, planned):
        print(line)
    rows = [
        (
            course.name,
            f"{course.found:.1%}",
            f"{course.steps:,}",
            f"{course.spread:.2f}",
            *(f"{seconds:,.1f} s" for seconds in course.seconds.values()),
        )
        for course in planned.courses
    ]
    names = ("order", "found in cache", "steps", "variation", *planned.courses[0].seconds)
    print_tables(FittedTable(names, rows, numbers=5), width=120)
    print()
    points = sorted(value for course in planned.courses for value in course.compute + course.memory)
    top = points[int(CLIPPED * len(points))]
    print(f"seconds of a step over all steps; full height is {1000 * top:,.3g} ms or more")
    for course in planned.courses:
        print(f"  {course.name:14} computes {plot([min(value, top) for value in course.compute], top)}")
        print(f"  {'':14} reads    {plot([min(value, top) for value in course.memory], top)}")


def lines(title: str, planned: BatchPlan) -> Iterator[str]:
    """Yield the lines above the table."""
    requests, tree, whole, machine = planned.requests, planned.tree, planned.whole, planned.machine
    yield f"{title}: {tree.count:,} request{'s' * (tree.count != 1)}"
    if requests.refused:
        yield f"{len(requests.refused):,} line{'s' * (len(requests.refused) != 1)} would be refused"
        yield from (f"  line {number}: {why}" for number, why in requests.refused[:REFUSED])
    yield f"{tree.tokens:,} prompt tokens, {tree.distinct:,} of them distinct: {tree.sharing:.1%} is shared at best"
    yield f"{sum(requests.limits):,} tokens of answers at most, which is what counts here"
    by = f"measured by {machine.measured}" if machine.measured else "a guess; --profile gives what was measured"
    yield f"computing takes {whole.comp:,.1f} s, reading KV {whole.mem:,.1f} s ({by}): density {whole.rho:.3g}"
    yield f"a worker holds {machine.positions:,} tokens of KV"
    rhos = [unit.rho for unit in planned.units]
    share = planned.wasted / tree.tokens if tree.tokens else 0.0
    yield (
        f"{len(rhos):,} units of density {max(rhos):.3g} to {min(rhos):.3g} ({fmean(rhos):.3g} in the mean); "
        f"splitting computes {share:.2%} of the prompt tokens twice"
    )
    yield f"tree and order took {planned.made:.2f} s"
    yield ""
