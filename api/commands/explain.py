"""Shows what happened to a request: candidates, queue, prefill, workers,
preemptions, failovers, and where its time went.

ID is the id of the answer, or the x-request-id that the client sent. A server
remembers the last thousand finished requests. A key sees its own requests, an
admin key sees all.
"""

from __future__ import annotations

import argparse
import json
from typing import Any
from urllib.parse import quote

from . import CommandError
from .connection import UNKNOWN, add_url, connected


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", nargs="?", metavar="ID", help="id of the answer, or the client's x-request-id")
    parser.add_argument(
        "--last", action="store_true", help="the latest request of your key (an admin key: of all), instead of ID"
    )
    add_url(parser)
    parser.add_argument("--json", action="store_true", help="print the server's answer as JSON")


def run(arguments: argparse.Namespace) -> int:
    from .request_story import report

    if (arguments.id is None) != arguments.last or (arguments.id is not None and not arguments.id.strip(".")):
        raise CommandError("give the ID of a request, or --last; 'blockwright ps --requests' lists them", 2)
    with connected(arguments, (*UNKNOWN, "not_found")) as session:
        id = _latest(session.get("/v1/requests?limit=1", holds="data")["data"]) if arguments.id is None else arguments.id
        view = session.get(f"/v1/requests/{quote(id, safe='', errors='surrogateescape')}", holds="state")
    print(json.dumps(view, indent=1) if arguments.json else "\n".join(report(view)))
    return 0


def _latest(lines: list[dict[str, Any]]) -> str:
    """Return the id of the first listed request: one that runs or waits, or else one that has ended."""
    if not lines:
        raise CommandError("there is no request yet; send one and try again")
    return str(lines[0]["id"])
