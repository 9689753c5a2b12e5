"""The command that compares two applications of a zoo: which blocks of one may answer in place of the other's."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..drawing.heat_map import BAD, GOOD, HeatMap
from . import command_errors
from .block_names import block_name, component_names
from .output import FiguresFile, FittedTable, console_of, print_json, print_tables
from .training_data import DATA_HELP
from .zoo import add_zoo, waiting, zoo_refusals

if TYPE_CHECKING:
    from ...zoo.equivalence.comparison import ZooComparison
    from ...zoo.equivalence.records import StoredEquivalences

SECONDS = 5.0  # between two lines of progress


def zoo_equivalence_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("own", metavar="A", help="an application of the zoo")
    parser.add_argument("other", metavar="B", help="the application to compare it with")
    parser.add_argument(
        "--text", metavar="FILE", default="", help="probe text that neither was trained on (else from --data)"
    )
    parser.add_argument("--data", metavar="FILE", default="", help=f"prompts that lost answers are counted on: {DATA_HELP}")
    parser.add_argument("--threshold", type=float, default=0.98, metavar="X", help="least similarity of a pair (0.98)")
    parser.add_argument("--damage", type=float, default=1.0, metavar="POINTS", help="most answers in 100 lost by a swap (1)")
    parser.add_argument(
        "--kl", type=float, default=0.025, metavar="NATS", help="most change of the output, without answers (0.025)"
    )
    parser.add_argument("--png", metavar="FILE", default="", help="store the heat map as a picture")
    add_zoo(parser, json=True)


def zoo_equivalence(arguments: argparse.Namespace) -> int:
    """Find the blocks of two applications of a zoo that may answer for each other.

    A pair of blocks at the same relative depth counts if both hold: the states
    behind them predict the same tokens (similarity), and few answers are lost when
    only this block is swapped (damage). Without enough right answers, the change of
    the output decides. The results are stored in the zoo, by the content of the
    blocks; a comparison with the same data and limits is shown and not repeated.
    """
    import torch

    from ...actors.resources import cores
    from ...policies.adaptive.equivalence import EquivalenceLimits
    from ...zoo.equivalence.comparison import open_comparison
    from .probe_text import ComparisonData

    picture = FiguresFile("--png", arguments.png) if arguments.png else None
    with command_errors(ValueError):
        limits = EquivalenceLimits(arguments.threshold, arguments.damage, arguments.kl)
    with zoo_refusals():
        comparison = open_comparison(arguments.zoo, arguments.own, arguments.other)
        texts = ComparisonData(comparison.checkpoints, comparison.names)
        prompts, probe = texts.prompts_and_probe(arguments.data, arguments.text)
        torch.set_num_threads(cores())
        found = comparison.measure(probe, prompts, limits, progress=ComparisonProgress().show, waiting=waiting)
    view = equivalence_view(comparison, found)
    if picture is not None:
        picture.write(heat_map(view, whole_layers=False).canvas().png())
    if arguments.json:
        print_json(view)
    else:
        print_view(view)
    return 0


def equivalence_view(comparison: ZooComparison, found: Sequence[StoredEquivalences]) -> dict[str, Any]:
    """Return what is stored of a comparison, with the names of applications and components."""
    names, labels = comparison.names, [component_names(one) for one in comparison.components]
    limits = found[0].limits
    return {
        "applications": list(names),
        "tokens": found[0].tokens,
        "limits": {"similarity": limits.similarity, "damage": limits.damage, "kl": limits.kl},
        "components": [one[:-1] for one in labels],
        "similarities": [list(row) for row in found[0].similarities],
        "replaced": [
            {
                "application": names[way],
                "by": names[1 - way],
                "prompts": one.prompts,
                "right": one.right,
                "pairs": [
                    {
                        "name": block_name(labels[way], pair.place.first, pair.place.last),
                        "other_name": block_name(labels[1 - way], pair.place.other_first, pair.place.other_last),
                        "first": pair.place.first,
                        "last": pair.place.last,
                        "other_first": pair.place.other_first,
                        "other_last": pair.place.other_last,
                        "similarity": pair.similarity,
                        "low": pair.low,
                        "kl": pair.kl,
                        "lost": pair.lost,
                        "counts": pair.counts,
                        "refused": pair.refused(one.limits),
                    }
                    for pair in one.pairs
                ],
            }
            for way, one in enumerate(found)
        ],
    }


def heat_map(view: Mapping[str, Any], *, whole_layers: bool) -> HeatMap:
    """Return the map of similarities. ``whole_layers``: only behind whole layers.

    A cell is marked by the component or layer of the first application that ends there.
    """
    names, values = view["components"], view["similarities"]
    marks = {}
    for pair in sorted(view["replaced"][0]["pairs"], key=lambda one: one["last"] - one["first"], reverse=True):
        if pair["lost"] is not None or pair["kl"] is not None:  # it looks alike
            marks[pair["last"] - 1, pair["other_last"] - 1] = GOOD if pair["counts"] else BAD
    shown = [_layer_ends(one) if whole_layers else [*range(len(one))] for one in names]
    places = {(i, j): mark for (i, j), mark in marks.items() if i in shown[0] and j in shown[1]}
    one, other = view["applications"]
    return HeatMap(
        f"{one} (rows) and {other}: similarity in %",
        [names[0][i] for i in shown[0]],
        [names[1][j] for j in shown[1]],
        [[values[i][j] for j in shown[1]] for i in shown[0]],
        {(shown[0].index(i), shown[1].index(j)): mark for (i, j), mark in places.items()},
    )


def _layer_ends(names: Sequence[str]) -> list[int]:
    """Return the places of the components that end a layer, and of the embedding."""
    numbers = [name.rpartition(" ")[2] for name in names]
    return [i for i in range(len(names)) if i + 1 == len(names) or numbers[i] != numbers[i + 1]]


def print_view(view: Mapping[str, Any]) -> None:
    """Print the heat map, and for both ways a table of pairs."""
    console = console_of(120)
    made = heat_map(view, whole_layers=False)
    if made.width > console.width:
        made = heat_map(view, whole_layers=True)
    if made.width <= console.width:
        print_tables(f"{made.title}; {GOOD} counts, {BAD} only looks alike", *made.lines(), width=120)
    else:
        print(f"a heat map of {len(made.columns)} columns is wider than this terminal; --png FILE stores it")
    for way in view["replaced"]:
        print_tables("", way_line(view, way), pairs_table(way))


def way_line(view: Mapping[str, Any], way: Mapping[str, Any]) -> str:
    """Return the sentence above the table of one way."""
    counting = sum(pair["counts"] for pair in way["pairs"])
    if not way["prompts"]:
        answers = f"no prompts: the output may change by {view['limits']['kl']:g} nats"
    elif all(pair["kl"] is None for pair in way["pairs"]):
        answers = f"{way['right']:,} of {way['prompts']:,} prompts right; no pair was swapped"
    elif all(pair["lost"] is None for pair in way["pairs"] if pair["kl"] is not None):
        answers = f"{way['right']:,} of {way['prompts']:,} prompts right, too few to count losses: KL decides"
    else:
        answers = f"{way['right']:,} of {way['prompts']:,} prompts right"
    return (
        f"{way['application']} answered through blocks of {way['by']}: {counting} of {len(way['pairs'])} count ({answers})"
    )


def pairs_table(way: Mapping[str, Any]) -> FittedTable:
    """Return the pairs with their figures; LOST is in answers of 100."""
    rows = [
        (
            pair["name"],
            pair["other_name"],
            "yes" if pair["counts"] else pair["refused"],
            f"{pair['similarity']:.4f}",
            f"{pair['low']:.4f}",
            "-" if pair["kl"] is None else f"{pair['kl']:.4f}",
            "-" if pair["lost"] is None else f"{pair['lost']:+.2f}",
        )
        for pair in way["pairs"]
    ]
    return FittedTable(("BLOCK", "BY", "COUNTS", "SIMILARITY", "5 %", "KL", "LOST"), rows, numbers=4, least=("5 %", "BY"))


class ComparisonProgress:
    """Lines on standard error that say how much is left of the current step, every few seconds."""

    def __init__(self) -> None:
        self._last = self._began = time.monotonic()
        self._what, self._done = "", 0
        self._first = 0  # tokens that were done when the step began

    def show(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if what != self._what or done < self._done:
            self._what, self._began = what, now
            self._first = done
        self._done = done
        if self._first < done < total and now - self._last >= SECONDS:
            left = (now - self._began) / (done - self._first) * (total - done)
            print(f"{what}: {done:,} of {total:,} tokens; left of this step: {left:.0f} s", file=sys.stderr, flush=True)
            self._last = now
