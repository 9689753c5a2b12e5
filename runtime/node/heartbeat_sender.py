"""Heartbeats to peers that were met, and what is looked after with each: stream credit, abandoned work, counts of casts.

Heartbeats come from the event loop itself: a node whose loop hangs falls silent.

No peer confirms a CANCEL. So the callee looks at its calls with each heartbeat and ends those whose deadline is past; the
caller's side has counted the same seconds. Streams have no deadline: their consumer says with each heartbeat how far it has
read (which also makes up for a lost CREDIT), and a stream without a reader is ended.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any

from ...transport.clock import Clock, Timer
from ...transport.errors import PeerGone, QueueFull
from ...transport.interface import Transport
from ..actor.instance import ActorInstance, Delivery
from ..base import envelope
from ..base.buffers import Sink
from ..base.codec import encode, pack
from ..base.errors import DeadlineExceeded
from .heartbeat import measure
from .peers import Peer, PeerTable
from .remote_streams import RemoteOutlet
from .sender import PeerSender

log = logging.getLogger("blockwright.runtime")
IDLE = 60.0  # seconds without a message other than heartbeats after which two nodes may do without these


class HeartbeatSender:
    """See the module. payload: what the application adds, plain data. rest: ends the heartbeats of an idle pair."""

    def __init__(
        self,
        clock: Clock,
        interval: float,
        table: PeerTable,
        instances: Mapping[str, ActorInstance],
        transport: Transport | None,
        sender: PeerSender,
        payload: Callable[[], dict[str, Any]],
        rest: Callable[[Peer], None],
    ) -> None:
        self._clock = clock
        self._interval = interval
        self._table = table
        self._instances = instances
        self._transport = transport
        self._sender = sender
        self._payload = payload
        self._rest = rest
        self.lag = 0.0  # seconds by which the loop was late for its last heartbeat
        self._due = clock.now()
        self._timer: Timer | None = None

    def beat(self) -> None:
        """Now, and from here on at every interval."""
        now = self._clock.now()
        self.lag, self._due = max(0.0, now - self._due), now + self._interval
        self._timer = self._clock.call_at(self._due, self.beat)
        for peer in self._table.current.values():
            for reader in list(peer.streams.values()):
                reader.renew()
            end_abandoned(peer, now)
            peer.unused += 1
            if peer.met and peer.unused * self._interval > IDLE:
                self._rest(peer)
        self.send(self.lag)

    def send(self, lag: float = 0.0) -> None:
        """Tell every peer that was met that this loop runs, how it fares, and the application's payload."""
        state = encode(measure(self._instances.values(), self._clock.now(), lag), Sink())
        try:
            body = pack([envelope.HEARTBEAT, state, encode(self._payload(), Sink())])
        except Exception:
            log.exception("the heartbeat payload cannot be made")
            body = pack([envelope.HEARTBEAT, state, {}])
        for peer in list(self._table.current.values()):
            if self._transport is not None and peer.met and not peer.lost:
                with contextlib.suppress(PeerGone, QueueFull):
                    self._transport.send_pulse(peer.id, body)
            self._sender.confirm(peer)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


UNREAD = 20  # heartbeats of ours (a loop that stands still makes none) without a word of a stream's consumer


def end_abandoned(peer: Peer, now: float) -> int:
    """End the work for this peer that is overdue; how many messages. To be called with each heartbeat."""
    overdue = [(number, delivery) for number, delivery in peer.inbound.items() if _overdue(delivery, now)]
    for number, delivery in overdue:
        if isinstance(delivery.reply_to, RemoteOutlet):
            delivery.reply_to.failed(DeadlineExceeded(f"stream {delivery.endpoint.name} was not read"))
        peer.inbound.pop(number, None)
        delivery.cancel()
    return len(overdue)


def _overdue(delivery: Delivery, now: float) -> bool:
    if delivery.deadline is not None and now >= delivery.deadline:
        return True
    if not isinstance(delivery.reply_to, RemoteOutlet):
        return False
    delivery.reply_to.unread += 1
    return delivery.reply_to.unread > UNREAD
