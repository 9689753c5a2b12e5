"""The command ``batch plan``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from . import CommandError

if TYPE_CHECKING:
    from ...actors.checkpoints import Opened
    from ...actors.config import Settings
    from .batch_lines import BatchRequests


def batch_plan_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", metavar="IN", type=Path, help="a file with a request on each line")
    parser.add_argument("--model", metavar="PATH_OR_ID", required=True, help="checkpoint folder or hub id")
    parser.add_argument("--profile", metavar="FILE", help="profile of this machine, from blockwright profile")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the cluster to plan for"
    )


def batch_plan(arguments: argparse.Namespace) -> int:
    """Show a batch before it runs: how much its prompts share, its density, the order
    in which it would run, and what the steps would compute and read in that order
    and in others.

    IN is a file of requests, as for /v1/batches. The lengths of answers are not
    known yet, so each counts with its limit (max_tokens); a real run samples one
    request in a hundred first. Times come from --profile, or from a guess for one
    core without it.
    """
    from ...actors.checkpoints import open_checkpoints
    from ...actors.config import SettingsError
    from ..settings.options import make_settings
    from .batch_machine import machine_of
    from .batch_plan_report import plan, show
    from .zoo import zoo_refusals

    flags = {"profile": arguments.profile} if arguments.profile else {}
    try:
        with zoo_refusals():
            settings = make_settings(arguments.model, flags=flags, sets=arguments.set)
            opened = open_checkpoints(settings)
            name, checkpoint = next(iter(opened.checkpoints.items()))
            machine = machine_of(settings, name, checkpoint)
    except SettingsError as error:
        raise CommandError(str(error), 2) from None
    requests = _requests(arguments.input, settings, opened, name)
    try:
        show(f"{arguments.input} with {name}", plan(requests, machine))
    except ValueError as error:  # a request that never fits into memory
        raise CommandError(f"{error} (--set memory=...)", 2) from None
    return 0


def _requests(path: Path, settings: Settings, opened: Opened, name: str) -> BatchRequests:
    from ...actors.checkpoints import model_info
    from ...actors.sizing import max_lengths
    from ..program.progress import Bar
    from .batch_lines import read_requests

    length = max_lengths(settings, {name: opened.checkpoints[name].config})[name]
    info = model_info(opened, name, length, 0)
    with Bar(0, sys.stderr.isatty()) as bar:
        return read_requests(path, settings, info, bar)
