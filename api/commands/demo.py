"""The command ``demo``."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from . import CommandError
from .connection import refusals
from .doctor import port


def demo_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--serve", action="store_true", help="leave the server running until Ctrl-C")
    parser.add_argument(
        "--port", type=any_port, default=0, metavar="N", help="port to listen on; if it is in use, any free one (any)"
    )
    parser.add_argument("--checkpoint", type=Path, metavar="FOLDER", help="serve this instead of the demo checkpoint")


def any_port(text: str) -> int:
    return 0 if text == "0" else port(text)


def demo(arguments: argparse.Namespace) -> int:
    """Show Blockwright at work: two workers serve nine small models that share their
    blocks. A dozen requests stream at once, one of them runs across both workers,
    and a fine-tune is added meanwhile. Then comes a model in three sizes: requests
    choose the size and get tokens guessed ahead. A worker is killed under streams.
    Two workers with little memory meet a burst: parameters make room for KV.
    An overloaded fine-tune answers through blocks of its sibling, too.

    It needs no network and ends by itself. The exit code is 0 if all went well.
    """
    from ...gpu.weights.checkpoint import check_here
    from ..demo import siblings
    from ..demo.checkpoint import write_random
    from ..demo.family import present
    from ..demo.tour import show

    folder: Path | None = arguments.checkpoint or trained_checkpoint()
    if folder is not None:
        with refusals():
            check_here(folder)
        if not (folder / "config.json").exists():
            raise CommandError(f"{folder} has no config.json; name a folder in Hugging Face format", 2)
        trained = (folder / "report.json").exists()
        ours = folder == trained_checkpoint()
        family = present(folder.parent / "demo-family") if ours else {}
        tiers = folder.parent / "demo-tiers"
        shown = tiers if family and tiers.is_dir() else None
        near = siblings.present(folder.parent / "demo-family") if ours else {}
        parts: dict[str, Any] = {"family": family, "tiers": shown, "siblings": near if siblings.SALES in near else None}
        return show(folder, port=arguments.port, stay=arguments.serve, trained=trained, **parts)
    with tempfile.TemporaryDirectory(prefix="blockwright-demo-") as home:
        folder = Path(home) / "demo-random"
        write_random(folder)
        return show(folder, port=arguments.port, stay=arguments.serve, trained=False, family={})


def trained_checkpoint() -> Path | None:
    """Return the checkpoint of the checkout or the installed package; None if the build left it out."""
    folder = Path(__file__).parents[2] / "examples" / "demo-checkpoint"
    return folder if folder.exists() else None
