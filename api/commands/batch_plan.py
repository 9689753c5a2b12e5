"""Shows a batch before it runs: how much its prompts share, its density, the order
in which it would run, and what the steps would compute and read in that order
and in others.

IN is a file of requests, as for /v1/batches. The lengths of answers are not
known yet, so each counts with its limit (max_tokens); a real run samples one
request in a hundred first. Times come from --profile, or else from a guess at
one core.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from blockwright.api.commands import CommandError

if TYPE_CHECKING:
    from blockwright.actors.config import Settings
    from blockwright.api.commands.batch_lines import BatchRequests
    from blockwright.gpu.weights.checkpoint import Checkpoint


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", metavar="IN", type=Path, help="a file with a request on each line")
    parser.add_argument("--model", metavar="PATH_OR_ID", required=True, help="checkpoint folder or hub id")
    parser.add_argument("--profile", metavar="FILE", help="profile of this machine, from blockwright profile")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the cluster to plan for"
    )


def run(arguments: argparse.Namespace) -> int:
    from blockwright.actors.checkpoints import open_checkpoints
    from blockwright.actors.config import SettingsError
    from blockwright.api.commands.batch_machine import machine_of
    from blockwright.api.commands.batch_plan_report import plan, show
    from blockwright.api.commands.zoo_folder import refusals
    from blockwright.api.settings.options import make_settings

    flags = {"profile": arguments.profile} if arguments.profile else {}
    try:
        with refusals():
            settings = make_settings(arguments.model, flags=flags, sets=arguments.set)
            name, checkpoint = next(iter(open_checkpoints(settings).checkpoints.items()))
            machine = machine_of(settings, name, checkpoint)
    except SettingsError as error:
        raise CommandError(str(error), 2) from None
    requests = _requests(arguments.input, settings, name, checkpoint)
    try:
        show(f"{arguments.input} with {name}", plan(requests, machine))
    except ValueError as error:  # a request that memory never holds
        raise CommandError(f"{error} (--set memory=...)", 2) from None
    return 0


def _requests(path: Path, settings: Settings, name: str, checkpoint: Checkpoint) -> BatchRequests:
    from blockwright.actors.checkpoints import model_info
    from blockwright.actors.sizing import max_lengths
    from blockwright.api.commands.batch_lines import read_requests
    from blockwright.api.program.progress import Bar

    length = max_lengths(settings, {name: checkpoint.config})[name]
    info = model_info(name, checkpoint, length, 0)
    with Bar(0, sys.stderr.isatty()) as bar:
        return read_requests(path, settings, info, bar)
