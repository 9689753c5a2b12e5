"""The commands ``ps`` and ``top``: they ask a server, or join a cluster without one, and show what they find.

``observe.py`` makes the values, ``tables.py`` the tables.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from . import CommandError, command_errors
from .connection import add_url, connected
from .node import WHERE

if TYPE_CHECKING:
    from ...runtime.node.node import Node
    from ..program.stdlib_client import StdlibSession
    from .observe import Sample

MEET = 2.0  # seconds to wait for contact with all nodes that the head knows


def ps_arguments(parser: argparse.ArgumentParser) -> None:
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


def ps(arguments: argparse.Namespace) -> int:
    """Show the applications of a server: what each is based on, the memory that it
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
    from .observe import actors_view, ps_view, request_view, tenant_view
    from .screen import show
    from .tables import actors_tables, ps_tables, request_tables, tenant_tables

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
        from .observe import REQUESTS

        path, holds = "/admin/cluster", "applications"
        if arguments.actors or arguments.requests:
            path, holds = ("/admin/actors", "nodes") if arguments.actors else (REQUESTS, "data")
        with connected(arguments) as session:
            yield lambda: session.get(path, holds=holds)
    else:
        with joined(arguments.join) as look:
            yield look


def top_arguments(parser: argparse.ArgumentParser) -> None:
    add_url(parser)
    add_screen(parser)


def top(arguments: argparse.Namespace) -> int:
    """Show how busy a server is: requests, tokens per second, time to first token,
    memory for KV, shared blocks, cache hits.

    Workers come first, then the models, busy ones first. On a terminal the screen
    is refreshed until q or Ctrl-C: arrow keys, PgUp and PgDn scroll the models, /
    filters them, Esc ends the filter. Idle adapters that are alike share a line if
    the screen is too short. If the server restarts, top waits for it.

    Rates and times cover the time since the last refresh; a model without a request
    since then shows the times of all its requests.
    """
    from .observe import top_view
    from .screen import show
    from .tables import top_tables

    with connected(arguments) as session:
        looks = [_look(session)]

        def view() -> dict[str, object]:
            if len(looks) == 1:
                time.sleep(arguments.interval)
            looks.append(_look(session))
            return top_view(*looks[-2:])

        screen = {"once": arguments.once, "as_json": arguments.json, "interval": arguments.interval}
        return show(view, top_tables, of=session.url, **screen)


def _look(session: StdlibSession) -> Sample:
    from .observe import read_sample

    return read_sample(time.monotonic(), session.get("/admin/cluster", holds="applications"), session.get_text("/metrics"))


@contextlib.contextmanager
def joined(where: str) -> Iterator[Callable[[], dict[str, Any]]]:
    """Join a cluster without a server as one more node, and yield a function that inspects its other nodes.

    The function answers as ``/admin/actors`` does. The node has a loop in a thread of its own, so that heartbeats go on
    between two calls, and an orderly end. Raise CommandError.
    """
    from ...runtime.cluster.invitations import given
    from ...runtime.cluster.join_text import NODE
    from ..program.blocking import LoopThread

    thread = LoopThread()
    try:
        with _join_refusals():
            node = thread.run(_enter(given(where, NODE)))

        def look() -> dict[str, Any]:
            with _join_refusals():
                return {"nodes": thread.run(_views(node))}

        try:
            yield look
        finally:
            thread.run(node.stop())
    finally:
        thread.close()


async def _enter(where: str) -> Node:
    import asyncio

    from ...runtime.cluster.joining import default_name, join

    node = await join(where, name=f"ps-{default_name()}"[:64])
    try:
        assert node.head is not None, "it has joined"
        wanted = {peer.name for peer in (await node.inspect_peer(node.head.name)).peers} - {node.name}
        async with asyncio.timeout(MEET):
            while not wanted <= set(node.peers()):  # noqa: ASYNC110 - they come with the head's address book, one by one
                await asyncio.sleep(0.01)
    except TimeoutError:
        pass  # the reachable nodes are shown
    except BaseException:
        await node.stop()
        raise
    return node


async def _views(node: Node) -> list[dict[str, Any]]:
    from dataclasses import asdict

    from ...runtime.node.inspection import inspect_peers

    if node.closed.is_set():
        raise CommandError(f"the cluster is gone: {node.farewell}")
    views = [asdict(view) for view in await inspect_peers(node)]
    for view in views:  # the observer itself is left out
        view["peers"] = [peer for peer in view["peers"] if peer["name"] != node.name]
    return views


@contextlib.contextmanager
def _join_refusals() -> Iterator[None]:
    from ...runtime.base.errors import RuntimeFault
    from ...transport.errors import AddressError, KeysError, TransportError

    with command_errors(TransportError, RuntimeFault, code=1), command_errors(AddressError, KeysError):
        yield
