"""The lives of a worker process that joins a cluster by itself: it joins, is taken in, serves, and leaves when asked.

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
from typing import Any

from ...policies.cluster.head_succession import redial_delay
from ...runtime.base.errors import RuntimeFault
from ...runtime.cluster.join_text import WORKER
from ...runtime.cluster.joining import enter
from ...runtime.node.node import Node
from ...runtime.node.stall_watch import StallWatch
from ...transport.errors import TransportError
from ..member_calls import HeadLost, JoinRefused, enlist, leave
from .former_life import close_legacy
from .main import start
from .messages import WorkerConfig
from .starting import Starting

log = logging.getLogger(__name__)
STALL = 1.0  # seconds without a turn of the loop after which the cause is logged
RETURNING = 60.0  # seconds in which a worker whose life is over is taken back, or it ends


async def serve(given: Starting, say: Callable[[str], None]) -> bool:
    """Be a worker until the cluster or a signal ends it; return whether a signal asked for the end.

    The first SIGTERM or SIGINT asks the head to empty this worker, the second ends it at once. When the head has declared it
    down, and so its life is over, it comes back as the next life with the parameters in its memory. Raises JoinRefused,
    TransportError.
    """
    ending, legacy = _Ending(say), dict[str, Any]()
    try:
        node, config = await _take_part(given, legacy, given.name, ending)
        while await _live(node, config, given, ending) and not ending.requested:
            say(f"worker {node.id} is over ({node.farewell}), and comes back with what is in its memory")
            node, config = await _come_back(given, legacy, node.name, ending)
        say(f"worker {node.id} leaves: {node.farewell}")
        return ending.requested
    finally:
        close_legacy(legacy)
        ending.close()


async def _take_part(given: Starting, legacy: dict[str, Any], name: str, ending: _Ending) -> tuple[Node, WorkerConfig]:
    """Return a node that the head has taken in as a worker, and its configuration. Raises JoinRefused, TransportError."""
    node = await enter(given.text, WORKER, name=name, listen=given.listen, legacy=legacy)
    ending.follow(node)
    try:
        return node, await enlist(node, given)
    except BaseException:
        await node.stop()
        raise


async def _come_back(given: Starting, legacy: dict[str, Any], name: str, ending: _Ending) -> tuple[Node, WorkerConfig]:
    """Take part again, as soon as the head is reached and knows that the former life is over.

    Raises the last refusal if that takes longer than ``RETURNING``, and at once if a signal asks for the end.
    """
    tries, until = 0, asyncio.get_running_loop().time() + RETURNING
    while True:
        try:
            return await _take_part(given, legacy, name, ending)
        except (JoinRefused, TransportError) as refusal:
            log.info("worker %s is not taken back: %s", name, refusal)
            if ending.requested or asyncio.get_running_loop().time() > until:
                raise
        await asyncio.sleep(redial_delay(tries))
        tries += 1


async def _live(node: Node, config: WorkerConfig, given: Starting, ending: _Ending) -> bool:
    """Serve until this life ends; return whether the next one may follow. Raises JoinRefused if it cannot begin."""
    watch = StallWatch(node.actors.instances.values, STALL, _stalled, lambda: None)
    work: asyncio.Task[None] | None = None
    closed = asyncio.ensure_future(node.closed.wait())
    try:
        if config.launched and given.text_from_input:
            _end_with_input(node)
        work = asyncio.ensure_future(start(node, config))
        work.add_done_callback(lambda done: done.cancelled() or done.exception())  # of a lost head: said below
        await asyncio.wait((work, closed), return_when=asyncio.FIRST_COMPLETED)
        if work.done() and not node.life_over:
            _check(work)
            node.peering.announce_ready()
            ending.ready = True
            where = node.endpoint.partition("?")[0]
            ending.say(f"worker {node.id} of {node.head} is ready at {where}, and loads what is placed there")
            await closed
        return node.life_over and not config.launched  # the head starts those anew
    finally:
        ending.ready = False
        watch.close()
        closed.cancel()
        if work is not None:
            work.cancel()
        await node.stop()


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
    """The answer to signals, from the first life on. ready: the worker serves, so there is something to move."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self._node: Node | None = None  # the present life
        self._asking: asyncio.Task[None] | None = None
        self.ready = self.requested = False

    def follow(self, node: Node) -> None:
        """Answer signals for the next life."""
        self._node = node
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self.asked, number.name)

    def close(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)

    def asked(self, name: str) -> None:
        assert self._node is not None, "signals are answered from the first life on"
        if self.requested or not self.ready:
            self.requested = True
            self._node.close(f"{name} was received")
            return
        self.requested = True
        self.say(f"worker {self._node.id} was asked to leave: it does when its requests have moved")
        self._asking = asyncio.ensure_future(self._leave(self._node, name))

    async def _leave(self, node: Node, name: str) -> None:
        try:
            await leave(node, f"{name} was received")
        except RuntimeFault as error:
            node.close(f"{name} was received, and the head did not hear of it: {error}")


def _stalled(sentence: str) -> None:
    log.warning("%s", sentence)
