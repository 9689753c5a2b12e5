"""The life of a worker process that joins a cluster by itself: it joins, is taken in, serves, and leaves when asked.

It runs what the head's own workers run (``main.py``). The starter of the process starts it again, not the head; or the
head's launcher has started it, by a command whose standard input reaches here: it ends when that is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable

from ...runtime.base.errors import RuntimeFault
from ...runtime.cluster.join_text import WORKER
from ...runtime.cluster.joining import enter
from ...runtime.node.node import Node
from ...runtime.node.stall_watch import StallWatch
from ..member_calls import HeadLost, enlist, leave
from .main import start
from .starting import Starting

log = logging.getLogger(__name__)
STALL = 1.0  # seconds without a turn of the loop after which the cause is logged


async def serve(given: Starting, say: Callable[[str], None]) -> bool:
    """Be a worker until the cluster or a signal ends it; return whether a signal asked for the end.

    The first SIGTERM or SIGINT asks the head to empty this worker, the second ends it at once. Raises JoinRefused,
    TransportError.
    """
    node = await enter(given.text, WORKER, name=given.name, listen=given.listen)
    loop, watch = asyncio.get_running_loop(), StallWatch(node.actors.instances.values, STALL, _stalled, lambda: None)
    ending = _Ending(node, say)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.asked, number.name)
    work: asyncio.Task[None] | None = None
    closed = asyncio.ensure_future(node.closed.wait())
    try:
        config = await enlist(node, given)
        if config.launched and given.text_from_input:
            _end_with_input(node)
        work = asyncio.ensure_future(start(node, config))
        work.add_done_callback(lambda done: done.cancelled() or done.exception())  # of a lost head: said below
        await asyncio.wait((work, closed), return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            _check(work)
            node.peering.announce_ready()
            ending.ready = True
            where = node.endpoint.partition("?")[0]
            say(f"worker {node.id} of {node.head} is ready at {where}, and loads what is placed there")
            await closed
        say(f"worker {node.id} leaves: {node.farewell}")
        return ending.requested
    finally:
        watch.close()
        closed.cancel()
        if work is not None:
            work.cancel()
        await node.stop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _check(work: asyncio.Future[None]) -> None:
    """Raise the error of a start that failed: HeadLost if the head was lost meanwhile."""
    if isinstance(error := work.exception(), RuntimeFault):
        raise HeadLost(f"the head was lost while the worker started: {error}")
    work.result()


def _end_with_input(node: Node) -> None:
    """End this worker when its standard input is closed: who started it is gone, or wants it to end."""
    loop = asyncio.get_running_loop()

    def look() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            node.close("its standard input was closed")

    with contextlib.suppress(OSError):  # a file or /dev/null: nothing is at its other end
        loop.add_reader(0, look)


class _Ending:
    """The answer to signals. ready: the worker serves, so there is something to move."""

    def __init__(self, node: Node, say: Callable[[str], None]) -> None:
        self._node = node
        self._say = say
        self._asking: asyncio.Task[None] | None = None
        self.ready = self.requested = False

    def asked(self, name: str) -> None:
        if self.requested or not self.ready:
            self.requested = True
            self._node.close(f"{name} was received")
            return
        self.requested = True
        self._say(f"worker {self._node.id} was asked to leave: it does when its requests have moved")
        self._asking = asyncio.ensure_future(self._leave(name))

    async def _leave(self, name: str) -> None:
        try:
            await leave(self._node, f"{name} was received")
        except RuntimeFault as error:
            self._node.close(f"{name} was received, and the head did not hear of it: {error}")


def _stalled(sentence: str) -> None:
    log.warning("%s", sentence)
