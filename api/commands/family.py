"""Commands for model families: one checkpoint whose lower tiers are its first layers, each with a head."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from . import CommandError, command_errors
from .zoo import zoo_refusals

if TYPE_CHECKING:
    from ...actors.profiling.tier_plan import TierPlan

_FOLDER = "checkpoint folder, hub id, or ZOO/chains/NAME of a zoo"


def family_export_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help=_FOLDER)
    parser.add_argument("--tier", type=int, required=True, metavar="K", help="the tier's number of layers")
    parser.add_argument("out", metavar="OUT", help="the new folder")


def family_export(arguments: argparse.Namespace) -> int:
    """Write one tier of a family as an ordinary checkpoint folder.

    transformers opens it, too: config.json, weights, tokenizer and generation
    defaults. If the folder lists no exits, the tier has the whole model's head.
    """
    from ...gpu.weights.export import export
    from ...policies.binary_size import binary_size
    from ...zoo.source import open_source

    with zoo_refusals():
        family = open_source(arguments.folder)
        if not family.exits:
            print(f"{arguments.folder} lists no exits: the tier has the head of the whole model", file=sys.stderr)
            family = family.with_shared_exits([arguments.tier], "--tier")
        tier = family.at_exit(arguments.tier)
        try:
            out = export(tier, Path(arguments.out).expanduser())
        except OSError as error:
            raise CommandError(f"{arguments.out} cannot be written ({error.strerror}); name another folder") from None
    print(f"{out}: {tier.tier} of {family.config.layers} layers, {binary_size(tier.nbytes)}")
    return 0


def family_plan_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help=_FOLDER)
    parser.add_argument("--models", metavar="FOLDER", nargs="+", default=[], help="smaller models to be as fast as")


def family_plan(arguments: argparse.Namespace) -> int:
    """Measure which tiers a model should have to be as fast as smaller models.

    It times a prompt of 1,024 tokens at each depth of the model, or at depths
    around the answer, and in each smaller model, all in turns on this machine. The
    tier for a model is the least depth that takes at least as long.
    """
    from ...actors.profiling.tier_plan import plan_tiers
    from ...actors.resources import cores, free_memory
    from ...actors.settings.workers import WorkerSettings
    from ...actors.sizing import serving_dtype
    from ...gpu.errors import BackendError
    from ...gpu.select import open_backend
    from ...zoo.source import open_source

    sources = [arguments.folder, *arguments.models]
    with zoo_refusals():
        big, *models = map(open_source, sources)
        configs = {str(i): one.config for i, one in enumerate((big, *models))}
        dtype = serving_dtype(WorkerSettings(), configs)
        with command_errors(BackendError):
            numerics = open_backend("auto", dtype, 1).numerics
            found = plan_tiers(lambda: open_backend("auto", dtype, cores()), big, models, free_memory(), _tell)
    print(f"a prompt of {found.tokens:,} tokens, {numerics}, {cores()} threads; the fastest of 5 turns each\n")
    print("\n".join(plan_lines(arguments.models, found)))
    return 0


def plan_lines(models: Sequence[str], found: TierPlan) -> list[str]:
    """Return the measured times by depth, and the tier for each smaller model."""
    whole = max(found.depths)
    lines = [f"{'LAYERS':>6}  {'SECONDS':>9}  OF ALL"]
    lines += [f"{depth:>6}  {time:9.4f}  {time / found.depths[whole]:6.0%}" for depth, time in found.depths.items()]
    if models:
        width = max(5, *map(len, models))
        lines += ["", f"{'MODEL':<{width}}  {'SECONDS':>9}  AS FAST AS"]
    for model, seconds, tier in zip(models, found.models, found.tiers, strict=True):
        depth = f"{tier} of {whole} layers" if tier not in (None, whole) else "all layers, so no lower tier"
        lines.append(f"{model:<{width}}  {seconds:9.4f}  {depth}")
    return lines


def _tell(done: int, total: int) -> None:
    """Show the progress, if standard error is a terminal."""
    if sys.stderr.isatty():
        print(f"\rmeasuring: {done} of {total}", end="\r" if done < total else "\n", file=sys.stderr, flush=True)
