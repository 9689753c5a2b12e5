"""Deletes what no application of a zoo needs: tensors of removed ones, and what killed writers left behind.

Safe beside servers and writers.
"""

from __future__ import annotations

import argparse

from blockwright.api.commands.zoo_folder import add_zoo, refusals, waiting


def add(parser: argparse.ArgumentParser) -> None:
    add_zoo(parser)


def run(arguments: argparse.Namespace) -> int:
    from blockwright.api.commands.tables import size
    from blockwright.zoo.remove import gc

    with refusals():
        freed = gc(arguments.zoo, waiting=waiting)
    print(f"deleted {freed.files} files, {size(freed.nbytes)}")
    return 0
