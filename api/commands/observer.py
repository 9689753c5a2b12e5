"""An observer of the actors of a cluster without a gateway: it joins as one more node for as long as it is needed.

It owns the membership: a loop in a thread of its own, so that heartbeats go on between two queries, and an orderly end.
``actor_table.py`` makes the output.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from ...runtime.base.errors import RuntimeFault
from ...runtime.cluster.invitations import given
from ...runtime.cluster.joining import default_name, join
from ...runtime.node.inspection import inspect_peers
from ...runtime.node.node import Node
from ...transport.errors import AddressError, KeysError, TransportError
from ..program.blocking import LoopThread
from . import CommandError

MEET = 2.0  # seconds to wait for contact with all nodes that the head knows


@contextlib.contextmanager
def joined(where: str) -> Iterator[Callable[[], dict[str, Any]]]:
    """Yield a function that inspects all nodes but this one, as ``/admin/actors`` does. Raise CommandError."""
    thread = LoopThread()
    try:
        with _refusals():
            node = thread.run(_enter(given(where)))

        def look() -> dict[str, Any]:
            with _refusals():
                return {"nodes": thread.run(_views(node))}

        try:
            yield look
        finally:
            thread.run(node.stop())
    finally:
        thread.close()


async def _enter(where: str) -> Node:
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
    if node.closed.is_set():
        raise CommandError(f"the cluster is gone: {node.farewell}")
    views = [dataclasses.asdict(view) for view in await inspect_peers(node)]
    for view in views:  # the observer itself is left out
        view["peers"] = [peer for peer in view["peers"] if peer["name"] != node.name]
    return views


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except (AddressError, KeysError) as error:
        raise CommandError(str(error), 2) from error
    except (TransportError, RuntimeFault) as error:
        raise CommandError(str(error)) from error
