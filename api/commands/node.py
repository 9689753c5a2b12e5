"""The command ``node``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import command_errors

WHERE = "an invitation (text, @FILE, or - for standard input), or an address without keys: ipc:///PATH, tcp://127.0.0.1:PORT"


def node_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--join", required=True, metavar="WHERE", help=WHERE)
    parser.add_argument("--name", default="", help="name of this node, unique in the cluster (host name and process id)")
    parser.add_argument(
        "--listen", default="", metavar="ADDRESS", help="tcp://HOST:PORT where other nodes can reach this one"
    )


def node(arguments: argparse.Namespace) -> int:
    """Join a running cluster as one more node, from another terminal or another
    machine.

    You need an invitation from the head of the cluster, which admits one node,
    once. Send it over a channel that you trust, and pass it in a file (--join
    @FILE) or on standard input (--join -) rather than on the command line, where
    other users can see it. The node makes its own key pair. It runs what the
    cluster starts on it until you interrupt it (then it leaves cleanly) or the head
    ends.
    """
    from ...runtime.base.loop import run as run_loop
    from ...runtime.cluster.invitations import given
    from ...runtime.cluster.join_text import NODE
    from ...runtime.cluster.joining import join, stay
    from ...transport.errors import AddressError, KeysError, TransportError
    from ..settings.secret_files import open_to_all
    from .worker import check_listen

    async def live() -> bool:
        node = await join(where, name=arguments.name, listen=arguments.listen)
        return await stay(node, lambda what: print(f"node {node.id} {what}", flush=True))

    with command_errors(TransportError, code=1), command_errors(AddressError, KeysError):
        if arguments.join.startswith("@") and (warning := open_to_all(Path(arguments.join[1:]), "an invitation")):
            print(f"warning: {warning}", file=sys.stderr)
        where = given(arguments.join, NODE)
        check_listen(arguments.listen)
        return 0 if run_loop(live()) else 1
