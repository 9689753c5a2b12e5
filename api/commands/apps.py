"""The commands for the applications of a running server."""

from __future__ import annotations

import argparse
import os
from urllib.parse import quote, urlsplit

from .connection import CHANGES, add_url, connected
from .output import print_json


def apps_arguments(parser: argparse.ArgumentParser) -> None:
    add_url(parser)
    parser.add_argument("--json", action="store_true", help="print what GET /admin/apps answers")


def apps(arguments: argparse.Namespace) -> int:
    """List the applications of a server: state, base and checkpoint.

    'blockwright apps add' and 'blockwright apps remove' change them.
    """
    with connected(arguments) as session:
        answer = session.get("/admin/apps", holds="applications")
    if arguments.json:
        print_json(answer["applications"])
        return 0
    from .screen import show
    from .tables import app_tables

    return show(lambda: answer, app_tables, of=arguments.url, once=True, as_json=False, interval=0.0)


def apps_add_arguments(parser: argparse.ArgumentParser) -> None:
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


def apps_add(arguments: argparse.Namespace) -> int:
    """Add a model to a running server, or replace one with a new version.

    PATH is a folder on the server's machine, within one of the folders in its
    setting app_roots. It may be relative if the server is on this machine.
    Running requests finish on the old version.
    """
    body = {"path": _where(arguments.path, arguments.url), "base": arguments.base, "wait": arguments.wait}
    with connected(arguments, CHANGES) as session:
        if arguments.replace:
            answer = session.post(f"/admin/apps/{quote(arguments.name, safe='/:@')}", body, holds="state")
        else:
            answer = session.post("/admin/apps", {"name": arguments.name, **body}, holds="state")
    on = f"on {answer['base']}; " if answer.get("base") else ""
    print(f"{answer['name']}: {on}{answer['state']}; {answer['summary']}")
    return 0


def apps_remove_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="its model id")
    parser.add_argument("--default", metavar="NAME", help="model for requests without one from now on (as before)")
    add_url(parser)


def apps_remove(arguments: argparse.Namespace) -> int:
    """Remove a model from a server. New requests are refused, running ones finish,
    then its memory is freed.
    """
    with connected(arguments, CHANGES) as session:
        query = f"?default={quote(arguments.default)}" if arguments.default else ""
        answer = session.delete(f"/admin/apps/{quote(arguments.name, safe='/:@')}{query}", holds="state")
    print(f"{answer['name']}: {answer['state']}; {answer['summary']}")
    return 0
