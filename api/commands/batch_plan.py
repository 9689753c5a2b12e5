"""Shows what a batch is before anything runs: how much its prompts share, how dense it is, in which order it would run, and
what the steps would compute and read in that order and in others.

IN is a file of requests as /v1/batches takes it. How long answers will be is not known yet: each counts as its limit
(max_tokens), while a run samples one in a hundred first. Seconds are those of --profile, else of a plain guess at a core.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from blockwright.api.commands import CommandError

if TYPE_CHECKING:
    from blockwright.actors.config import Settings
    from blockwright.api.commands.batch_lines import BatchRequests
    from blockwright.gpu.weights.checkpoint import Checkpoint
    from blockwright.policies.offline.density import Costs


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a batch is planned for. ``positions``: of KV that a worker holds; ``weights``: seconds of a step in which nothing
    is computed; ``measured``: by whom, or empty."""

    costs: Costs
    positions: int
    weights: float
    measured: str


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", metavar="IN", type=Path, help="a file of requests, a line of JSON each")
    parser.add_argument("--model", metavar="PATH_OR_ID", required=True, help="checkpoint folder or hub id")
    parser.add_argument("--profile", metavar="FILE", help="what blockwright profile measured of this machine")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the cluster that is planned for"
    )


def run(arguments: argparse.Namespace) -> int:
    from blockwright.actors.checkpoints import open_checkpoints
    from blockwright.actors.config import SettingsError
    from blockwright.api.commands.batch_plan_report import plan, show
    from blockwright.api.commands.zoo_folder import refusals
    from blockwright.api.settings.options import make_settings

    flags = {"profile": arguments.profile} if arguments.profile else {}
    try:
        with refusals():
            settings = make_settings(arguments.model, flags=flags, sets=arguments.set)
            name, checkpoint = next(iter(open_checkpoints(settings).items()))
            machine = machine_of(settings, name, checkpoint)
    except SettingsError as error:
        raise CommandError(str(error), 2) from None
    requests = _requests(arguments.input, settings, name, checkpoint)
    show(f"{arguments.input} with {name}", plan(requests, machine))
    return 0


def machine_of(settings: Settings, name: str, checkpoint: Checkpoint) -> Machine:
    """A worker of such settings here. Raises CommandError."""
    from blockwright.actors.batches.first_costs import BANDWIDTH, first_costs
    from blockwright.actors.cost_file import read_costs
    from blockwright.actors.resources import cores, free_memory
    from blockwright.actors.sizing import serving_dtype, widening, worker_configs

    models = {name: checkpoint.config}
    config, dtype = checkpoint.config, serving_dtype(settings, models)
    memory = next(iter(worker_configs(settings, models, free_memory=free_memory(), cores=cores()).values())).memory
    position = 2 * config.kv_heads * config.head_dim * config.layers * (4 if dtype == "float32" else 2)
    parameters = checkpoint.nbytes * widening(dtype, models)
    if (positions := (memory - parameters) // position) < 1:
        raise CommandError(f"memory is {memory} bytes, of which {name} takes {parameters}; give more (--set memory=...)", 2)
    try:
        costs, measured = first_costs(checkpoint, settings.profile), read_costs(settings.profile)
    except (OSError, ValueError) as error:
        raise CommandError(f"{settings.profile} is no profile ({error}); check --profile", 2) from None
    weights = measured.base + measured.step + measured.read if measured else checkpoint.nbytes / BANDWIDTH
    return Machine(costs=costs, positions=positions, weights=weights, measured=settings.profile)


def _requests(path: Path, settings: Settings, name: str, checkpoint: Checkpoint) -> BatchRequests:
    from blockwright.actors.gateway.port import ModelInfo
    from blockwright.actors.sizing import max_lengths
    from blockwright.api.commands.batch_lines import read_requests
    from blockwright.api.program.progress import Bar

    length = max_lengths(settings, {name: checkpoint.config})[name]
    info = ModelInfo(name, str(checkpoint.path), length - checkpoint.virtual, 0, ready=False, virtual=checkpoint.virtual)
    try:
        size = path.stat().st_size
    except OSError as error:
        raise CommandError(f"{path} cannot be read ({error.strerror}); check IN", 2) from None
    with Bar(size, sys.stderr.isatty()) as bar:
        bar.begin("reading")
        return read_requests(path, settings, info, bar.advance)
