"""Fairness between the tiers of a family, simulated: work and waits of tiers that always have a backlog.

    python benchmarks/tier_fairness.py [--quick] [--json PATH]

A family of 20, 25 and 80 layers on one worker, in virtual time: the live sweep machine, and a device whose sweep takes a
fixed time and more for each token. All requests are there from the start, in three mixes of tiers. The work of a tier is its
tokens times their layers, until the first tier has no request waiting. ``jain`` is Jain's index over the tiers; a fluid
server would have 1. ``starved_s`` is the longest time for which a tier with a backlog started nothing, ``of_bound`` the same
over the ageing and the longest request. ``class``: requests of all classes beside urgent ones that would fill the worker;
``wait_s`` is the longest wait of each class, ``of_bound`` the same over the ageing of the classes above it and the longest
request. Subjects beside ours are ablations: ``off`` is ``tier_fairness=off``, ``no-ageing`` is ``class_ageing=0``. Virtual
time is exact: each figure is the same on any machine.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import harness
from harness import OURS, Bar, Options, Report

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
MIXES = {"equal": (1 / 3, 1 / 3, 1 / 3), "80-20": (0.4, 0.4, 0.2), "20-80": (0.1, 0.1, 0.8)}  # of requests
PACE = Coefficients(base=0.02, token=0.0004)
ROWS = 16
PAGE = 16
AGEING = 10.0
OFF, NO_AGEING = "off", "no-ageing"
JAIN = 0.95
BARS = (
    *(Bar(mix, "jain", at_least=JAIN) for mix in MIXES),
    *(Bar(mix, "of_bound", at_most=1.0) for mix in MIXES),
    *(Bar(f"class/{service}", "of_bound", at_most=1.0) for service in ("default", "flex")),
)


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
    number = 0
    began = dict[str, float]()
    longest = 0.0
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


@harness.claim("The work of a family's tiers is shared fairly, and no tier with a backlog starves", of="families")
def main(options: Options) -> None:
    requests, seconds = (120, 45.0) if options.quick else (500, 90.0)
    report = Report("tier_fairness", {"layers": LAYERS, "requests": requests, "seconds": seconds, "ageing": AGEING}, ())
    for name, mix in MIXES.items():
        for subject, fair in ((OURS, True), (OFF, False)):
            found = backlog(mix, fair, requests)
            figures = {"jain": found.jain, "starved_s": found.starved, "of_bound": found.starved / found.bound}
            report.add(name, subject, figures)
    for subject, ageing in ((OURS, AGEING), (NO_AGEING, 0.0)):
        found_s, longest = waits(ageing, seconds)
        for above, (service, wait) in enumerate(found_s.items()):
            bound = {"of_bound": wait / (above * AGEING + longest)} if above and ageing else {}
            report.add(f"class/{service}", subject, {"wait_s": wait} | bound)
    harness.finish(report, options, BARS)


if __name__ == "__main__":
    main(harness.parse(__doc__))
