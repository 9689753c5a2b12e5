"""Replies of endpoints: where the result of a message goes (a future of this process, nowhere, the log).

Owns the two protocols that a running actor replies through and the replies that need no network; those to another node
belong to ``node/incoming_calls.py`` and ``node/remote_streams.py``.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Protocol

from ..base.dead_letters import DeadLetters
from ..base.down import STOPPED
from ..base.errors import ActorDied, RemoteError, RuntimeFault
from ..base.window import Window
from .endpoint import ActorEndpoint

log = logging.getLogger("blockwright.runtime")


class ReplyTo(Protocol):
    """The receiver of the result of a call. Exactly one of the two is called, unless the call was cancelled."""

    def returned(self, endpoint: ActorEndpoint, value: Any) -> None: ...

    def failed(self, fault: RuntimeFault) -> None: ...


class Outlet(ReplyTo, Protocol):
    """The receiver of the items of a stream; ``returned`` is its end."""

    window: Window

    async def item(self, endpoint: ActorEndpoint, value: Any) -> None:
        """Send one. Raises EncodeError for a value that cannot travel."""


class CastReply:
    """The reply of a cast, which has no waiting caller: errors are logged and counted, a value is dropped. ``target``,
    ``endpoint`` and ``sender`` are for the log.
    """

    __slots__ = ("_dead", "_endpoint", "_sender", "_target")

    def __init__(self, dead: DeadLetters, target: object, endpoint: str, sender: object = "this node") -> None:
        self._dead = dead
        self._target = target
        self._endpoint = endpoint
        self._sender = sender

    def returned(self, endpoint: ActorEndpoint, value: Any) -> None:
        pass

    def failed(self, fault: RuntimeFault) -> None:
        text = f"a cast of {self._sender} to {self._target}.{self._endpoint} failed: {fault}"
        in_order = isinstance(fault, ActorDied) and str(fault).endswith(f" has ended: {STOPPED}")  # it stopped as ordered
        self._dead.drop(type(fault).__name__, self._target, text, level=logging.DEBUG if in_order else logging.ERROR)


class InternalReply:
    """The reply of work that the runtime itself asked the actor to do: an error is logged."""

    def __init__(self, actor: str) -> None:
        self._actor = actor

    def returned(self, endpoint: ActorEndpoint, value: Any) -> None:
        pass

    def failed(self, fault: RuntimeFault) -> None:
        if isinstance(fault, RemoteError):
            log.error("actor %s failed: %s", self._actor, fault, exc_info=fault.__cause__)


class FutureReply:
    """The caller is in this process; the value passes by reference."""

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self._future = future

    def returned(self, endpoint: ActorEndpoint, value: Any) -> None:
        if not self._future.done():
            self._future.set_result(value)

    def failed(self, fault: RuntimeFault) -> None:
        if not self._future.done():
            self._future.set_exception(fault)
