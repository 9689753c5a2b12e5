"""Lists the applications of a server, a line each: state, base and checkpoint.

'blockwright apps add' and 'blockwright apps remove' change them.
"""

from __future__ import annotations

import argparse
import json

from blockwright.api.commands.connection import add_url, connected


def add(parser: argparse.ArgumentParser) -> None:
    add_url(parser)
    parser.add_argument("--json", action="store_true", help="print what GET /admin/apps answers")


def run(arguments: argparse.Namespace) -> int:
    with connected(arguments) as session:
        found = session.get("/admin/apps")["applications"]
    if arguments.json:
        print(json.dumps(found, indent=1))
    for name, one in () if arguments.json else found.items():
        print(f"{name}  {one['state']}  {'from ' + one['base'] if one['base'] else 'on its own'}  {one['checkpoint']}")
    return 0
