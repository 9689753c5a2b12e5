"""The command ``zoo show``."""

from __future__ import annotations

import argparse
import json

from .zoo_folder import add_zoo, refusals


def zoo_show_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="APP")
    add_zoo(parser)
    parser.add_argument("--json", action="store_true", help="the same as JSON")


def zoo_show(arguments: argparse.Namespace) -> int:
    """Show an application of a zoo: its blocks, which are cut only where the
    applications of the zoo differ, and the applications that share each of them.
    """
    from ...zoo.profiles import profiles_of
    from ...zoo.zoo import Zoo
    from .output import print_tables
    from .zoo_tables import show_tables, show_view

    with refusals():
        zoo = Zoo(arguments.zoo)
        name = arguments.name
        view = show_view(zoo.folder(name), zoo.chain(name), zoo.blocks(name), profiles_of(zoo, name))
    if arguments.json:
        print(json.dumps(view, indent=1))
    else:
        print_tables(*show_tables(view))
    return 0
