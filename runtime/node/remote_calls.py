"""Calls and casts to actors of other nodes, the caller's end on the wire.

Owns what is sent and what comes back: requests by number, replies and faults matched to them, the failure of all open calls
when a peer is gone. Who waits, and how long, is ``calls.py``'s.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from ...transport.errors import MessageTooLarge, PeerGone, QueueFull
from ...transport.wire import Buffer
from ..base import envelope
from ..base.address import Address
from ..base.buffers import Sink
from ..base.codec import bare, encode, pack
from ..base.dead_letters import DeadLetters
from ..base.decoding import received
from ..base.errors import DecodeError, EncodeError, NodeDown, fault_from_wire
from .peers import Peer
from .requests import Requests
from .sender import PeerSender

log = logging.getLogger("blockwright.runtime")
Arguments = tuple[tuple[Any, ...], dict[str, Any]]  # by position, by keyword


class RemoteCall:
    """One call that a peer was asked to serve."""

    __slots__ = ("_endpoint", "_frozen", "_given", "_number", "_peer", "_sender", "_target")

    def __init__(
        self, sender: PeerSender, peer: Peer, number: int, target: Address, endpoint: str, given: Arguments
    ) -> None:
        self._sender = sender
        self._peer = peer
        self._number = number
        self._target = target
        self._endpoint = endpoint
        self._given = given
        self._frozen = fingerprint(*given) if peer.itself else b""

    def cancel(self) -> None:
        """Cancel a call that has no waiting caller any more."""
        self._sender.cancel(self._peer, self._number)

    def forget(self) -> None:
        self._peer.pending.pop(self._number, None)

    def value(self, answer: tuple[bool, Any], returns: Any) -> Any:
        """Return the caller's value of the peer's answer. Raises DecodeError, EncodeError."""
        if self._frozen and fingerprint(*self._given) != self._frozen:
            name = f"{self._target}.{self._endpoint}"
            raise EncodeError(f"an argument of {name} was changed while it was being served; send a copy")
        return received("the answer", self._target, self._endpoint, answer[0], answer[1], returns)


class RemoteCalls:
    """See the module."""

    def __init__(self, sender: PeerSender, requests: Requests, dead: DeadLetters) -> None:
        self._sender = sender
        self._requests = requests
        self._dead = dead

    def begin(
        self,
        to: Peer,
        target: Address,
        endpoint: str,
        given: Arguments,
        left: float,
        trace: bytes,
        future: asyncio.Future[Any],
    ) -> RemoteCall:
        """Send the request; ``future`` gets (typed, value) or a fault. ``left``: seconds. Raises a RuntimeFault."""
        call = RemoteCall(self._sender, to, number := self._requests.number(), target, endpoint, given)
        args, kwargs = given
        if kwargs or not all(map(bare, args)):
            sink = Sink()
            args, kwargs = encode(args, sink), encode(kwargs, sink) if kwargs else kwargs
            buffers = sink.buffers
        else:
            buffers = []
        self._sender.ask(to, [envelope.CALL, number, target.key, endpoint, left, trace, args, kwargs], buffers)
        to.pending[number] = future
        return call

    def cast(self, to: Peer, target: Address, endpoint: str, given: Arguments, trace: bytes) -> None:
        """Send a cast. Raises EncodeError; any other failure to send is a dead letter."""
        sink = Sink()
        args, kwargs = given
        body: list[Any] = [envelope.CAST, self._requests.number(), target.key, endpoint, trace]
        body += [encode(args, sink), encode(kwargs, sink) if kwargs else kwargs]
        try:
            self._sender.send(to, pack(body), sink.buffers)
            to.casts_sent += 1
        except MessageTooLarge as error:
            raise EncodeError(str(error)) from error
        except (PeerGone, QueueFull) as error:
            self._dead.drop(type(error).__name__, target, f"a cast to {target}.{endpoint} was dropped: {error}")

    def abandon(self, peer: Peer, fault: NodeDown, *, wanted: bool = False) -> None:
        """End the work with a peer that is gone: calls to it fail now, work for its calls is cancelled, casts that it
        never confirmed are dead letters (some may have been delivered: their confirmation was on its way). ``wanted``:
        this node stops, so that there is nothing to warn of.
        """
        if (unconfirmed := peer.casts_sent - peer.casts_confirmed) > 0:
            peer.casts_confirmed = peer.casts_sent
            self._dead.add("Unconfirmed", unconfirmed)
        if unconfirmed > 0 and not wanted:
            log.warning("%d casts to %s were not confirmed before its end: %s", unconfirmed, peer.id, fault)
        for future in peer.pending.values():
            if not future.done():
                future.set_exception(fault)
        peer.pending.clear()
        for reader in list(peer.streams.values()):
            reader.fail(fault)
        for delivery in list(peer.inbound.values()):
            delivery.cancel()
        peer.inbound.clear()

    def on_reply(self, peer: Peer, number: int, typed: bool, value: Any) -> None:
        if (future := peer.pending.get(number)) is not None and not future.done():
            future.set_result((typed, value))
        else:
            self._dead.add("LateAnswer")  # the caller has given up

    def on_fault(self, peer: Peer, number: int, tag: int, kind: str, text: str, trace: str) -> None:
        if (future := peer.pending.get(number)) is not None and not future.done():
            future.set_exception(fault_from_wire(tag, kind, text, trace))
        elif (reader := peer.streams.get(number)) is not None:
            reader.fail(fault_from_wire(tag, kind, text, trace))
        else:
            self._dead.add("LateAnswer")

    def on_unreadable(self, peer: Peer, number: int, error: DecodeError) -> None:
        """Handle an answer whose value cannot be read here."""
        if (future := peer.pending.get(number)) is not None and not future.done():
            future.set_exception(error)

    def on_seen(self, peer: Peer, casts: int) -> None:
        """Record the number of casts that the peer has received."""
        peer.casts_confirmed = max(peer.casts_confirmed, min(casts, peer.casts_sent))


def fingerprint(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """Return everything that an argument list holds; two fingerprints are equal while the list is unchanged."""
    sink = Sink()
    encoded: list[Buffer] = [pack([encode(args, sink), encode(kwargs, sink) if kwargs else kwargs]), *sink.buffers]
    return b"".join(encoded)
