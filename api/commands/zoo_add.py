"""Adds a model to a zoo: a folder on disk in which equal tensors of all models exist once.

Only what is new is stored, and it is seen under its name when all of it is there. Whatever ends the command before leaves
the zoo as it was; call it again.
"""

from __future__ import annotations

import argparse

from blockwright.api.commands.zoo_folder import add_zoo, progress, refusals, waiting


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", metavar="PATH_OR_ID", help="checkpoint or adapter folder, hub id, or ZOO/chains/NAME of a zoo"
    )
    parser.add_argument("--name", metavar="APP", required=True, help="what the application is called")
    parser.add_argument(
        "--base",
        metavar="APP",
        default="",
        help="what it is made from; an adapter needs it (the one that it shares most with)",
    )
    add_zoo(parser)


def run(arguments: argparse.Namespace) -> int:
    from blockwright.api.commands.zoo_tables import added_line
    from blockwright.zoo.add import add as add_model

    with refusals(), progress() as tell:
        added = add_model(
            arguments.zoo, arguments.source, arguments.name, base=arguments.base, progress=tell, waiting=waiting
        )
    print(added_line(added))
    return 0
