"""Stitches at each point between the demo checkpoint and a wider copy of it.

    python benchmarks/adaptive_stitches.py [--quick] [--json PATH]

The copy computes the same in another basis (``widened.py``), but for noise in its layers. ``similarity``: mean cosine of
the vocabulary probabilities of the chain that goes over at a point, on validation rows. ``least`` and ``loss_least``: the
same by least squares, whose matrix also serves all points. ``alone``: a stitch that was fitted and trained for this point
alone, with as many steps for it. ``above_least``: similarity less that of least squares, which must not be negative;
``loss_saved``: the same of the loss.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import harness
import torch
from adaptive import BASE, components
from harness import OURS, Bar, Options, Report
from widened import widened

from blockwright.api.commands.probe_text import ComparisonData
from blockwright.api.commands.training_data import DEMO
from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.policies.adaptive.stitches import StitchPoint, stitch_points
from blockwright.zoo.equivalence.stitch_fitting import StitchedPair, StitchTraining, fit
from blockwright.zoo.family.network import ChainNetwork

WIDE, NOISE = 208, 0.05
POINTS = 4
HELD_OUT = 8  # one row in 8


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of training: rows of text, and steps for each point."""

    rows: int = 800
    steps: int = 20

    @classmethod
    def chosen(cls, quick: bool) -> Plan:
        return cls(rows=64, steps=2) if quick else cls()


def chosen(points: list[StitchPoint]) -> list[StitchPoint]:
    """Return some points, from the first to the last."""
    last = len(points) - 1
    return [points[last * n // (POINTS - 1)] for n in range(POINTS)]


def case(point: StitchPoint) -> str:
    return f"stitch/{point.left}-to-{point.entered}"


def bars(cases: Sequence[str]) -> list[Bar]:
    return [Bar(one, figure, at_least=0.0) for one in cases for figure in ("above_least", "loss_saved")]


def stitches(report: Report, plan: Plan) -> list[str]:
    """Fit the stitches; return the cases of the points that were measured."""
    own = Checkpoint.open(BASE)
    (_, _), whole = ComparisonData((own, own), ("one", "two")).prompts_and_probe(DEMO, "")
    rows = random.Random(3).sample(whole.rows, min(plan.rows, len(whole.rows)))
    held_out, trained = rows[::HELD_OUT], [row for number, row in enumerate(rows) if number % HELD_OUT]
    training = StitchTraining(steps=plan.steps)

    def quiet(what: str, done: int, total: int) -> None:
        return None

    with tempfile.TemporaryDirectory() as scratch:
        other = Checkpoint.open(widened(BASE, Path(scratch) / "wide", WIDE, noise=NOISE))
        points = stitch_points(components(own), components(other))
        networks = ChainNetwork(own), ChainNetwork(other)
        some = chosen(points)
        found = fit(StitchedPair(*networks, some), trained, held_out, training, torch.float32, quiet)
        for point in some:
            alone = fit(StitchedPair(*networks, [point]), trained, held_out, training, torch.float32, quiet)
            kept, least = found.kept[point], found.least[point]
            figures = {"similarity": kept.similarity, "least": least.similarity, "alone": alone.kept[point].similarity}
            figures |= {"above_least": kept.similarity - least.similarity, "loss_saved": least.loss - kept.loss}
            figures |= {"loss": kept.loss, "loss_least": least.loss, "loss_alone": alone.kept[point].loss}
            report.add(case(point), OURS, figures)
            print(case(point), figures, flush=True)
    return [case(point) for point in some]


@harness.claim("A trained stitch is never worse than least squares at any point, on validation rows", of="adaptive")
def main(options: Options) -> None:
    plan = Plan.chosen(options.quick)
    torch.set_num_threads(1)
    report = Report("adaptive_stitches", {"rows": plan.rows, "steps": plan.steps, "width": WIDE, "noise": NOISE})
    harness.finish(report, options, bars(stitches(report, plan)))


if __name__ == "__main__":
    main(harness.parse(__doc__))
