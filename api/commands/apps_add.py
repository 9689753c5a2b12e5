"""Adds an application to a server that runs, or puts a new version in the place of one that it serves.

PATH is a folder on the server's machine, below a root of its setting app_roots. Requests of an old version end on it.
"""

from __future__ import annotations

import argparse
from urllib.parse import quote

from blockwright.api.commands.connection import CHANGES, add_url, connected


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the model id to serve it as")
    parser.add_argument("path", metavar="PATH", help="its folder")
    parser.add_argument("--base", metavar="NAME", help="the served model that an adapter belongs to")
    parser.add_argument("--replace", action="store_true", help="in place of the application of that name")
    parser.add_argument("--wait", type=float, default=60.0, metavar="SECONDS", help="until it can be served (60)")
    add_url(parser)


def run(arguments: argparse.Namespace) -> int:
    body = {"path": arguments.path, "base": arguments.base, "wait": arguments.wait}
    with connected(arguments, CHANGES) as session:
        if arguments.replace:
            answer = session.post(f"/admin/apps/{quote(arguments.name, safe='/:@')}", body)
        else:
            answer = session.post("/admin/apps", {"name": arguments.name, **body})
    print(f"{answer['name']}: {answer['state']}; {answer['summary']}")
    return 0
