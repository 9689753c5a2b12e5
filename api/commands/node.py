"""Joins a running cluster as one more node, from another terminal or another machine.

The head of the cluster says the address and where its key file lies; copy that file to another machine by a way that you
trust, since whoever holds it is a member. The node runs what the cluster starts on it, until it is interrupted (it then
leaves in order) or the head ends.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from blockwright.api.commands import CommandError


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--join", required=True, metavar="ADDRESS", help="of the head: tcp://HOST:PORT or ipc:///PATH")
    parser.add_argument("--name", default="", help="of this node, unique in the cluster (host name and process id)")
    parser.add_argument("--keys", type=Path, metavar="FILE", help="key file of the cluster; needed beyond this machine")
    parser.add_argument("--listen", default="", metavar="ADDRESS", help="tcp://HOST:PORT at which others reach this node")


def run(arguments: argparse.Namespace) -> int:
    from blockwright.runtime.joining import join, stay
    from blockwright.runtime.loop import run as run_loop
    from blockwright.transport.curve import ClusterKeys
    from blockwright.transport.errors import AddressError, KeysError, TransportError

    async def live() -> bool:
        keys = ClusterKeys.read(arguments.keys) if arguments.keys is not None else None
        node = await join(arguments.join, name=arguments.name, keys=keys, listen=arguments.listen)
        print(f"node {node.id} joined {node.head} and listens at {node.endpoint}", flush=True)
        return await stay(node, lambda why: print(f"node {node.id} leaves: {why}", flush=True))

    try:
        return 0 if run_loop(live()) else 1
    except (AddressError, KeysError) as error:
        raise CommandError(str(error), 2) from error
    except TransportError as error:
        raise CommandError(str(error)) from error
