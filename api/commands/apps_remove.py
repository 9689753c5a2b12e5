"""Removes a model from a server. New requests are refused, running ones finish,
then its memory is freed."""

from __future__ import annotations

import argparse
from urllib.parse import quote

from .connection import CHANGES, add_url, connected


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="its model id")
    parser.add_argument("--default", metavar="NAME", help="model for requests without one from now on (as before)")
    add_url(parser)


def run(arguments: argparse.Namespace) -> int:
    with connected(arguments, CHANGES) as session:
        query = f"?default={quote(arguments.default)}" if arguments.default else ""
        answer = session.delete(f"/admin/apps/{quote(arguments.name, safe='/:@')}{query}", holds="state")
    print(f"{answer['name']}: {answer['state']}; {answer['summary']}")
    return 0
