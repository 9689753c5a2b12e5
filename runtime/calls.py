"""Calls and casts that cross to another node, both ends.

Owns the ids of open calls, deadlines on the wire (seconds left: clocks differ), cancellation to the callee, and the rule
that every call ends: by its answer, its deadline, or the peer's end. The node says where actors are and carries messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

from blockwright.runtime import envelope
from blockwright.runtime.actor import Endpoint
from blockwright.runtime.buffers import Sink
from blockwright.runtime.cell import DEADLINE, TRACE, CastOutcome, Cell, Delivery, FutureOutcome
from blockwright.runtime.clock import Clock
from blockwright.runtime.codec import decode, encode, pack
from blockwright.runtime.errors import (
    DeadlineExceeded,
    DecodeError,
    EncodeError,
    MailboxFull,
    NodeDown,
    NoSuchActor,
    RuntimeFault,
    fault_from_wire,
    fault_to_wire,
)
from blockwright.runtime.peers import Peer
from blockwright.runtime.ref import Address
from blockwright.transport.errors import MessageTooLarge, PeerGone, QueueFull
from blockwright.transport.wire import Buffer

log = logging.getLogger("blockwright.runtime")
LONGEST = 86400.0  # seconds a deadline may lie ahead
Send = Callable[[Peer, bytes, list[Buffer]], None]


class Calls:
    """See the module. ``send`` raises the transport's errors; ``find`` raises NoSuchActor."""

    def __init__(self, origin: str, clock: Clock, send: Send, find: Callable[[str], Cell]) -> None:
        self.dead_letters: Counter[str] = Counter()  # casts and answers that reached nobody, by error
        self._origin, self._clock, self._send, self._find = origin, clock, send, find
        self._ids = itertools.count(1)

    async def call(
        self,
        to: Peer | Cell,
        target: Address,
        endpoint: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        patience: float,
        returns: Any,
    ) -> Any:
        """Ask the peer, or the actor in this process, and wait. Raises a RuntimeFault."""
        now = self._clock.now()
        inherited = DEADLINE.get()
        deadline = now + min(patience, LONGEST) if inherited is None else min(now + patience, inherited)
        if deadline <= now:
            raise DeadlineExceeded(f"no time is left to call {target}.{endpoint}")
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        number = next(self._ids)
        trace = TRACE.get() or f"{self._origin}.{number}"
        if isinstance(to, Cell):
            outcome = FutureOutcome(future)
            delivery = Delivery(_declared(to, endpoint), args, kwargs, outcome, deadline=deadline, trace=trace)
            to.deliver(delivery)
            cancel: Callable[[], None] = delivery.cancel
        else:
            self._ask(to, number, target, endpoint, args, kwargs, deadline - now, trace)
            to.pending[number] = future
            cancel = lambda: self._cancel(to, number)  # noqa: E731
        timer = self._clock.call_at(deadline, lambda: _expire(future, target, endpoint, patience))
        try:
            result = await future
        except asyncio.CancelledError:
            cancel()
            raise
        except DeadlineExceeded:
            cancel()
            raise
        finally:
            timer.cancel()
            if isinstance(to, Peer):
                to.pending.pop(number, None)
        return result if isinstance(to, Cell) else _answer(target, endpoint, result, returns)

    def cast(self, to: Peer | Cell, target: Address, endpoint: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Send; failures to deliver are dead letters. Raises EncodeError for arguments that cannot travel."""
        trace = TRACE.get() or f"{self._origin}.{next(self._ids)}"
        outcome = CastOutcome(f"{target}.{endpoint}", self.dead_letter)
        if isinstance(to, Cell):
            try:
                declared = _declared(to, endpoint)
            except NoSuchActor as fault:
                outcome.failed(fault)
            else:
                to.deliver(Delivery(declared, args, kwargs, outcome, deadline=None, trace=trace))
            return
        sink = Sink()
        body = pack([envelope.CAST, target.key, endpoint, trace, encode(args, sink), encode(kwargs, sink)])
        try:
            self._send(to, body, sink.buffers)
        except MessageTooLarge as error:
            raise EncodeError(str(error)) from error
        except (PeerGone, QueueFull) as error:
            self.dead_letter(type(error).__name__)
            log.warning("a cast to %s.%s was dropped: %s", target, endpoint, error)

    def dead_letter(self, reason: str) -> None:
        self.dead_letters[reason] += 1

    def abandon(self, peer: Peer, fault: NodeDown) -> None:
        """The peer is gone: calls to it fail now, work for its calls is cancelled."""
        for future in peer.pending.values():
            if not future.done():
                future.set_exception(fault)
        peer.pending.clear()
        for delivery in list(peer.inbound.values()):
            delivery.cancel()
        peer.inbound.clear()

    def on_call(
        self,
        peer: Peer,
        number: int,
        actor: str,
        endpoint: str,
        left: float,
        trace: str,
        args: list[Any],
        kwargs: dict[str, Any],
    ) -> None:
        if number in peer.inbound:
            raise DecodeError(f"call {number} of {peer.id} came twice")
        try:
            if not 0 < left <= LONGEST:
                raise DeadlineExceeded(f"{actor}.{endpoint} expired on its way")
            cell = self._find(actor)
            declared = _declared(cell, endpoint)
            given = declared.decode_arguments(args, kwargs)
        except RuntimeFault as fault:
            self._reply(peer, number, [envelope.FAULT, number, *fault_to_wire(fault)], [])
            return
        outcome = _RemoteOutcome(self, peer, number)
        delivery = Delivery(declared, (), given, outcome, deadline=self._clock.now() + left, trace=trace)
        peer.inbound[number] = delivery
        cell.deliver(delivery)

    def on_cast(self, peer: Peer, actor: str, endpoint: str, trace: str, args: list[Any], kwargs: dict[str, Any]) -> None:
        outcome = CastOutcome(f"{actor}.{endpoint} from {peer.id}", self.dead_letter)
        try:
            cell = self._find(actor)
            declared = _declared(cell, endpoint)
            given = declared.decode_arguments(args, kwargs)
        except RuntimeFault as fault:
            outcome.failed(fault)
            return
        cell.deliver(Delivery(declared, (), given, outcome, deadline=None, trace=trace))

    def on_reply(self, peer: Peer, number: int, typed: bool, value: Any) -> None:
        # A late answer finds no call: the caller has given up, nothing is lost.
        if (future := peer.pending.get(number)) is not None and not future.done():
            future.set_result((typed, value))

    def on_fault(self, peer: Peer, number: int, tag: int, kind: str, text: str, trace: str) -> None:
        if (future := peer.pending.get(number)) is not None and not future.done():
            future.set_exception(fault_from_wire(tag, kind, text, trace))

    def on_cancel(self, peer: Peer, number: int) -> None:
        if (delivery := peer.inbound.pop(number, None)) is not None:
            delivery.cancel()

    def _ask(
        self, to: Peer, number: int, target: Address, endpoint: str, args: Any, kwargs: Any, left: float, trace: str
    ) -> None:
        sink = Sink()
        message = [envelope.CALL, number, target.key, endpoint, left, trace, encode(args, sink), encode(kwargs, sink)]
        try:
            self._send(to, pack(message), sink.buffers)
        except MessageTooLarge as error:
            raise EncodeError(str(error)) from error
        except PeerGone as error:
            raise NodeDown(f"node {to.id} is not connected: {error}") from error
        except QueueFull as error:
            raise MailboxFull(f"the way to {to.id} is full: {error}") from error

    def _cancel(self, to: Peer, number: int) -> None:
        with contextlib.suppress(PeerGone, QueueFull):  # then the callee's deadline ends the work
            self._send(to, pack([envelope.CANCEL, number]), [])

    def _reply(self, peer: Peer, number: int, message: list[Any], buffers: list[Buffer]) -> None:
        peer.inbound.pop(number, None)
        try:
            self._send(peer, pack(message), buffers)
        except (EncodeError, MessageTooLarge) as error:
            fault = fault_to_wire(EncodeError(str(error)))
            self._reply(peer, number, [envelope.FAULT, number, *fault], [])
        except (PeerGone, QueueFull) as error:
            self.dead_letter(type(error).__name__)
            log.warning("an answer to %s was dropped: %s", peer.id, error)


class _RemoteOutcome:
    """Sends the result of a call back to the peer that made it."""

    __slots__ = ("_calls", "_number", "_peer")

    def __init__(self, calls: Calls, peer: Peer, number: int) -> None:
        self._calls, self._peer, self._number = calls, peer, number

    def returned(self, endpoint: Endpoint, value: Any) -> None:
        sink = Sink()
        try:
            data = encode(value, sink)
        except EncodeError as error:
            self.failed(EncodeError(f"the answer of {endpoint.name}: {error}"))
            return
        self._calls._reply(self._peer, self._number, [envelope.REPLY, self._number, sink.typed, data], sink.buffers)

    def failed(self, fault: RuntimeFault) -> None:
        message = [envelope.FAULT, self._number, *fault_to_wire(fault)]
        self._calls._reply(self._peer, self._number, message, [])


def _declared(cell: Cell, endpoint: str) -> Endpoint:
    declared = cell.actor.endpoints.get(endpoint)
    if declared is None:
        raise NoSuchActor(f"actor {cell.name} ({type(cell.actor).__name__}) has no endpoint {endpoint[:80]!r}")
    return declared


def _expire(future: asyncio.Future[Any], target: Address, endpoint: str, patience: float) -> None:
    if not future.done():
        future.set_exception(DeadlineExceeded(f"{target}.{endpoint} did not answer within {patience:g} s"))


def _answer(target: Address, endpoint: str, result: tuple[bool, Any], returns: Any) -> Any:
    typed, value = result
    if returns is None:
        if typed:
            raise DecodeError(f"the answer of {target}.{endpoint} holds dataclasses; call it with returns=TYPE")
        return value
    try:
        return decode(returns, value)
    except DecodeError as error:
        raise DecodeError(f"the answer of {target}.{endpoint}: {error}") from error
