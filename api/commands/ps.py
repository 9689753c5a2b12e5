"""Shows the applications of a server: what each is based on, the memory that it owns and shares, and where it runs.

With --actors it shows every actor of every node instead; with --join also of a cluster that has no server, such as a
LocalCluster, which it joins as one more node for as long as it looks. The address is that of the cluster's invitation.

On a terminal the tables are refreshed until Ctrl-C.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from blockwright.api.commands import CommandError
from blockwright.api.commands.connection import add_url, connected


def add(parser: argparse.ArgumentParser) -> None:
    add_url(parser)
    add_screen(parser)
    parser.add_argument("--actors", action="store_true", help="instead: every actor of every node, busiest first")
    parser.add_argument(
        "--join", metavar="ADDRESS", help="with --actors, of a head instead of a server: tcp://HOST:PORT or ipc:///PATH"
    )
    parser.add_argument("--keys", type=Path, metavar="FILE", help="key file of that cluster; needed beyond this machine")


def add_screen(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--once", action="store_true", help="print once and end, as where the output is no terminal")
    parser.add_argument("--json", action="store_true", help="the same as JSON, once")
    parser.add_argument("--interval", type=pause, default=1.0, metavar="SECONDS", help="between two looks (1)")


def pause(text: str) -> float:
    """An argument in seconds that can be slept."""
    seconds = float(text)
    if not 0 < seconds <= 86400:
        raise argparse.ArgumentTypeError(f"is {text}; give seconds above 0 and at most 86400")
    return seconds


def run(arguments: argparse.Namespace) -> int:
    from blockwright.api.actor_screen import actors_tables, actors_view
    from blockwright.api.observe import ps_view
    from blockwright.api.screens import ps_tables, show

    if arguments.join is not None:
        return _run_joined(arguments)
    with connected(arguments) as session:
        return show(
            lambda: (
                actors_view(session.get("/admin/actors")) if arguments.actors else ps_view(session.get("/admin/cluster"))
            ),
            actors_tables if arguments.actors else ps_tables,
            once=arguments.once,
            as_json=arguments.json,
            interval=arguments.interval,
        )


def _run_joined(arguments: argparse.Namespace) -> int:
    from blockwright.api.actor_screen import actors_tables, actors_view
    from blockwright.api.looking import joined
    from blockwright.api.screens import show

    if not arguments.actors:
        raise CommandError("--join shows actors, since applications are known to servers; add --actors", 2)
    with joined(arguments.join, arguments.keys) as look:
        return show(
            lambda: actors_view(look()),
            actors_tables,
            once=arguments.once,
            as_json=arguments.json,
            interval=arguments.interval,
        )
