"""Benchmark of model families: what training makes of lower tiers beside controls, the shipped family, memory of tiers.

    python benchmarks/family.py [--quick] [--json PATH]

The demo checkpoint (6 layers) with exits after 3 and 4 layers, examined on held-out prompts of its tasks: ``right`` is the
share of whole answers that are right, greedy, float32, with parameters rounded to bfloat16 as they are stored. ``steps``:
each tier is added by a stage of its own. Controls with as many steps of the same examples: ``cut`` (no training),
``at-once`` (all tiers from the first step), ``low-rank`` (terms of rank 8 and the heads), ``top-alone`` (fine-tuned without
exits). ``points_lost`` is what the top tier has less than ``top-alone``. ``shipped`` is examples/demo-tiers, with ``auto``
for a loss of one point. ``memory``: the bytes of parameters that a server has resident for all tiers, against the bytes of
distinct tensors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import harness
import torch
from harness import OURS, ROOT, Bar, Options, Report
from server import served

from blockwright.api.commands.training_data import DEMO, read_examples
from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.zoo.family.examples import IGNORED, TrainingExample, tensors
from blockwright.zoo.family.grading import answer_all, grade, tier_bytes
from blockwright.zoo.family.network import ChainNetwork
from blockwright.zoo.family.recipe import Recipe
from blockwright.zoo.family.training import Training, narrow

BASE, TIERS = ROOT / "examples" / "demo-checkpoint", ROOT / "examples" / "demo-tiers"
EXITS = (3, 4)
CUT = "cut"
STEPS = "steps"
ONCE = "at-once"
LOW_RANK = "low-rank"
ALONE = "top-alone"
SHIPPED = "shipped"
CONTROLS: dict[str, dict[str, Any]] = {
    CUT: {"steps": 0},
    STEPS: {},
    ONCE: {"at_once": True},
    LOW_RANK: {"rank": 8},
    ALONE: {"exits": ()},
}
STAND_ALONE = "a model of 4 layers by the demo's whole recipe takes 3,000 steps of 128 prompts; it is not trained yet"
GAP_CLOSED = 0.85
POINTS_LOST = 3.0
AUTO_LOSS = 2.0
RESIDENT = 0.02


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of training and examining."""

    steps: int = 32
    batch: int = 32
    rate: float = 1e-3
    examined: int = 40  # prompts of each task

    @classmethod
    def chosen(cls, quick: bool) -> Plan:
        return cls(steps=8, batch=16, examined=10) if quick else cls()

    def recipe(self, control: str) -> Recipe:
        more: dict[str, Any] = {"exits": EXITS, "steps": self.steps, **CONTROLS[control]}
        return Recipe(batch=self.batch, rate=self.rate, optimizer="muon", decay=0.01, **more)


BARS = [
    Bar(f"{STEPS}/4", "gap_closed", at_least=GAP_CLOSED),
    Bar(f"{STEPS}/6", "points_lost", at_most=POINTS_LOST),
    Bar(f"{SHIPPED}/4", "auto_loss", at_most=AUTO_LOSS),
    Bar(f"{SHIPPED}/4", "auto_work", at_most=1.0),
    Bar("memory", "of_distinct", at_least=1 - RESIDENT, at_most=1 + RESIDENT),
]


@torch.no_grad()
def shares(training: Training, examined: Sequence[TrainingExample]) -> dict[int, float]:
    """Return for each tier the share of greedy answers that are right: each of their tokens is the likeliest one."""
    network, right = training.network, dict[int, int]()
    weights = {name: one.to(network.dtypes[name]).float() for name, one in training.weights().items()}
    tiers = (network.layers, *training.recipe.exits)
    for i in range(0, len(examined), 100):
        tokens_BL, labels_BL = tensors(examined[i : i + 100])
        for layers, hidden_BLD in network.hidden(weights, tokens_BL, tiers).items():
            best_T = network.logits(weights, layers, hidden_BLD.flatten(0, 1)).argmax(-1)
            good_BL = (best_T.view(labels_BL.shape) == labels_BL) | (labels_BL == IGNORED)
            right[layers] = right.get(layers, 0) + int(good_BL.all(1).sum())
    return {layers: count / len(examined) for layers, count in right.items()}


def trained(plan: Plan, control: str) -> dict[int, float]:
    """Train one control and examine it."""
    base = Checkpoint.open(BASE)
    examples = read_examples(DEMO, base, demo=plan.steps * plan.batch)
    training = Training(base, plan.recipe(control), examples, bfloat16=narrow())
    for _ in range(training.recipe.steps):
        training.advance()
    return shares(training, read_examples(DEMO, base, held_out=plan.examined))


def compared(report: Report, plan: Plan) -> None:
    """Train and examine all controls."""
    found: dict[str, dict[int, float]] = {}
    for control in CONTROLS:
        found[control] = trained(plan, control)
        for layers, share in found[control].items():
            report.add(f"{control}/{layers}", OURS, {"right": share})
        print(control, found[control], flush=True)
    lost = 100 * (found[ALONE][6] - found[STEPS][6])
    report.add(f"{STEPS}/6", OURS, {"points_lost": lost})
    report.miss("stand-alone/4", OURS, STAND_ALONE)


def shipped(report: Report, plan: Plan) -> None:
    """Examine the family in the examples."""
    family = Checkpoint.open(TIERS)
    network, examined = ChainNetwork(family), read_examples(DEMO, family, held_out=plan.examined)
    ends = family.generation.eos_token_ids
    answers = answer_all(network, examined, ends, lambda done, total: None)
    for one in grade(network, examined, answers, ends, 1.0):
        report.add(f"{SHIPPED}/{one.layers}", OURS, {"right": one.right, "agrees": one.agrees})
        if one.held_out and one.oracle:
            auto = {"auto_loss": one.loss, "auto_up": one.held_out.up, "auto_work": one.held_out.work}
            report.add(f"{SHIPPED}/{one.layers}", OURS, {**auto, "oracle_work": one.oracle.work})


async def memory(report: Report) -> None:
    """Serve the family and read the bytes that are resident."""
    distinct, separate = tier_bytes(Checkpoint.open(TIERS))
    arguments = ("--workers", "1", "--dtype", "bfloat16", "--set", "memory=256MiB")
    async with served(TIERS, *arguments) as server:
        (worker,) = (await server.get("/admin/cluster"))["workers"]
    resident = int(worker["memory"]["parameters"])
    figures = {"resident_bytes": resident, "distinct_bytes": distinct, "separate_bytes": separate}
    report.add("memory", OURS, {**figures, "of_distinct": resident / distinct, "saved": 1 - resident / separate})


@harness.claim("Training in stages makes lower tiers of a checkpoint, beside controls of as many steps", of="families")
def main(options: Options) -> None:
    plan = Plan.chosen(options.quick)
    torch.set_num_threads(1)
    report = Report("family", {"steps": plan.steps, "batch": plan.batch, "rate": plan.rate, "examined": plan.examined})
    compared(report, plan)
    shipped(report, plan)
    asyncio.run(memory(report))
    harness.finish(report, options, BARS)


if __name__ == "__main__":
    main(harness.parse(__doc__))
