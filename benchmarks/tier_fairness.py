"""Fairness between the tiers of a family, simulated: work and waits of tiers that always have a backlog.

    python benchmarks/tier_fairness.py [--json PATH]

A family of 20, 25 and 80 layers on one worker, in virtual time: the live sweep machine, and a device whose sweep takes a
fixed time and more for each token. All requests are there from the start, in three mixes of tiers. The work of a tier is its
tokens times their layers, until the first tier has no request waiting. JAIN is Jain's index over the tiers; a fluid server
would have 1. STARVED is the longest time for which a tier with a backlog started nothing. BOUND is the ageing and the
longest request. The second table has requests of all classes beside urgent ones that would fill the worker: the longest
wait of each class; BOUND is the ageing for each class above it, and the longest request. Ablations stand beside: OFF is
``tier_fairness=off``, NO AGEING is ``class_ageing=0``.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from blockwright.policies.model.chain import Block, Chain, Component, Hop, Kind, KvLayout, Route
from blockwright.policies.model.lineage import page_hashes
from blockwright.policies.plan.coefficients import Coefficients
from blockwright.policies.plan.cost import cost
from blockwright.policies.plan.sampling import SamplingParams
from blockwright.policies.plan.sweep_plan import SweepResult
from blockwright.policies.requests.routes_changed import RoutesChanged
from blockwright.policies.requests.urgency import urgency
from blockwright.policies.sweep.columns import Status
from blockwright.policies.sweep.config import SweepConfig
from blockwright.policies.sweep.events import Submission
from blockwright.policies.sweep.state import SweepState

LAYERS = (20, 25, 80)
MIXES = {"equal": (1 / 3, 1 / 3, 1 / 3), "80/20": (0.4, 0.4, 0.2), "20/80": (0.1, 0.1, 0.8)}
PACE = Coefficients(base=0.02, token=0.0004)
ROWS, PAGE, AGEING = 16, 16, 10.0
JAIN = 0.95  # bar


@dataclass(frozen=True, slots=True)
class Fairness:
    """The fairness of one run: Jain's index, the longest time without a start, and its bound, in seconds."""

    jain: float
    starved: float
    bound: float


def family() -> list[Chain]:
    """Return a top tier of 80 layers and its lower tiers."""
    layout = KvLayout(1, 8, "float32", PAGE)
    kinds = [Kind.EMBEDDING, *[Kind.ATTENTION, Kind.MLP] * LAYERS[-1]]
    body = [
        Component(f"{depth}".encode().ljust(16, b"."), kind, 1000, 8, 8, layout if kind is Kind.ATTENTION else None)
        for depth, kind in enumerate(kinds)
    ]
    chains = []
    for layers in reversed(LAYERS):
        head = Component(f"head {layers}".encode().ljust(16, b"."), Kind.HEAD, 10, 8, 8)
        lower = layers < LAYERS[-1]
        name = f"top:{layers}" if lower else "top"
        block = Block((*body[: 1 + 2 * layers], head))
        chains.append(Chain(name, (block,), 4096, family="top" if lower else ""))
    return chains


class Worker:
    """One worker in virtual time."""

    def __init__(self, **settings: object) -> None:
        chains = family()
        routes = [Route(f"{c.application}@w0", 1, c.application, (Hop("w0", 0, len(c.components)),)) for c in chains]
        numbers = {"budget": 1 << 32, "page_size": PAGE, "max_rows": ROWS, "prefix_cache": False, **settings}
        self.state = SweepState(SweepConfig(worker="w0", numerics="simulated", **numbers))  # type: ignore[arg-type]
        self.state.apply(RoutesChanged(1, chains, routes, routes), 0.0)
        self.now = 0.0

    def submit(self, name: str, layers: int, prompt: int, answer: int, service: str = "default") -> None:
        """Send a request to a tier."""
        model = f"top:{layers}" if layers < LAYERS[-1] else "top"
        tokens = [1] * prompt
        self.state.apply(
            Submission(
                request=name, attempt=1, gateway="g", route=f"{model}@w0", route_version=1, tokens=tokens,
                prompt_length=prompt, page_hashes=page_hashes(tokens, PAGE), max_length=prompt + answer, stop_tokens=[],
                sampling=SamplingParams(temperature=0.0), tenant="tenant", priority=urgency(service, 0), arrival=self.now,
            ),
            self.now,
        )  # fmt: skip

    def sweep(self) -> dict[int, int]:
        """Run a sweep; return the tokens computed of each tier, by layers."""
        plan = self.state.plan(self.now)
        assert plan is not None, "there is nothing to do"
        rows, found = self.state.parts.rows, dict.fromkeys(LAYERS, 0)
        for s, count in zip(self.state.batch(plan.number), plan.count, strict=True):
            found[layers_of(rows.submission[s].route)] += count
        self.now += cost(plan, PACE)
        self.state.commit(plan, SweepResult(plan.number, [1] * len(plan.sample)), self.now)
        self.state.take_effects()
        return found

    def waiting(self) -> dict[int, int]:
        """Return the number of waiting requests of each tier."""
        rows, found = self.state.parts.rows, dict.fromkeys(LAYERS, 0)
        for s in rows.with_status(Status.WAITING):
            found[layers_of(rows.submission[s].route)] += 1
        return found


