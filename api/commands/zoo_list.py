"""The command ``zoo list``."""

from __future__ import annotations

import argparse
import json

from .zoo_folder import add_zoo, refusals


def zoo_list_arguments(parser: argparse.ArgumentParser) -> None:
    add_zoo(parser)
    parser.add_argument("--json", action="store_true", help="the same as JSON")


def zoo_list(arguments: argparse.Namespace) -> int:
    """List the applications of a zoo: what each is based on, how large it is, and how
    much of that no other application needs.
    """
    from ...zoo.zoo import Zoo
    from .output import print_tables
    from .zoo_tables import list_table, list_view

    with refusals():
        view = list_view(Zoo(arguments.zoo).listings())
    if arguments.json:
        print(json.dumps(view, indent=1))
    else:
        print_tables(list_table(view))
    return 0
