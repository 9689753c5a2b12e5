"""Calls and casts from other nodes, the callee's end.

Owns the check of a request when it comes (time left, actor, endpoint, arguments), what of it can still be cancelled, and the
way of its reply back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...transport.clock import Clock
from ..actor.endpoint import ActorEndpoint
from ..actor.instance import ActorInstance, Delivery
from ..actor.reply import CastReply
from ..base import envelope
from ..base.buffers import Sink
from ..base.clock import LONGEST
from ..base.codec import bare, encode
from ..base.dead_letters import DeadLetters
from ..base.errors import DeadlineExceeded, DecodeError, EncodeError, RuntimeFault, fault_to_wire
from .peers import Peer
from .sender import PeerSender

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Admitted = tuple[ActorInstance, ActorEndpoint, Arguments]


class RemoteReply:
    """Sends the result of a call back to the peer that made it."""

    __slots__ = ("_number", "_peer", "_sender")

    def __init__(self, sender: PeerSender, peer: Peer, number: int) -> None:
        self._sender = sender
        self._peer = peer
        self._number = number

    def returned(self, endpoint: ActorEndpoint, value: Any) -> None:
        if bare(value):
            self._sender.reply(self._peer, self._number, [envelope.REPLY, self._number, False, value], [])
            return
        sink = Sink()
        try:
            data = encode(value, sink)
        except EncodeError as error:
            self.failed(EncodeError(f"the answer of {endpoint.name}: {error}"))
            return
        self._sender.reply(self._peer, self._number, [envelope.REPLY, self._number, sink.typed, data], sink.buffers)

    def failed(self, fault: RuntimeFault) -> None:
        message = [envelope.FAULT, self._number, *fault_to_wire(fault)]
        self._sender.reply(self._peer, self._number, message, [])


class IncomingCalls:
    """See the module. find: an instance of this node by key, raises NoSuchActor or ActorDied."""

    def __init__(self, clock: Clock, sender: PeerSender, find: Callable[[str], ActorInstance], dead: DeadLetters) -> None:
        self._clock = clock
        self._sender = sender
        self._find = find
        self._dead = dead

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
        instance, declared, given = found
        reply_to = RemoteReply(self._sender, peer, number)
        delivery = Delivery(declared, *given, reply_to, deadline=self._clock.now() + left, trace=trace)
        peer.inbound[number] = delivery
        instance.deliver(delivery)

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
    ) -> Admitted | None:
        """Return the actor and the endpoint that are asked; None when the peer was answered with a fault."""
        try:
            if not 0 < left <= LONGEST:
                raise DeadlineExceeded(f"{actor}.{endpoint} expired on its way")
            instance = self._find(actor)
            declared = instance.declared(endpoint, stream=stream)
            return instance, declared, self._bind(peer, declared, args, kwargs)
        except RuntimeFault as fault:
            self._sender.reply(peer, number, [envelope.FAULT, number, *fault_to_wire(fault)], [])
            return None

    def on_cast(
        self, peer: Peer, number: int, actor: str, endpoint: str, trace: bytes, args: list[Any], kwargs: dict[str, Any]
    ) -> None:
        peer.casts_seen += 1
        reply_to = CastReply(self._dead, actor, endpoint, peer.id)
        try:
            instance = self._find(actor)
            declared = instance.declared(endpoint)
            given = self._bind(peer, declared, args, kwargs)
        except RuntimeFault as fault:
            reply_to.failed(fault)
            return
        instance.deliver(Delivery(declared, *given, reply_to, deadline=None, trace=trace))

    def _bind(self, peer: Peer, declared: ActorEndpoint, args: list[Any], kwargs: dict[str, Any]) -> Arguments:
        """Return the arguments of a call, but none that a peer of a later release adds. Raises DecodeError."""
        try:
            return declared.bind(args, kwargs)
        except DecodeError:
            if not self._sender.newer(peer):
                raise
            return (), declared.decode_arguments(args, kwargs, known_only=True)

    def on_cancel(self, peer: Peer, number: int) -> None:
        if (delivery := peer.inbound.pop(number, None)) is not None:
            delivery.cancel()
