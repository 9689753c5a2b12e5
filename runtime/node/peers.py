"""The table of peers: the current life of each other node, its open calls and streams, and monitors of its end.

Owns fencing (what comes from an incarnation that was declared down, or from one older than the current, is not let in) and
the exactly-once firing of node monitors. Sends nothing and measures no time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...transport.address import PeerId
from ..actor.instance import Delivery
from ..base.down import Down, OnDown, notify
from ..base.errors import RuntimeFault
from .heartbeat import Heartbeat

log = logging.getLogger("blockwright.runtime")


class StreamReader(Protocol):
    """The consumer's end of a stream that a peer produces."""

    def receive(self, number: int, typed: bool, value: Any, size: int) -> None:
        """Item ``number`` (from 1) came; ``size``: bytes that it counts for."""

    def end(self, items: int) -> None:
        """End the stream: the producer has sent all of its ``items``."""

    def fail(self, fault: RuntimeFault) -> None: ...

    def broken(self, why: str) -> None:
        """Break the stream: an item cannot be given, so nothing after it can."""

    def renew(self) -> None:
        """Tell the producer how far this end has read; also that it is still there."""


@dataclass(slots=True, eq=False)
class Peer:
    """One life of another node."""

    id: PeerId
    endpoint: str
    heard: float  # when the last message came, by this node's clock
    heartbeat_at: float | None = None  # when the last heartbeat came
    heartbeat: Heartbeat = field(default_factory=Heartbeat)  # the last one: lag, mailboxes, age of running messages
    payload: dict[str, Any] = field(default_factory=dict)  # of its last heartbeat: what its application adds
    numbered: int = 0  # of the last call or cast from it that was let in
    itself: bool = False  # this node, which talks to itself by message (``encode_local``)
    casts_sent: int = 0  # to it,
    casts_confirmed: int = 0  # of these, the ones that it has confirmed
    casts_seen: int = 0  # from it,
    casts_reported: int = 0  # of these, the ones that were reported to it
    met: bool = False  # this node has said where it listens: heartbeats are exchanged
    stays: bool = False  # it listens to heartbeats, so they do not end while there is nothing else to say
    unused: int = 0  # heartbeats of ours since a message other than a heartbeat was exchanged
    lost: bool = False  # the connection broke; calls fail, the end is not declared yet
    pending: dict[int, asyncio.Future[Any]] = field(default_factory=dict)  # calls to it, by id
    inbound: dict[int, Delivery] = field(default_factory=dict)  # calls and streams from it that wait or run here, by id
    streams: dict[int, StreamReader] = field(default_factory=dict)  # streams from it that are read here, by id
    monitors: list[OnDown] = field(default_factory=list)

    @property
    def incarnation(self) -> int:
        return self.id.incarnation

    @property
    def busy(self) -> bool:
        """Something between the two nodes has not ended."""
        return bool(self.pending or self.inbound or self.streams) or self.casts_sent != self.casts_confirmed


class PeerTable:
    """See the module."""

    def __init__(self) -> None:
        self.current: dict[str, Peer] = {}
        self.last_down: dict[str, Down] = {}
        self.arrivals: list[Callable[[], None]] = []  # called when a node has become known
        self.heartbeats: list[Callable[[Peer], None]] = []  # called when a node has sent one

    def find(self, peer: PeerId) -> Peer | None:
        """Return the peer if this is its current incarnation."""
        found = self.current.get(peer.name)
        return found if found is not None and found.id == peer else None

    def monitor(self, node: str, on_down: OnDown) -> Callable[[], None]:
        """Do the work of ``Node.monitor`` for nodes."""
        peer = self.current.get(node)
        if peer is None:
            last = self.last_down.get(node, Down(node, 0, "not up"))
            return asyncio.get_running_loop().call_soon(notify, on_down, last).cancel

        def report(down: Down) -> None:  # of its own, so that another monitor with the same callback is not taken back
            on_down(down)

        peer.monitors.append(report)

        def undo() -> None:
            with contextlib.suppress(ValueError):
                peer.monitors.remove(report)

        return undo

    def fenced(self, peer: PeerId) -> bool:
        """Return True if this incarnation is over: declared down, or older than the known one."""
        known = self.current.get(peer.name)
        over = self.last_down.get(peer.name)
        return (over is not None and peer.incarnation <= over.incarnation) or (
            known is not None and peer.incarnation < known.incarnation
        )

    def why_down(self, node: str, incarnation: int = 0) -> str:
        """Why that node, or that life of it, cannot be reached: for an error."""
        over = self.last_down.get(node)
        known = self.current.get(node)
        if known is not None and incarnation not in (0, known.incarnation):
            return f"node {node}#{incarnation} is gone; its current incarnation is {known.incarnation}"
        if known is not None:
            return f"node {known.id} is down: the connection broke"
        return f"node {node} is not known" if over is None else f"node {node}#{over.incarnation} is down: {over.cause}"

    def add(self, peer: Peer) -> None:
        """Make it current. Its predecessor, if any, was removed before."""
        assert peer.id.name not in self.current, "the predecessor must be declared down first"
        self.current[peer.id.name] = peer
        for callback in list(self.arrivals):
            callback()

    def beat(self, peer: Peer) -> None:
        """Record a heartbeat of the peer. A callback's error must not stop the runtime."""
        for callback in list(self.heartbeats):
            try:
                callback(peer)
            except Exception:
                log.exception("a callback failed at a heartbeat of %s", peer.id)

    def remove(self, down: Down) -> Peer | None:
        """Fence the incarnation and fire its monitors; the peer it was, or None if it was not current (any more).

        Also remembers the end of a life that this node never met, so that it cannot join later.
        """
        over = self.last_down.get(down.node)
        if over is None or down.incarnation > over.incarnation:
            self.last_down[down.node] = down
        return self.forget(down)

    def forget(self, down: Down) -> Peer | None:
        """Remove a peer that may be met again as the same life, and fire its monitors."""
        peer = self.find(PeerId(down.node, down.incarnation))
        if peer is None:
            return None
        del self.current[down.node]
        monitors, peer.monitors = peer.monitors, []
        for monitor in monitors:
            notify(monitor, down)
        return peer
