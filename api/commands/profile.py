"""The command ``profile``."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from . import command_errors
from .output import FiguresFile
from .zoo import folder, waiting, zoo_refusals

WIDTH, HEIGHT = 64, 16  # characters of the plot
MOST_REPEATS = 1000  # takes hours even for a small model
TERMS = {
    "base": "a sweep",
    "step": "a run of blocks",
    "read": "reading the parameters",
    "token": "a token",
    "beyond": "more for each beyond {knee}",
    "row": "a sampled token",
    "context": "a position that a decoding row attends to",
    "prefill": "a position that a prompt's token attends to",
}


def profile_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="PATH_OR_ID", help="checkpoint folder, hub id, or ZOO/chains/NAME of a zoo")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="file to store the profile in, with a picture of its errors beside it (none)"
    )
    parser.add_argument("--device", type=device, default="cpu", metavar="cpu", help="where the model runs: cpu (cpu)")
    parser.add_argument("--dtype", choices=["auto", "float32", "bfloat16"], default="auto", help="as for a server (auto)")
    parser.add_argument("--threads", type=threads, default=0, metavar="N", help="kernel threads (number of cores)")
    parser.add_argument(
        "--zoo", metavar="FOLDER", type=folder, help="take PATH_OR_ID from this zoo, and keep the profile there"
    )
    parser.add_argument("--repeats", type=repeats, default=7, metavar="N", help="repetitions of each step, at least 4 (7)")


def device(text: str) -> str:
    if text != "cpu":
        raise argparse.ArgumentTypeError(f"is {text!r}, but only a CPU can be profiled so far; give cpu")
    return text


def threads(text: str) -> int:
    if not 1 <= (value := int(text)) <= 256:
        raise argparse.ArgumentTypeError(f"is {text}; give 1 to 256")
    return value


def repeats(text: str) -> int:
    if not 4 <= (value := int(text)) <= MOST_REPEATS:
        raise argparse.ArgumentTypeError(
            f"is {text}; give at least 4, whose middle is compared, and at most {MOST_REPEATS:,}"
        )
    return value


def profile(arguments: argparse.Namespace) -> int:
    """Measure how fast this machine runs a model: how long the steps of a worker
    take, how fast blocks load and tensors move.

    It fits a cost model with a few coefficients to the steps and tests it on others
    that were not used for the fit. Forecasts and the simulator read the stored
    profile; so do the settings pace=FILE and profile=FILE of a server.
    """
    from ...gpu.errors import BackendError
    from ...zoo.profiles import add_profile

    output = FiguresFile("--output", arguments.output) if arguments.output else None
    drawn = FiguresFile("--output", picture_beside(arguments.output)) if arguments.output else None
    with zoo_refusals():
        with command_errors(BackendError):
            found = _measure(arguments)
        _show(found)
        if output is not None and drawn is not None:
            output.store(found)
            drawn.write(picture(found))
            print(f"stored in {arguments.output}, drawn in {picture_beside(arguments.output)}")
        if arguments.zoo is not None:
            print(f"stored in {add_profile(arguments.zoo, arguments.model, found, waiting=waiting)}")
    return 0


def picture_beside(name: str) -> str:
    """Return the name of the picture beside a profile's file."""
    return f"{name.removesuffix('.json')}.svg"


def picture(found: Mapping[str, Any]) -> str:
    """Return an SVG of the times of held-out sweeps: predicted against measured."""
    from ..drawing.chart import scatter

    error, points = found["error"], [(predicted, measured) for predicted, measured in found["held_out"]]
    note = f"{len(points)} steps that were not fitted; mean error {error['mape']:.1%}"
    description = f"{note}, 90 % of them below {error['p90']:.1%}, worst {error['worst']:.1%}."
    return scatter(
        "Time of a step: predicted and measured", description, points, lambda seconds: f"{1e3 * seconds:g} ms", note
    )


def _measure(arguments: argparse.Namespace) -> dict[str, Any]:
    from ...actors.profiling.links import measure_links
    from ...actors.profiling.profile import profile
    from ...actors.resources import cores, free_memory
    from ...actors.settings.workers import WorkerSettings
    from ...actors.sizing import serving_dtype
    from ...gpu.select import open_backend
    from ...zoo.source import open_source
    from ...zoo.zoo import Zoo
    from ..load.figures import machine

    checkpoint = open_source(Zoo(arguments.zoo).folder(arguments.model) if arguments.zoo else arguments.model)
    dtype = serving_dtype(WorkerSettings(dtype=arguments.dtype), {"": checkpoint.config})
    count = arguments.threads or cores()
    backend = open_backend("auto", dtype, count)
    found = profile(backend, checkpoint, arguments.repeats, free_memory(), _tell)
    config = checkpoint.config
    return {
        **found,
        "device": {"kind": arguments.device, **machine(), "numerics": backend.numerics, "threads": count},
        "model": {"path": arguments.model, "architecture": config.architecture, "layers": config.layers},
        "links": asyncio.run(measure_links()),
    }


def _tell(done: int, total: int) -> None:
    """Show the progress, if standard error is a terminal."""
    if sys.stderr.isatty():
        print(f"\rsweeps: turn {done} of {total}", end="\r" if done < total else "\n", file=sys.stderr, flush=True)


def _show(found: dict[str, Any]) -> None:
    from ...policies.plan.cost import KNEE
    from .tables import size

    device = found["device"]
    error = found["error"]
    costs = found["coefficients"]
    print(f"{found['model']['path']} on {device['cpu']}, {device['threads']} threads, {device['numerics']}")
    for name, meaning in TERMS.items():
        print(f"{name:>12}  {1e6 * costs[name]:12,.3f} us  {meaning.format(knee=KNEE)}")
    loaded = found["loading"]
    print(f"{'loading':>12}  {size(loaded['bandwidth'])}/s, {loaded['components']} components in {loaded['seconds']:.2f} s")
    for kind, link in found["links"].items():
        print(f"{kind:>13} {size(link['bandwidth'])}/s, {1e6 * link['latency']:.0f} us for what is small")
    print("\n".join(plot(found["held_out"])))
    print(
        f"mean error {error['mape']:.1%} of {error['held_out']} sweeps that were not fitted "
        f"(90 % of them below {error['p90']:.1%}, worst {error['worst']:.1%})"
    )
    if error["disturbed"]:
        print(
            f"the machine was disturbed: repeats of a sweep lie {error['spread']:.0%} apart; measure again when it is quiet"
        )


def plot(points: Sequence[Sequence[float]]) -> list[str]:
    """Return a plot of predicted (upwards) against measured seconds, both logarithmic; they are equal on the line."""
    from math import log

    values = [log(value) for point in points for value in point if value > 0]
    low, high = min(values), max(values)

    def place(value: float, cells: int) -> int:
        return round((log(value) - low) / max(high - low, 1e-9) * (cells - 1)) if value > 0 else 0

    grid = [["/" if round(x * (HEIGHT - 1) / (WIDTH - 1)) == y else " " for x in range(WIDTH)] for y in range(HEIGHT)]
    for predicted, measured in points:
        grid[place(predicted, HEIGHT)][place(measured, WIDTH)] = "o"
    ends = f"{1000 * 2.718281828**low:.3g} ms", f"{1000 * 2.718281828**high:.3g} ms"
    lines = [f"  |{''.join(line)}" for line in reversed(grid)]
    return ["  predicted", *lines, f"  +{'-' * WIDTH}", f"   {ends[0]:<{WIDTH - 20}}measured {ends[1]:>11}"]
