"""Commands that train a family and report on its tiers."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...policies.binary_size import binary_size
from ...policies.model.tiers import EXITS_FILE
from . import CommandError
from .output import FittedTable, print_tables
from .training_data import DATA_HELP, read_examples
from .zoo import zoo_refusals

if TYPE_CHECKING:
    from ...gpu.weights.checkpoint import Checkpoint
    from ...zoo.family.grading import TierGrade
    from ...zoo.family.recipe import Recipe
    from ...zoo.family.training import Training

MOST_EXAMPLES = 65536  # of the demo's tasks
LINES = 20  # of progress in a run
EXAMINED = 100  # held-out prompts of each of the demo's tasks


def family_train_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", metavar="FOLDER", help="checkpoint to begin from: folder, hub id, or ZOO/chains/NAME of a zoo"
    )
    parser.add_argument("out", metavar="OUT", help="the new folder")
    parser.add_argument("--exits", default="", metavar="K,K", help="layers of the lower tiers, as 8,16")
    parser.add_argument("--steps", type=int, required=True, metavar="N", help="optimizer steps in all")
    parser.add_argument("--data", required=True, metavar="FILE", help=DATA_HELP)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the run, as rate=1e-4; may be repeated",
    )


def family_train(arguments: argparse.Namespace) -> int:
    """Train a checkpoint and heads for its exits, so that its first layers are
    models of their own (knowledge precipitation).

    Each stage adds the next lower tier. The state is kept beside OUT every few
    steps; after an interruption the same command goes on from there, and ends with
    the same weights. The files are written when training has ended.
    """
    import torch

    from ...actors.resources import cores
    from ...zoo.family.folder import check_out, write_family
    from ...zoo.family.recipe import make_recipe
    from ...zoo.family.run_file import describe, run_path
    from ...zoo.family.training import Training, narrow

    out = Path(arguments.out).expanduser()
    with zoo_refusals():
        check_out(out)
        checkpoint = _whole(arguments.folder)
        exits = _exits(arguments.exits)
        recipe = make_recipe(exits, arguments.steps, checkpoint.config.layers, _settings(arguments.set))
        examples = read_examples(arguments.data, checkpoint, demo=min(MOST_EXAMPLES, recipe.steps * recipe.batch))
        out.parent.mkdir(parents=True, exist_ok=True)
        threads = recipe.threads or cores()
        torch.set_num_threads(threads)
        training = Training(checkpoint, recipe, examples, bfloat16=narrow())
        description = describe(checkpoint, training, examples, threads)
        losses = _train(training, run_path(out), description)
        report = {"from": checkpoint.path.name, "data": Path(arguments.data).name, **description["recipe"], "losses": losses}
        write_family(training, checkpoint, out, report)
        run_path(out).unlink(missing_ok=True)
    tiers = ", ".join(map(str, (*recipe.exits, checkpoint.config.layers)))
    print(f"{out}: tiers of {tiers} layers after {recipe.steps} steps")
    return 0


def _whole(folder: str) -> Checkpoint:
    """Open a whole model."""
    from ...zoo.source import open_source

    checkpoint = open_source(folder)
    if checkpoint.deltas:
        raise CommandError(f"{folder} is an adapter; name a whole model", 2)
    return checkpoint


def _exits(text: str) -> list[int]:
    parts = text.split(",") if text else []
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise CommandError(f"--exits is {text!r}; give numbers of layers separated by commas, as 8,16", 2)
    return [int(part) for part in parts]


def _settings(pairs: Sequence[str]) -> dict[str, str]:
    if wrong := next((pair for pair in pairs if "=" not in pair), ""):
        raise CommandError(f"--set {wrong!r} has no '='; write --set name=value", 2)
    return {name.strip(): value for name, _, value in (pair.partition("=") for pair in pairs)}


def _train(training: Training, path: Path, description: dict[str, Any]) -> dict[str, float]:
    """Train to the last step; return the last losses by tier."""
    from ...zoo.family.run_file import finite, resume, save_run

    recipe = training.recipe
    if resume(path, training, description):
        print(f"{path}: going on after step {training.step} of {recipe.steps}", flush=True)
    first, began = training.step, time.monotonic()
    while training.step < recipe.steps:
        training.advance()
        step = training.step
        if step % recipe.keep == 0 or step == recipe.steps:
            finite(training)
            save_run(path, training, description)
        if step % max(1, recipe.steps // LINES) == 0 or step == recipe.steps:
            left = (time.monotonic() - began) / (step - first) * (recipe.steps - step)
            print(progress_line(recipe, step, training.means, left), flush=True)
    return {str(layers): round(loss, 4) for layers, loss in training.means.items()}


def progress_line(recipe: Recipe, step: int, losses: Mapping[int, float], left: float) -> str:
    """Return the step, the losses of the tiers by layers, and the steps and seconds that are left."""
    said = ", ".join(f"{loss:.4f} of {layers} layers" for layers, loss in losses.items())
    more = recipe.steps - step
    return f"step {step} of {recipe.steps}: loss {said}; left: {more} step{'s' * (more != 1)}, {left:.0f} s"


def family_report_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="folder of a family")
    parser.add_argument("--data", required=True, metavar="FILE", help=DATA_HELP)
    parser.add_argument("--loss", type=float, metavar="POINTS", help="right answers in 100 that auto may lose; sets theta")


def family_report(arguments: argparse.Namespace) -> int:
    """Examine the tiers of a family on prompts with known answers, which it was not
    trained on.

    With --loss, half of the prompts choose theta, the confidence below which a
    request for auto goes up to the top tier. exits.json gets it for the exit where
    this costs least work. What it costs and gains is shown for the other half.
    """
    from ...zoo.family.folder import write_threshold
    from ...zoo.family.grading import answer_all, cheapest, grade, tier_bytes
    from ...zoo.family.network import ChainNetwork

    loss = arguments.loss
    if loss is not None and not 0 <= loss <= 100:
        raise CommandError(f"--loss is {loss:g}; give points from 0 to 100", 2)
    with zoo_refusals():
        family = _whole(arguments.folder)
        if not family.exits:
            raise CommandError(f"{arguments.folder} lists no exits; write {EXITS_FILE}, or run blockwright family train", 2)
        if loss is not None and not (family.path / EXITS_FILE).is_file():
            raise CommandError(f"{family.path} has no {EXITS_FILE} to write theta to; name the folder that was added", 2)
        examples = read_examples(arguments.data, family, held_out=EXAMINED)
        if loss is not None and len(examples) < 2:
            raise CommandError(f"{arguments.data} has 1 example; give at least 2, half of which choose theta", 2)
        ends = family.generation.eos_token_ids or family.config.eos_token_ids
        network = ChainNetwork(family)
        grades = grade(network, examples, answer_all(network, examples, ends, _tell), ends, 1.0 if loss is None else loss)
        print_tables(f"{len(examples):,} prompts, greedy, float32", grades_table(grades))
        distinct, separate = tier_bytes(family)
        print(f"parameters of all tiers: {binary_size(distinct)}; as separate models: {binary_size(separate)}")
        if loss is not None:
            print_tables(auto_table(grades))
            layers, rule = cheapest(grades)
            write_threshold(family.path, layers, rule)
            print(f"{family.path / EXITS_FILE}: auto begins with {layers} layers, theta for a loss of {loss:g} points")
    return 0


def grades_table(grades: Sequence[TierGrade]) -> FittedTable:
    """Return the share of whole answers that are right, and of answers that are the top tier's."""
    rows = [(f"{one.layers} layers", f"{one.right:.1%}", f"{one.agrees:.1%}") for one in grades]
    return FittedTable(("TIER", "RIGHT", "AS THE TOP"), rows, numbers=2)


def auto_table(grades: Sequence[TierGrade]) -> FittedTable:
    """Return what ``auto`` loses and saves with the chosen thresholds, and an oracle, on the prompts that did not choose."""
    rows = []
    for one in grades:
        if one.threshold and one.held_out and one.oracle:
            chosen = (one.threshold.measure, f"{one.threshold.theta:.4f}")
            shares = (one.held_out.up, one.held_out.work, one.oracle.work)
            rows.append((f"{one.layers} layers", *chosen, f"{one.loss:+.1f}", *(f"{share:.0%}" for share in shares)))
    return FittedTable(("AUTO FROM", "CONFIDENCE", "THETA", "LOSS", "GO UP", "WORK", "ORACLE'S WORK"), rows, numbers=5)


def _tell(done: int, total: int) -> None:
    """Show the progress, if standard error is a terminal."""
    if sys.stderr.isatty():
        print(f"\ranswering: {done} of {total}", end="\r" if done < total else "\n", file=sys.stderr, flush=True)
