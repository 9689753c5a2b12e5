"""Calls, casts and streams as callers see them: futures, deadlines, cancellation.

Messages arrive at most once. Owns the rule that every call ends: by its answer, its deadline, or the end of the actor or its
node; and that cancelling one cancels the work for it. How a call crosses to another node is ``remote_calls.py``'s.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from functools import partial
from typing import Any

from ...transport.clock import Clock
from ..actor.deadlines import Deadlines
from ..actor.instance import ActorInstance, Delivery
from ..actor.reply import CastReply, FutureReply
from ..actor.streams import Inlet, Stream
from ..base.address import Address
from ..base.clock import LONGEST, seconds
from ..base.dead_letters import DeadLetters
from ..base.errors import ActorDied, DeadlineExceeded, NodeDown, NoSuchActor
from ..base.scope import CURRENT
from .address_resolver import AddressResolver
from .remote_calls import RemoteCall, RemoteCalls
from .remote_streams import RemoteStreams
from .requests import Requests, wrong_loop


class Calls:
    """See the module; the ``Caller`` of every reference of this node."""

    def __init__(
        self,
        clock: Clock,
        resolver: AddressResolver,
        requests: Requests,
        remote: RemoteCalls,
        streams: RemoteStreams,
        dead: DeadLetters,
    ) -> None:
        self._clock = clock
        self._remote = remote
        self._streams = streams
        self._dead = dead
        self._requests = requests
        self._loop = requests.loop
        self._logged = requests.message_log is not None
        self._route, self._seen = resolver.resolve, resolver.seen
        self.current_incarnation = resolver.current_incarnation
        self._deadlines = Deadlines(clock)

    async def call(
        self,
        target: Address,
        endpoint: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        patience: float,
        returns: Any,
    ) -> Any:
        """Ask the actor, here or on a peer, and wait. Raises a RuntimeFault; as ``seconds`` does for ``patience``."""
        if asyncio.get_running_loop() is not self._loop:
            raise wrong_loop(f"{target}.{endpoint}")
        to = self._route(target)
        if type(patience) is not float or not patience >= 0.0:
            patience = seconds("timeout", patience)
        now = self._clock.now()
        left = min(patience, LONGEST)
        trace = b""
        deadline = now + left
        if (scope := CURRENT.get()) is not None or self._logged:
            trace = self._requests.span(target, endpoint, "call")
            if scope is not None and scope.deadline is not None and not scope.over and scope.deadline < deadline:
                deadline = scope.deadline
                left = min(left, deadline - now)
        if left <= 0.0:
            raise DeadlineExceeded(f"no time is left to call {target}.{endpoint}")
        future: asyncio.Future[Any] = self._loop.create_future()
        work: Delivery | RemoteCall
        if isinstance(to, ActorInstance):
            work = Delivery(to.declared(endpoint), args, kwargs, FutureReply(future), deadline=deadline, trace=trace)
            to.deliver(work)
        else:
            work = self._remote.begin(to, target, endpoint, (args, kwargs), left, trace, future)
        self._deadlines.add(deadline, future, target, endpoint, patience)
        try:
            answer = await future
        except (asyncio.CancelledError, DeadlineExceeded):
            work.cancel()
            raise
        finally:
            self._deadlines.settled()
            if type(work) is RemoteCall:
                work.forget()
        return work.value(answer, returns) if type(work) is RemoteCall else answer

    def cast(self, target: Address, endpoint: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Send; failures to deliver are dead letters. Raises EncodeError for arguments that cannot travel."""
        if threading.get_ident() != self._requests.thread:
            raise wrong_loop(f"{target}.{endpoint}")
        try:
            to = self._route(target)
        except (NodeDown, NoSuchActor, ActorDied) as fault:
            ended = isinstance(fault, NodeDown) and self._seen(target.node)
            level = logging.INFO if ended else logging.WARNING
            self._dead.drop(type(fault).__name__, target, f"a cast to {target}.{endpoint} was dropped: {fault}", level=level)
            return
        trace = self._requests.span(target, endpoint, "cast")
        if not isinstance(to, ActorInstance):
            self._remote.cast(to, target, endpoint, (args, kwargs), trace)
            return
        reply_to = CastReply(self._dead, target, endpoint)
        try:
            declared = to.declared(endpoint)
        except NoSuchActor as fault:
            reply_to.failed(fault)
        else:
            to.deliver(Delivery(declared, args, kwargs, reply_to, deadline=None, trace=trace))

    def stream(
        self, target: Address, endpoint: str, args: tuple[Any, ...], kwargs: dict[str, Any], patience: float, returns: Any
    ) -> Stream[Any]:
        """Return a stream that asks for its first item when it is read."""
        return Stream(partial(self._open, target, endpoint, args, kwargs, returns), seconds("timeout", patience))

    def _open(
        self, target: Address, endpoint: str, args: tuple[Any, ...], kwargs: dict[str, Any], returns: Any, patience: float
    ) -> Inlet:
        return self._streams.open(self._route(target), target, endpoint, args, kwargs, patience, returns)

    def close(self) -> None:
        """Close, once no more calls are made."""
        self._deadlines.close()
