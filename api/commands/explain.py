"""Tells what happened to a request: candidates, queue, prefill, hops, preemptions, failovers, and where its time went.

ID is that of the answer, or the x-request-id that the client sent. A server keeps the last thousand that ended.
"""

from __future__ import annotations

import argparse
import json
from urllib.parse import quote

from blockwright.api.commands.connection import UNKNOWN, add_url, connected


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID")
    add_url(parser)
    parser.add_argument("--json", action="store_true", help="what the server tells, as it is")


def run(arguments: argparse.Namespace) -> int:
    from blockwright.api.commands.request_story import report

    with connected(arguments, (*UNKNOWN, "not_found")) as session:
        view = session.get(f"/v1/requests/{quote(arguments.id)}")
    print(json.dumps(view, indent=1) if arguments.json else "\n".join(report(view)))
    return 0
