"""The main coroutine of a worker node, the same in its own process and inside a test: open the node, run the entry
function, stay until the order to stop or until the head is gone.

Owns the resolution of entry points and of their configuration's type (by annotation; nothing is unpickled).
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import typing
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from ...transport.address import parse_identity
from ...transport.clock import Clock
from ...transport.curve import NodeKeys
from ...transport.interface import Transport
from ..base.buffers import Sink
from ..base.codec import encode, pack, unpack
from ..base.decoding import decode
from ..base.names import import_module
from ..node.head_follower import MemberTerms
from ..node.node import Node
from ..node.stall_watch import StallWatch, note_of
from .launcher import NodeSpec

log = logging.getLogger("blockwright.runtime")
STALL = 1.0  # heartbeats without a turn of the loop until the cause is logged; a silence has two at least
Entry = Callable[[Node, Any], Awaitable[None]]


def encode_config(config: Any) -> list[bytes]:
    """Encode a configuration for ``NodeSpec.config``."""
    sink = Sink()
    body = pack(encode(config, sink))
    return [body, *[bytes(b) for b in sink.buffers]]


def load_entry(path: str) -> tuple[Entry, Any]:
    """Return (function, annotation of its configuration) for "module:function". Raises ValueError, ImportError."""
    module, colon, name = path.partition(":")
    if not colon:
        raise ValueError(f"entry {path!r} is not of the form module:function")
    function = getattr(import_module(module), name, None)
    if not inspect.iscoroutinefunction(function):
        raise ValueError(f"entry {path!r} is not an async def function")
    parameters = list(inspect.signature(function).parameters)
    if len(parameters) != 2:
        raise ValueError(f"entry {path!r} must take (node, config)")
    return function, typing.get_type_hints(function).get(parameters[1], Any)


async def idle(node: Node, config: Any) -> None:
    """Let a node wait for actors to be spawned on it; this entry returns at once."""


async def run_node(
    spec: NodeSpec, *, transport: Transport | None = None, clock: Clock | None = None, watched: bool = False
) -> None:
    """Run a node's whole life.

    ``watched``: a thread reports the code that holds its loop, if the loop stalls. Raises the error of the entry
    function, unless the node is to end anyway, as when its head is gone before it has started.
    """
    node = Node(
        spec.name,
        directory=Path(spec.directory) if spec.directory else None,
        listen=spec.listen or True,
        keys=NodeKeys(*spec.keys) if spec.keys else None,
        incarnation=spec.incarnation,
        transport=transport,
        clock=clock,
        heartbeat_interval=spec.heartbeat,
    )
    ended = asyncio.ensure_future(node.closed.wait())
    started: asyncio.Future[None] | None = None
    watch: StallWatch | None = None
    try:
        await node.start()
        watch = _watch(node, spec) if watched else None
        terms = MemberTerms(spec.heartbeat, spec.silence, spec.orphan_grace)
        node.peering.join(parse_identity(spec.head), spec.head_endpoint, terms)
        entry, annotation = load_entry(spec.entry)
        config = decode(annotation, unpack(spec.config[0], [memoryview(b) for b in spec.config[1:]]))
        started = asyncio.ensure_future(entry(node, config))
        await asyncio.wait((started, ended), return_when=asyncio.FIRST_COMPLETED)
        if started.done() and not node.closed.is_set():
            started.result()
            node.peering.announce_ready()
            await ended
        elif started.done() and (error := started.exception()) is not None:  # it was still starting, and waited for the head
            log.info("node %s ends as it starts: %s (%s)", node.id, node.farewell, error)
    finally:
        if watch is not None:
            watch.close()
        tasks = [task for task in (ended, started) if task is not None]
        for task in tasks:
            task.cancel()
        await node.stop()
        await asyncio.gather(*tasks, return_exceptions=True)  # an entry that was cut off fails in a way that says nothing


def _watch(node: Node, spec: NodeSpec) -> StallWatch:
    """Return the stall watch of this process.

    Its report lies in the cluster's directory, where the head finds it when it declares the node hung.
    """
    note = note_of(spec.directory, spec.id)

    def report(sentence: str) -> None:
        log.debug("%s", sentence)
        with contextlib.suppress(OSError):
            note.write_text(sentence)

    return StallWatch(node.actors.instances.values, STALL * spec.heartbeat, report, lambda: note.unlink(missing_ok=True))
