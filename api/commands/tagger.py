"""The commands that train and show an estimator of answer lengths."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from . import CommandError, command_errors
from .output import FittedTable, print_tables

LEAST = 20  # requests to train on
MOST_PASSES = 20
ENOUGH = 40_000  # lessons after which training stops, but not before LEAST_PASSES passes
LEAST_PASSES = 3
PARTS = ("relative_error", "acc_50", "acc_100")


def tagger_train_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "log", metavar="LOG", type=Path, help="request log: a file, or a folder with the files of all gateways"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, default="tagger.json", help="file to write (tagger.json)"
    )
    parser.add_argument(
        "--held-out", metavar="PART", type=_part, default=0.2, help="share of the requests to evaluate on (0.2)"
    )


def _part(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"is {text!r}; give a part between 0 and 1")
    return value


def tagger_train(arguments: argparse.Namespace) -> int:
    """Train an estimator of answer lengths on past requests, and evaluate it on
    requests that were held out.

    LOG is a file or folder written by a server with --set request_log=FOLDER. The
    latest requests are held out. On them, the trained estimator is compared with
    the history of each model, which needs no training, and with a constant. Serve
    with the result by --set tagger=trained:FILE.
    """
    import random

    from ...actors.tagger.model_file import TaggerFile, write_tagger
    from ...actors.tagger.request_log import RequestLogError, read_requests
    from ...policies.prediction.length_models import compared

    with command_errors(RequestLogError):
        lessons = read_requests(arguments.log)
    known = len(lessons) - round(len(lessons) * arguments.held_out)
    if known < LEAST or known == len(lessons):
        message = f"{arguments.log} has {len(lessons)} requests, {known} of them to train on; serve until there are {LEAST}"
        raise CommandError(f"{message} and some to hold out", 2)
    draw = random.Random(0)  # the same log makes the same file
    passes = max(LEAST_PASSES, min(MOST_PASSES, ENOUGH // known))
    orders = (draw.sample(range(known), known) for _ in range(passes))
    model, figures = compared(lessons[:known], lessons[known:], orders)
    try:
        write_tagger(arguments.output, TaggerFile(model, figures=figures))
    except OSError as error:
        raise CommandError(f"{arguments.output}: {error.strerror}; name another file with -o") from None
    print_tables(figures_table(figures))
    print(f"{arguments.output}: serve with it by --set tagger=trained:{arguments.output}")
    return 0


def tagger_show_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", metavar="FILE", type=Path, help="file written by blockwright tagger train, or kept by a tagger"
    )


def tagger_show(arguments: argparse.Namespace) -> int:
    """Show an estimator of answer lengths: how much it has learned, and how good it
    was on the requests that were held out.
    """
    from ...actors.tagger.model_file import TaggerFileError, read_tagger

    with command_errors(TaggerFileError):
        file = read_tagger(arguments.file)
    state = file.estimator.snapshot()
    size = f"{state['lessons']:,} lessons" if state["kind"] == "trained" else f"{len(state['levels']):,} levels"
    print_tables(f"{arguments.file}: {state['kind']}, {size}", figures_table(file.figures))
    return 0


def figures_table(figures: Mapping[str, Mapping[str, float]]) -> FittedTable:
    """Return the figures on the held-out requests by estimator.

    Errors are in tokens. ACC-50: the share with an error of at most 50.
    """
    rows = [
        (name, f"{one['requests']:,}", f"{one['mean_error']:.1f}", *(f"{one[of]:.0%}" for of in PARTS))
        for name, one in figures.items()
    ]
    return FittedTable(("ESTIMATOR", "HELD OUT", "MEAN ERROR", "RELATIVE ERROR", "ACC-50", "ACC-100"), rows, numbers=5)
