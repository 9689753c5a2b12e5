"""The command ``zoo gc``."""

from __future__ import annotations

import argparse

from .zoo_folder import add_zoo, refusals, waiting


def zoo_gc_arguments(parser: argparse.ArgumentParser) -> None:
    add_zoo(parser)


def zoo_gc(arguments: argparse.Namespace) -> int:
    """Delete files of a zoo that no application needs: tensors of removed
    applications, and the leftovers of interrupted commands.

    It is safe while servers and other commands use the zoo.
    """
    from ...zoo.remove import gc
    from .tables import size

    with refusals():
        freed = gc(arguments.zoo, waiting=waiting)
    print(f"deleted {freed.files} files, {size(freed.nbytes)}")
    return 0
