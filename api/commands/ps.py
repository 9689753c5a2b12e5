"""Shows the applications of a server: what each is based on, the memory that it
owns and shares, and where it runs.

Workers come first, then the applications, busy ones first.

With --requests it shows the latest requests instead: where they wait or run,
and how far they have come; an admin key sees those of all tenants. With
--tenants it shows each tenant's weight, requests, tokens, KV memory and use of
its limits. With --actors it shows every actor of every node below its
supervisor. --join does so for a cluster without a server, such as a
LocalCluster: it joins the cluster as one more node while it runs. WHERE is the
cluster's invitation.

On a terminal the screen is refreshed until q or Ctrl-C: arrow keys, PgUp and
PgDn scroll the list, / filters it, Esc ends the filter. Idle adapters that are
alike share a line if the screen is too short.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from . import CommandError
from .connection import add_url, connected
from .node import WHERE


def add(parser: argparse.ArgumentParser) -> None:
    add_url(parser)
    add_screen(parser)
    parser.add_argument("--actors", action="store_true", help="show every actor of every node instead")
    parser.add_argument(
        "--requests", action="store_true", help="show the latest requests instead, with their queue positions"
    )
    parser.add_argument(
        "--tenants", action="store_true", help="show the tenants instead: weight, use, limits, KV memory, refused requests"
    )
    parser.add_argument("--join", metavar="WHERE", help=f"with --actors, a head instead of a server: {WHERE}")


def add_screen(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--once", action="store_true", help="print once and exit (the default if the output is not a terminal)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON once and exit")
    parser.add_argument("--interval", type=pause, default=1.0, metavar="SECONDS", help="time between refreshes (1)")


def pause(text: str) -> float:
    """Return an argument in seconds that is a valid time to sleep."""
    seconds = float(text)
    if not 0 < seconds <= 86400:
        raise argparse.ArgumentTypeError(f"is {text}; give seconds above 0 and at most 86400")
    return seconds


def run(arguments: argparse.Namespace) -> int:
    from .actor_table import actors_tables, actors_view
    from .observe import ps_view
    from .request_table import request_tables, request_view
    from .screen import show
    from .tables import ps_tables
    from .tenant_table import tenant_tables, tenant_view

    if arguments.join is not None and not arguments.actors:
        raise CommandError("--join shows actors, since applications are known to servers; add --actors", 2)
    asked = [name for name in ("requests", "tenants", "actors") if getattr(arguments, name)]
    if len(asked) > 1:
        raise CommandError(f"--{asked[0]} and --{asked[1]} are two different lists; give one of them", 2)
    views = {
        "actors": (actors_view, actors_tables),
        "requests": (request_view, request_tables),
        "tenants": (tenant_view, tenant_tables),
        "": (ps_view, ps_tables),
    }
    view, tables = views[asked[0] if asked else ""]
    with _looks(arguments) as look:
        screen = {"once": arguments.once, "as_json": arguments.json, "interval": arguments.interval}
        return show(lambda: view(look()), tables, of=arguments.join or arguments.url, **screen)


@contextlib.contextmanager
def _looks(arguments: argparse.Namespace) -> Iterator[Callable[[], dict[str, Any]]]:
    """Yield a function that takes one sample, from a server or as a node of a cluster."""
    if arguments.join is None:
        from .request_table import PATH

        path, holds = "/admin/cluster", "applications"
        if arguments.actors or arguments.requests:
            path, holds = ("/admin/actors", "nodes") if arguments.actors else (PATH, "data")
        with connected(arguments) as session:
            yield lambda: session.get(path, holds=holds)
    else:
        from .observer import joined

        with joined(arguments.join) as look:
            yield look
