"""The command ``apps``."""

from __future__ import annotations

import argparse
import json

from .connection import add_url, connected


def apps_arguments(parser: argparse.ArgumentParser) -> None:
    add_url(parser)
    parser.add_argument("--json", action="store_true", help="print what GET /admin/apps answers")


def apps(arguments: argparse.Namespace) -> int:
    """List the applications of a server: state, base and checkpoint.

    'blockwright apps add' and 'blockwright apps remove' change them.
    """
    with connected(arguments) as session:
        answer = session.get("/admin/apps", holds="applications")
    found = answer["applications"]
    if arguments.json:
        print(json.dumps(found, indent=1))
        return 0
    from .output import FittedTable, print_tables
    from .tables import default_line

    rows = [(name, one["state"], one["base"] or "-", one["checkpoint"]) for name, one in found.items()]
    table = FittedTable(("APPLICATION", "STATE", "BASE", "CHECKPOINT"), rows, numbers=0, least=("BASE", "STATE"))
    print_tables(table, default_line(answer.get("default", ""), found))
    return 0