def layers_of(route: str) -> int:
    """Return the layers of a route's tier."""
    model = route.partition("@")[0]
    return int(model.partition(":")[2] or LAYERS[-1])


def jain(values: Sequence[float]) -> float:
    """Return Jain's index of fairness: 1 if all are equal, 1 / n if one has all."""
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))


def backlog(mix: Sequence[float], fair: bool, requests: int = 500, seed: int = 0) -> Fairness:
    """Return the fairness between tiers that all have requests from the start."""
    worker, chance = Worker(tier_fairness=fair, class_ageing=AGEING), random.Random(seed)
    for number in range(requests):
        layers = chance.choices(LAYERS, mix)[0]
        worker.submit(f"r{number}", layers, chance.randint(20, 120), chance.randint(20, 80))
    work = dict.fromkeys(LAYERS, 0)
    began: dict[str, float] = {}
    started = dict.fromkeys(LAYERS, 0.0)
    starved = 0.0
    rows, longest = worker.state.parts.rows, 0.0
    waited = worker.waiting()
    while all(waited.values()):
        for layers, tokens in worker.sweep().items():
            work[layers] += tokens * layers
        left = worker.waiting()
        running = {rows.submission[s].request for s in worker.state.parts.queue.running}
        longest = max([longest, *[worker.now - began[name] for name in began.keys() - running]])
        began = {name: began.get(name, worker.now) for name in running}
        for layers in LAYERS:
            if left[layers] < waited[layers]:
                started[layers] = worker.now
            starved = max(starved, worker.now - started[layers])
        waited = left
    return Fairness(jain([work[layers] for layers in LAYERS]), starved, AGEING + longest)


def waits(ageing: float, seconds: float = 90.0, seed: int = 0) -> tuple[dict[str, float], float]:
    """Return the longest wait of each class, started or not, beside urgent requests that take all rows.

    Return the longest time that a request ran, too.
    """
    worker, chance = Worker(class_ageing=ageing, max_rows=4), random.Random(seed)
    came: dict[str, tuple[str, float]] = {}
    found = {"priority": 0.0, "default": 0.0, "flex": 0.0}
    number, began, longest = 0, dict[str, float](), 0.0
    while worker.now < seconds:
        queue = worker.state.parts.queue.ageing
        others = (("default", 0.02), ("flex", 0.02)) if worker.now < seconds - 30 else ()
        due = ["priority"] * max(0, 3 - queue.waits(-1)) + [name for name, odds in others if chance.random() < odds]
        for service in due:
            name, number = f"r{number}", number + 1
            came[name] = service, worker.now
            worker.submit(name, chance.choice(LAYERS), 40, 20, service)
        worker.sweep()
        running = {worker.state.parts.rows.submission[s].request for s in worker.state.parts.queue.running}
        longest = max([longest, *[worker.now - began[name] for name in began.keys() - running]])
        began = {name: began.get(name, worker.now) for name in running}
        for name in running & came.keys():
            service, at = came.pop(name)
            found[service] = max(found[service], worker.now - at)
    for service, at in came.values():
        found[service] = max(found[service], worker.now - at)
    return found, longest


def main(arguments: Sequence[str]) -> int:
    """Print the tables; return 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, help="file for the figures")
    path = parser.parse_args(arguments).json
    missed, figures = 0, dict[str, float]()
    print(f"{'MIX':8} {'JAIN':>6} {'OFF':>6} {'STARVED':>9} {'OFF':>7} {'BOUND':>7}")
    for name, mix in MIXES.items():
        fair, off = backlog(mix, fair=True), backlog(mix, fair=False)
        missed += fair.jain < JAIN or fair.starved > fair.bound
        figures |= {f"{name}/jain": fair.jain, f"{name}/jain/off": off.jain, f"{name}/starved": fair.starved}
        print(f"{name:8} {fair.jain:6.3f} {off.jain:6.3f} {fair.starved:7.2f} s {off.starved:5.2f} s {fair.bound:5.1f} s")
    (aged, longest), (never, _) = waits(AGEING), waits(0.0)
    print(f"\n{'CLASS':8} {'LONGEST WAIT':>12} {'NO AGEING':>10} {'BOUND':>8}")
    for above, service in enumerate(aged):
        bound = above * AGEING + longest if above else math.inf  # the urgent ones are a flood of their own making
        missed += aged[service] > bound
        figures |= {f"{service}/wait": aged[service], f"{service}/wait/off": never[service]}
        print(f"{service:8} {aged[service]:10.1f} s {never[service]:8.1f} s {bound:6.1f} s")
    if path is not None:
        path.write_text(json.dumps(figures, indent=1) + "\n")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
