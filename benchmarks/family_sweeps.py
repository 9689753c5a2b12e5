"""Benchmark of a family's choices: the weight of a lower tier's loss, and the threshold of ``auto``; no bars.

    python benchmarks/family_sweeps.py [--quick] [--json PATH]

``lambda``: the demo checkpoint with exits after 3 and 4 of 6 layers, trained in stages as by ``family.py`` with another
weight of the lower tiers' losses; ``right`` is the share of whole answers right on held-out prompts. ``loss``: the shipped
family (examples/demo-tiers) answered by ``auto`` from each exit, with the threshold chosen on every other prompt for that
many points; on the other prompts ``auto_loss`` is the points lost, ``auto_up`` the share of requests that go up, and
``auto_work`` the work relative to the top tier.
"""

from __future__ import annotations

from dataclasses import replace

import family
import harness
import torch
from harness import OURS, Options, Report

from blockwright.api.commands.training_data import DEMO, read_examples
from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.zoo.family.grading import answer_all, grade
from blockwright.zoo.family.network import ChainNetwork
from blockwright.zoo.family.training import Training, narrow

LAMBDAS = (0.3, 1.0, 3.0)
LOSSES = (0.0, 0.5, 1.0, 2.0, 5.0)  # points


def weighed(report: Report, plan: family.Plan, weight: float) -> None:
    """Train with one weight of the lower tiers and examine all tiers."""
    base = Checkpoint.open(family.BASE)
    recipe = replace(plan.recipe(family.STEPS), lambda_=weight)
    training = Training(base, recipe, read_examples(DEMO, base, demo=plan.steps * plan.batch), bfloat16=narrow())
    for _ in range(recipe.steps):
        training.advance()
    for layers, share in family.shares(training, read_examples(DEMO, base, held_out=plan.examined)).items():
        report.add(f"lambda{weight:g}/{layers}", OURS, {"right": share})
        print(weight, layers, share, flush=True)


def thresholds(report: Report, plan: family.Plan) -> None:
    """Grade the shipped family once, and choose a threshold for each loss."""
    shipped = Checkpoint.open(family.TIERS)
    network, examined = ChainNetwork(shipped), read_examples(DEMO, shipped, held_out=plan.examined)
    ends = shipped.generation.eos_token_ids
    answers = answer_all(network, examined, ends, lambda done, total: None)
    for points in LOSSES:
        for one in grade(network, examined, answers, ends, points):
            if one.held_out is not None:
                auto = {"auto_loss": one.loss, "auto_up": one.held_out.up, "auto_work": one.held_out.work}
                report.add(f"loss{points:g}/{one.layers}", OURS, auto)


def main(options: Options) -> None:
    plan = family.Plan.chosen(options.quick)
    torch.set_num_threads(1)
    report = Report(
        "family_sweeps", {"steps": plan.steps, "batch": plan.batch, "rate": plan.rate, "examined": plan.examined}
    )
    thresholds(report, plan)
    for weight in LAMBDAS:
        weighed(report, plan, weight)
    harness.finish(report, options)


if __name__ == "__main__":
    main(harness.parse(__doc__))
