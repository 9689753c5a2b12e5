"""The command that makes stitches between two applications of a zoo whose hidden states have different widths."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .block_names import component_names
from .output import FittedTable, print_json, print_tables
from .training_data import DATA_HELP
from .zoo import add_zoo, waiting, zoo_refusals
from .zoo_equivalence import ComparisonProgress

if TYPE_CHECKING:
    from ...policies.adaptive.stitches import StitchFigures
    from ...zoo.equivalence.stitch_records import StoredStitches
    from ...zoo.equivalence.stitcher import ZooStitching

MOST_STEPS = 100_000


def zoo_stitch_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("own", metavar="A", help="an application of the zoo")
    parser.add_argument("other", metavar="B", help="an application of another width, with the same tokenizer")
    parser.add_argument(
        "--text", metavar="FILE", default="", help="text to train on, another one than for 'zoo equivalence' (else --data)"
    )
    parser.add_argument("--data", metavar="FILE", default="", help=f"the same as prompts and answers: {DATA_HELP}")
    parser.add_argument("--steps", type=_steps, default=20, metavar="N", help="training steps for each point (20)")
    add_zoo(parser, json=True)


def _steps(text: str) -> int:
    if not text.isdecimal() or int(text) > MOST_STEPS:
        raise argparse.ArgumentTypeError(f"is {text!r}: give a number from 0 to {MOST_STEPS:,}")
    return int(text)


def zoo_stitch(arguments: argparse.Namespace) -> int:
    """Make the stitches between two applications of a zoo of different widths.

    A stitch takes the hidden states of one model to the states of the other, so
    that blocks of one can follow blocks of the other. Least squares comes first;
    then all points are trained together, from shallow to deep, with both models
    frozen. The result is kept only if it is at no point worse than least squares,
    on rows held out. 'blockwright zoo equivalence' then judges swaps with stitches.
    """
    import torch

    from ...actors.resources import cores
    from ...zoo.equivalence.stitch_fitting import StitchTraining
    from ...zoo.equivalence.stitcher import open_stitching
    from .probe_text import ComparisonData

    with zoo_refusals():
        stitching = open_stitching(arguments.zoo, arguments.own, arguments.other)
        rows = ComparisonData(stitching.checkpoints, stitching.names).stitch_rows(arguments.data, arguments.text)
        torch.set_num_threads(cores())
        plan = StitchTraining(steps=arguments.steps)
        found = stitching.make(rows, plan, progress=ComparisonProgress().show, waiting=waiting)
    view = stitch_view(stitching, found)
    if arguments.json:
        print_json(view)
    else:
        for direction in view["directions"]:
            print_tables(direction_line(direction), points_table(direction), "")
    return 0


def stitch_view(stitching: ZooStitching, found: Sequence[StoredStitches]) -> dict[str, Any]:
    """Return the stitches of both directions with their figures, and the names of applications and components."""
    names, labels = stitching.names, [component_names(one) for one in stitching.components]
    return {
        "applications": list(names),
        "directions": [
            {
                "from": names[way],
                "to": names[1 - way],
                "tokens": one.tokens,
                "points": [
                    {
                        "left": stitch.left,
                        "entered": stitch.entered,
                        "behind": labels[way][stitch.left - 1],
                        "before": labels[1 - way][stitch.entered],
                        "component": stitch.component,
                        "least_squares": _figures(stitch.least),
                        "trained": _figures(stitch.kept),
                    }
                    for stitch in one.stitches
                ],
            }
            for way, one in enumerate(found)
        ],
    }


def _figures(one: StitchFigures) -> dict[str, float]:
    return {"loss": one.loss, "distance": one.distance, "kl": one.kl, "similarity": one.similarity}


def direction_line(direction: Mapping[str, Any]) -> str:
    """Return the sentence above the table of a direction."""
    points = direction["points"]
    better = sum(one["trained"] != one["least_squares"] for one in points)
    return (
        f"from {direction['from']} to {direction['to']}: {len(points)} points with one matrix, trained on "
        f"{direction['tokens']:,} tokens; better than least squares at {better}"
    )


def points_table(direction: Mapping[str, Any]) -> FittedTable:
    """Return the points with their figures on rows held out: the loss and the similarity of the output."""
    rows = [
        (
            one["behind"],
            one["before"],
            f"{one['least_squares']['loss']:.4f}",
            f"{one['trained']['loss']:.4f}",
            f"{one['least_squares']['similarity']:.4f}",
            f"{one['trained']['similarity']:.4f}",
        )
        for one in direction["points"]
    ]
    columns = ("BEHIND", "BEFORE", "LEAST SQUARES", "TRAINED", "SIMILARITY", "TRAINED")
    return FittedTable(columns, rows, numbers=4, least=("BEFORE",))
