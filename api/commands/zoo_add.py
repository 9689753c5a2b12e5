"""The command ``zoo add``."""

from __future__ import annotations

import argparse

from .zoo_folder import add_zoo, progress, refusals, waiting


def zoo_add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", metavar="PATH_OR_ID", help="checkpoint or adapter folder, hub id, or ZOO/chains/NAME of a zoo"
    )
    parser.add_argument("--name", metavar="APP", required=True, help="name of the application")
    parser.add_argument(
        "--base",
        metavar="APP",
        default="",
        help="the application it was made from (of an adapter the one it names, or the only one; else the most similar)",
    )
    add_zoo(parser)


def zoo_add(arguments: argparse.Namespace) -> int:
    """Add a model to a zoo: a folder of models in which each distinct tensor is
    stored once.

    Only new tensors are stored. The model appears in the zoo when it is complete;
    if the command is interrupted, the zoo is unchanged, and you can run it again.
    """
    from ...zoo.add import add as add_model
    from .zoo_tables import added_line

    with refusals(), progress() as tell:
        added = add_model(
            arguments.zoo, arguments.source, arguments.name, base=arguments.base, progress=tell, waiting=waiting
        )
    print(added_line(added))
    return 0
