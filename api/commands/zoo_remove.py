"""The command ``zoo remove``."""

from __future__ import annotations

import argparse

from .zoo_folder import add_zoo, refusals, waiting


def zoo_remove_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="APP")
    add_zoo(parser)


def zoo_remove(arguments: argparse.Namespace) -> int:
    """Remove an application from a zoo; 'blockwright zoo gc' then deletes the files
    that no other application needs.

    It is refused while a server serves the application from the zoo.
    """
    from ...zoo.remove import remove

    with refusals():
        remove(arguments.zoo, arguments.name, waiting=waiting)
    print(f"{arguments.name}: removed; 'blockwright zoo gc' deletes what nobody else needs")
    return 0
