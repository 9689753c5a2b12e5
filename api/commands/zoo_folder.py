"""Shared parts of the zoo commands: the folder, progress of long operations, and refusals.

Not a command.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from . import CommandError

DEFAULT = "~/.blockwright/zoo"


def add_zoo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--zoo", metavar="FOLDER", type=folder, default=DEFAULT, help=f"the zoo ({DEFAULT})")


def folder(text: str) -> Path:
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError as error:  # "~" of an unknown user
        raise argparse.ArgumentTypeError(f"is {text!r}: {error}") from None


def waiting() -> None:
    print("waiting for another writer of the zoo ...", file=sys.stderr)


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Turn a zoo's refusal into the command's last sentence.

    The exit code is 1 for a fault of a disk, 2 for a fault of the call.
    """
    from ...gpu.errors import CheckpointError
    from ...zoo.errors import StorageError, ZooDamaged

    try:
        yield
    except CheckpointError as error:
        raise CommandError(str(error), 1 if isinstance(error, StorageError | ZooDamaged) else 2) from None
    except OSError as error:
        raise CommandError(f"{error.filename or 'the zoo'}: {error.strerror}") from None


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a callback that shows the bytes done on a terminal, and nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        tasks: dict[str, TaskID] = {}

        def tell(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = shown.add_task(what, total=total)
            shown.update(tasks[what], completed=done)

        yield tell
