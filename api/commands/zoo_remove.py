"""Removes an application from a zoo; 'blockwright zoo gc' then deletes the files
that no other application needs.

It is refused while a server serves the application from the zoo.
"""

from __future__ import annotations

import argparse

from .zoo_folder import add_zoo, refusals, waiting


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="APP")
    add_zoo(parser)


def run(arguments: argparse.Namespace) -> int:
    from ...zoo.remove import remove

    with refusals():
        remove(arguments.zoo, arguments.name, waiting=waiting)
    print(f"{arguments.name}: removed; 'blockwright zoo gc' deletes what nobody else needs")
    return 0
