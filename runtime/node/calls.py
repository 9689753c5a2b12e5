"""Calls and casts that cross to another node, both ends.

Owns the ids of open calls, deadlines on the wire (seconds left: clocks differ), cancellation to the callee, and the rule
that every call ends: by its answer, its deadline, or the peer's end. The node says where actors are and carries messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
from collections.abc import Callable
from typing import Any

from blockwright.runtime.actor.actor import Endpoint
from blockwright.runtime.actor.cell import Cell, Delivery
from blockwright.runtime.actor.deadlines import Deadlines
from blockwright.runtime.actor.outcomes import CastOutcome, FutureOutcome
from blockwright.runtime.actor.ref import Address
from blockwright.runtime.base import envelope
from blockwright.runtime.base.buffers import Sink
from blockwright.runtime.base.clock import LONGEST, Clock, seconds
from blockwright.runtime.base.codec import bare, encode, pack, received
from blockwright.runtime.base.dead_letters import DeadLetters
from blockwright.runtime.base.errors import (
    ActorDied,
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
from blockwright.runtime.base.scope import CURRENT, inherited_deadline, new_trace, next_span
from blockwright.runtime.node.peers import Peer
from blockwright.runtime.node.remote_streams import RemoteStreams
from blockwright.runtime.tracing.message_log import MessageLog
from blockwright.transport.errors import MessageTooLarge, PeerGone, QueueFull
from blockwright.transport.wire import Buffer

log = logging.getLogger("blockwright.runtime")
RETRY = 0.02  # seconds until what must be sent is offered again to a connection that takes no more
Send = Callable[[Peer, bytes, list[Buffer]], None]


class Calls:
    """See the module. ``send`` raises the transport's errors, ``find`` NoSuchActor, ``route`` NodeDown too."""

    def __init__(
        self,
        clock: Clock,
        send: Send,
        find: Callable[[str], Cell],
        route: Callable[[Address], Peer | Cell],
        message_log: MessageLog | None,
    ) -> None:
        self.dead = DeadLetters(clock)
        self.clock, self.send, self._find, self._route = clock, send, find, route
        self.message_log = message_log
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._deadlines = Deadlines(clock)
        self._ids = itertools.count(1)
        self.streams = RemoteStreams(self)

    def span(self, target: Address, endpoint: str, kind: str) -> bytes:
        """The trace context of a request about to be sent; where messages are logged, every request has one."""
        trace = next_span()
        if self.message_log is not None:
            scope = CURRENT.get()
            parent = scope.trace if scope is not None and trace else b""
            trace = trace or new_trace()
            self.message_log.sent(trace, parent, str(target), endpoint, kind)
        return trace

    def begin(self, patience: float, label: str) -> tuple[int, float]:
        """(id, seconds left) of a new request. Raises DeadlineExceeded when no time is left."""
        if asyncio.get_running_loop() is not self._loop:
            raise elsewhere(label)
        left, inherited = min(patience, LONGEST), inherited_deadline()
        if inherited is not None:
            left = min(left, inherited - self.clock.now())
        if left <= 0:
            raise DeadlineExceeded(f"no time is left to call {label}")
        return next(self._ids), left

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
            raise elsewhere(f"{target}.{endpoint}")
        to = self._route(target)
        if type(patience) is not float or not patience >= 0.0:
            patience = seconds("timeout", patience)
        now = self.clock.now()
        deadline, trace = now + min(patience, LONGEST), b""
        if (scope := CURRENT.get()) is not None or self.message_log is not None:
            trace = self.span(target, endpoint, "call")
            if scope is not None and scope.deadline is not None and not scope.over and scope.deadline < deadline:
                deadline = scope.deadline
        if deadline <= now:
            raise DeadlineExceeded(f"no time is left to call {target}.{endpoint}")
        future: asyncio.Future[Any] = self._loop.create_future()
        if isinstance(to, Cell):
            delivery = Delivery(to.declared(endpoint), args, kwargs, FutureOutcome(future), deadline=deadline, trace=trace)
            to.deliver(delivery)
            self._deadlines.add(deadline, future, target, endpoint, patience)
            try:
                return await future
            except (asyncio.CancelledError, DeadlineExceeded):
                delivery.cancel()
                raise
            finally:
                self._deadlines.settled()
        number, frozen = next(self._ids), fingerprint(args, kwargs) if to.itself else b""
        if kwargs or not all(map(bare, args)):
            sink = Sink()
            given = encode(args, sink), encode(kwargs, sink) if kwargs else kwargs
            buffers = sink.buffers
        else:
            given, buffers = (args, kwargs), []
        self.ask(to, [envelope.CALL, number, target.key, endpoint, deadline - now, trace, *given], buffers)
        to.pending[number] = future
        self._deadlines.add(deadline, future, target, endpoint, patience)
        try:
            typed, value = await future
        except (asyncio.CancelledError, DeadlineExceeded):
            self.cancel(to, number)
            raise
        finally:
            self._deadlines.settled()
            to.pending.pop(number, None)
        if frozen and fingerprint(args, kwargs) != frozen:
            raise EncodeError(f"an argument of {target}.{endpoint} was changed while it was being served; send a copy")
        return received("the answer", target, endpoint, typed, value, returns)

    def cast(self, target: Address, endpoint: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Send; failures to deliver are dead letters. Raises EncodeError for arguments that cannot travel."""
        if threading.get_ident() != self._thread:
            raise elsewhere(f"{target}.{endpoint}")
        try:
            to = self._route(target)
        except (NodeDown, NoSuchActor, ActorDied) as fault:
            self.dead.drop(type(fault).__name__, target, f"a cast to {target}.{endpoint} was dropped: {fault}")
            return
        trace = self.span(target, endpoint, "cast")
        if isinstance(to, Cell):
            outcome = CastOutcome(self.dead, target, endpoint)
            try:
                declared = to.declared(endpoint)
            except NoSuchActor as fault:
                outcome.failed(fault)
            else:
                to.deliver(Delivery(declared, args, kwargs, outcome, deadline=None, trace=trace))
            return
        sink = Sink()
        message = [
            envelope.CAST,
            next(self._ids),
            target.key,
            endpoint,
            trace,
            encode(args, sink),
            encode(kwargs, sink) if kwargs else kwargs,
        ]
        try:
            self.send(to, pack(message), sink.buffers)
            to.casts_sent += 1
        except MessageTooLarge as error:
            raise EncodeError(str(error)) from error
        except (PeerGone, QueueFull) as error:
            self.dead.drop(type(error).__name__, target, f"a cast to {target}.{endpoint} was dropped: {error}")

    def close(self) -> None:
        """After ``abandon`` for every peer."""
        self._deadlines.close()
        self.dead.repeats.close()
        if self.message_log is not None:
            self.message_log.close()

    def abandon(self, peer: Peer, fault: NodeDown, *, wanted: bool = False) -> None:
        """The peer is gone: calls to it fail now, work for its calls is cancelled, casts that it never confirmed are dead
        letters (some may have been delivered: their confirmation was on its way). ``wanted``: this node stops, so that
        there is nothing to warn of."""
        if (unconfirmed := peer.casts_sent - peer.casts_confirmed) > 0:
            peer.casts_confirmed = peer.casts_sent
            self.dead.add("Unconfirmed", unconfirmed)
        if unconfirmed > 0 and not wanted:
            log.warning("%d casts to %s were not confirmed before its end: %s", unconfirmed, peer.id, fault)
        for future in peer.pending.values():
            if not future.done():
                future.set_exception(fault)
        peer.pending.clear()
        for inlet in list(peer.streams.values()):
            inlet.fail(fault)
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
        trace: bytes,
        args: list[Any],
        kwargs: dict[str, Any],
    ) -> None:
        found = self.admit(peer, number, actor, endpoint, left, args, kwargs, stream=False)
        if found is None:
            return
        cell, declared, given = found
        outcome = _RemoteOutcome(self, peer, number)
        delivery = Delivery(declared, *given, outcome, deadline=self.clock.now() + left, trace=trace)
        peer.inbound[number] = delivery
        cell.deliver(delivery)

    def admit(
        self,
        peer: Peer,
        number: int,
        actor: str,
        endpoint: str,
        left: float,
        args: list[Any],
        kwargs: dict[str, Any],
        *,
        stream: bool,
    ) -> tuple[Cell, Endpoint, tuple[tuple[Any, ...], dict[str, Any]]] | None:
        """Who is asked for what; None when the peer was answered with a fault."""
        try:
            if not 0 < left <= LONGEST:
                raise DeadlineExceeded(f"{actor}.{endpoint} expired on its way")
            cell = self._find(actor)
            declared = cell.declared(endpoint, stream=stream)
            return cell, declared, declared.bind(args, kwargs)
        except RuntimeFault as fault:
            self.reply(peer, number, [envelope.FAULT, number, *fault_to_wire(fault)], [])
            return None

    def on_cast(
        self, peer: Peer, number: int, actor: str, endpoint: str, trace: bytes, args: list[Any], kwargs: dict[str, Any]
    ) -> None:
        peer.casts_seen += 1
        outcome = CastOutcome(self.dead, actor, endpoint, peer.id)
        try:
            cell = self._find(actor)
            declared = cell.declared(endpoint)
            given = declared.bind(args, kwargs)
        except RuntimeFault as fault:
            outcome.failed(fault)
            return
        cell.deliver(Delivery(declared, *given, outcome, deadline=None, trace=trace))

    def on_reply(self, peer: Peer, number: int, typed: bool, value: Any) -> None:
        if (future := peer.pending.get(number)) is not None and not future.done():
            future.set_result((typed, value))
        else:
            self.dead.add("LateAnswer")  # whoever asked has given up

    def on_fault(self, peer: Peer, number: int, tag: int, kind: str, text: str, trace: str) -> None:
        if (future := peer.pending.get(number)) is not None and not future.done():
            future.set_exception(fault_from_wire(tag, kind, text, trace))
        elif (inlet := peer.streams.get(number)) is not None:
            inlet.fail(fault_from_wire(tag, kind, text, trace))
        else:
            self.dead.add("LateAnswer")

    def on_unreadable(self, peer: Peer, number: int, error: DecodeError) -> None:
        """An answer came whose value cannot be read here."""
        if (future := peer.pending.get(number)) is not None and not future.done():
            future.set_exception(error)

    def on_cancel(self, peer: Peer, number: int) -> None:
        if (delivery := peer.inbound.pop(number, None)) is not None:
            delivery.cancel()

    def ask(self, to: Peer, message: list[Any], buffers: list[Buffer]) -> None:
        """Send a request. Raises what the caller of an endpoint may see."""
        try:
            self.send(to, pack(message), buffers)
        except MessageTooLarge as error:
            raise EncodeError(str(error)) from error
        except PeerGone as error:
            raise NodeDown(f"node {to.id} is not connected: {error}") from error
        except QueueFull as error:
            raise MailboxFull(f"the way to {to.id} is full: {error}") from error

    def cancel(self, to: Peer, number: int) -> None:
        """Tell the peer that nobody waits for the request any more."""
        self.insist(to, pack([envelope.CANCEL, number]))

    def insist(self, to: Peer, body: bytes) -> None:
        """Send what must arrive if anything does (cancellation, credit), again and again while the way is full."""
        try:
            self.send(to, body, [])
        except PeerGone:  # its end settles everything
            pass
        except QueueFull:
            self.clock.call_at(self.clock.now() + RETRY, lambda: self.insist(to, body))

    def confirm(self, peer: Peer) -> None:
        """Tell a peer how many of its casts have come, if that is news. Called with each heartbeat."""
        if peer.casts_seen != peer.casts_told:
            with contextlib.suppress(PeerGone, QueueFull):
                self.send(peer, pack([envelope.SEEN, peer.casts_seen]), [])
                peer.casts_told = peer.casts_seen

    def on_seen(self, peer: Peer, casts: int) -> None:
        peer.casts_confirmed = max(peer.casts_confirmed, min(casts, peer.casts_sent))

    async def pause(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self.clock.call_at(self.clock.now() + seconds, lambda: _release(future))
        try:
            await future
        finally:
            timer.cancel()

    def reply(self, peer: Peer, number: int, message: list[Any], buffers: list[Buffer]) -> None:
        peer.inbound.pop(number, None)
        try:
            self.send(peer, pack(message), buffers)
        except (EncodeError, MessageTooLarge) as error:
            fault = fault_to_wire(EncodeError(str(error)))
            self.reply(peer, number, [envelope.FAULT, number, *fault], [])
        except (PeerGone, QueueFull) as error:
            self.dead.drop(type(error).__name__, peer.id, f"an answer to {peer.id} was dropped: {error}")


class _RemoteOutcome:
    """Sends the result of a call back to the peer that made it."""

    __slots__ = ("_calls", "_number", "_peer")

    def __init__(self, calls: Calls, peer: Peer, number: int) -> None:
        self._calls, self._peer, self._number = calls, peer, number

    def returned(self, endpoint: Endpoint, value: Any) -> None:
        if bare(value):
            self._calls.reply(self._peer, self._number, [envelope.REPLY, self._number, False, value], [])
            return
        sink = Sink()
        try:
            data = encode(value, sink)
        except EncodeError as error:
            self.failed(EncodeError(f"the answer of {endpoint.name}: {error}"))
            return
        self._calls.reply(self._peer, self._number, [envelope.REPLY, self._number, sink.typed, data], sink.buffers)

    def failed(self, fault: RuntimeFault) -> None:
        message = [envelope.FAULT, self._number, *fault_to_wire(fault)]
        self._calls.reply(self._peer, self._number, message, [])


def fingerprint(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """All that an argument list holds; two are equal while nobody has changed it."""
    sink = Sink()
    return b"".join([pack([encode(args, sink), encode(kwargs, sink) if kwargs else kwargs]), *sink.buffers])


def elsewhere(label: str) -> RuntimeError:
    """Why it cannot be called: nothing here is locked."""
    return RuntimeError(
        f"{label} is used outside of the event loop that its node runs on; from another thread call "
        "asyncio.run_coroutine_threadsafe(ref.method(...), loop), or loop.call_soon_threadsafe(ref.method.cast, ...)"
    )


def _release(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
