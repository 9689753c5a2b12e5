"""Lists the applications of a server: state, base and checkpoint.

'blockwright apps add' and 'blockwright apps remove' change them.
"""

from __future__ import annotations

import argparse
import json

from .connection import add_url, connected


def add(parser: argparse.ArgumentParser) -> None:
    add_url(parser)
    parser.add_argument("--json", action="store_true", help="print what GET /admin/apps answers")


def run(arguments: argparse.Namespace) -> int:
    with connected(arguments) as session:
        answer = session.get("/admin/apps", holds="applications")
    if arguments.json:
        print(json.dumps(answer["applications"], indent=1))
        return 0
    from .app_table import app_tables
    from .screen import show

    return show(lambda: answer, app_tables, of=arguments.url, once=True, as_json=False, interval=0.0)
