"""The command ``tagger show``."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import CommandError


def tagger_show_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", metavar="FILE", type=Path, help="file written by blockwright tagger train, or kept by a tagger"
    )


def tagger_show(arguments: argparse.Namespace) -> int:
    """Show an estimator of answer lengths: how much it has learned, and how good it
    was on the requests that were held out.
    """
    from ...actors.tagger.model_file import TaggerFileError, read_tagger
    from .output import print_tables
    from .tagger_table import figures_table

    try:
        file = read_tagger(arguments.file)
    except TaggerFileError as error:
        raise CommandError(str(error), 2) from None
    state = file.estimator.snapshot()
    size = f"{state['lessons']:,} lessons" if state["kind"] == "trained" else f"{len(state['levels']):,} levels"
    print_tables(f"{arguments.file}: {state['kind']}, {size}", figures_table(file.figures))
    return 0
