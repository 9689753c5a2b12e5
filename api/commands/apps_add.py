"""Adds a model to a running server, or replaces one with a new version.

PATH is a folder on the server's machine, within one of the folders in its
setting app_roots. It may be relative if the server is on this machine.
Running requests finish on the old version.
"""

from __future__ import annotations

import argparse
import os
from urllib.parse import quote, urlsplit

from .connection import CHANGES, add_url, connected


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="model id to serve it as")
    parser.add_argument("path", metavar="PATH", help="its folder")
    parser.add_argument("--base", metavar="NAME", help="for an adapter: the served model that it adapts")
    parser.add_argument("--replace", action="store_true", help="replace the model of that name")
    parser.add_argument("--wait", type=float, default=60.0, metavar="SECONDS", help="time to wait until it is ready (60)")
    add_url(parser)


def _where(path: str, url: str) -> str:
    """Return an absolute path if the server is on this machine; another machine has folders of its own."""
    here = urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")
    return os.path.abspath(os.path.expanduser(path)) if here else path


def run(arguments: argparse.Namespace) -> int:
    body = {"path": _where(arguments.path, arguments.url), "base": arguments.base, "wait": arguments.wait}
    with connected(arguments, CHANGES) as session:
        if arguments.replace:
            answer = session.post(f"/admin/apps/{quote(arguments.name, safe='/:@')}", body, holds="state")
        else:
            answer = session.post("/admin/apps", {"name": arguments.name, **body}, holds="state")
    on = f"on {answer['base']}; " if answer.get("base") else ""
    print(f"{answer['name']}: {on}{answer['state']}; {answer['summary']}")
    return 0
