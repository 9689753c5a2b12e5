"""What a node looks like from inside, as values that travel: its actors, their mailboxes, its peers; and the same as numbers
for Prometheus.

Owns the records and how they are taken; changes nothing. ``node.inspect()`` here, the system actor's ``inspect`` from afar.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from blockwright.runtime.actor.cell import Cell, Delivery
from blockwright.runtime.actor.ref import CALL_TIMEOUT, Address
from blockwright.runtime.node.monitors import SYSTEM

if TYPE_CHECKING:
    from blockwright.runtime.node.node import Node


@dataclass(frozen=True, slots=True)
class LaneView:
    """``oldest``: seconds that the message at its head has waited."""

    depth: int = 0
    oldest: float = 0.0


@dataclass(frozen=True, slots=True)
class ActorView:
    name: str
    kind: str  # its class
    life: int
    restarts: int  # by its supervisor
    normal: LaneView
    urgent: LaneView
    current: str  # endpoint of the message of the mailbox that it handles; "" if none
    current_age: float  # seconds
    beside: int  # concurrent messages and streams that run beside the mailbox
    streams: int  # of them
    handled: int  # messages begun since the start of this life
    failed: int  # of them, ended by an error
    ending: str = ""  # why, while it ends
    supervisor: str = ""  # node/name of the actor that it does not outlive
    missing: dict[str, str] = field(default_factory=dict)  # of a supervisor: children that are not up -> why


@dataclass(frozen=True, slots=True)
class PeerView:
    name: str
    incarnation: int
    silent: float  # seconds since its last message
    lag: float  # of its loop, as its last heartbeat said
    calls: int  # of ours that it has not answered
    serving: int  # of its calls and streams, here
    reading: int  # of its streams, here
    casts_unconfirmed: int
    lost: bool
    link: str  # how tensors travel to it: "shared-memory", "frames", "reference"; "" before the first link


@dataclass(frozen=True, slots=True)
class NodeView:
    name: str
    incarnation: int
    lag: float  # seconds by which the loop was late for the last heartbeat
    actors: list[ActorView] = field(default_factory=list)
    peers: list[PeerView] = field(default_factory=list)
    dead_letters: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Measure:
    """A Prometheus family. ``kind``: "gauge" or "counter" (then without the suffix "_total")."""

    name: str
    kind: str
    text: str
    samples: list[tuple[dict[str, str], float]]


class Looking:
    """The part of ``Node`` that shows what goes on."""

    def inspect(self: Node) -> NodeView:  # type: ignore[misc]
        """Actors, mailboxes, peers as they are now."""
        return inspect_node(self)

    async def inspect_peer(self: Node, name: str) -> NodeView:  # type: ignore[misc]
        """The same of another node. Raises NodeDown."""
        view: NodeView = await self.call(Address(name, SYSTEM), "inspect", (), {}, CALL_TIMEOUT, NodeView)
        return view

    def metrics(self: Node) -> list[Measure]:  # type: ignore[misc]
        """``inspect`` as families of numbers, for Prometheus."""
        return measures(inspect_node(self))


async def inspect_peers(node: Node) -> list[NodeView]:
    """Of every node that is up but this one, by name. One that does not answer is left out."""
    views = await asyncio.gather(*[node.inspect_peer(name) for name in sorted(node.peers())], return_exceptions=True)
    return [view for view in views if isinstance(view, NodeView)]


def inspect_node(node: Node) -> NodeView:
    now = node.clock.now()
    peers = [
        PeerView(
            peer.id.name,
            peer.incarnation,
            now - peer.heard,
            peer.vitals.lag,
            len(peer.pending),
            len(peer.inbound),
            len(peer.streams),
            peer.casts_sent - peer.casts_confirmed,
            peer.lost,
            node.tensor_links.kind(peer.id),
        )
        for peer in node.table.current.values()
    ]
    owners = {name: life.owner for name, life in node.lives.current.items()}
    actors = [inspect_cell(cell, owners.get(name), now) for name, cell in node.lives.cells.items()]
    return NodeView(node.name, node.incarnation, node.lag, actors, peers, dict(node.dead_letters), dict(node.dropped))


def inspect_cell(cell: Cell, owner: Address | None, now: float) -> ActorView:
    current = cell.current
    return ActorView(
        cell.name,
        type(cell.actor).__name__,
        cell.life,
        cell.restarts,
        _lane(cell.mailbox.normal, now),
        _lane(cell.mailbox.urgent, now),
        current.endpoint.name if current is not None else "",
        now - current.since if current is not None else 0.0,
        len(cell.beside),
        sum(delivery.endpoint.stream for delivery in cell.beside),
        cell.handled,
        cell.failed,
        cell.over,
        f"{owner.node}/{owner.name}" if owner is not None else "",
        cell.actor.missing(),
    )


def _lane(lane: deque[Delivery], now: float) -> LaneView:
    return LaneView(len(lane), now - lane[0].since) if lane else LaneView()


def measures(view: NodeView) -> list[Measure]:
    """The same in numbers. Actors are few and named by the application, so each has samples of its own."""
    return [Measure(f"blockwright_runtime_{name}", kind, text, samples) for name, kind, text, samples in _families(view)]


def _families(view: NodeView) -> Iterator[tuple[str, str, str, list[tuple[dict[str, str], float]]]]:
    actors = [(actor, {"node": view.name, "actor": actor.name}) for actor in view.actors]
    lanes = [
        (lane, {**labels, "lane": name})
        for a, labels in actors
        for name, lane in (("normal", a.normal), ("urgent", a.urgent))
    ]
    here = {"node": view.name}
    yield "loop_lag_seconds", "gauge", "How late the loop was for the last heartbeat.", [(here, view.lag)]
    yield "mailbox_depth", "gauge", "Messages that wait, by lane.", [(labels, lane.depth) for lane, labels in lanes]
    text = "Seconds that the first message of a lane has waited."
    yield "mailbox_oldest_seconds", "gauge", text, [(labels, lane.oldest) for lane, labels in lanes]
    text = "Seconds that the current message has run."
    yield "message_age_seconds", "gauge", text, [(labels, a.current_age) for a, labels in actors]
    text = "Concurrent messages and streams that run beside the mailbox."
    yield "running_beside", "gauge", text, [(labels, a.beside) for a, labels in actors]
    yield "streams", "gauge", "Streams that run.", [(labels, a.streams) for a, labels in actors]
    yield "messages_handled", "counter", "Messages begun.", [(labels, a.handled) for a, labels in actors]
    yield "messages_failed", "counter", "Messages that ended in an error.", [(labels, a.failed) for a, labels in actors]
    yield "restarts", "counter", "Restarts by a supervisor.", [(labels, a.restarts) for a, labels in actors]
    peers = [(peer, {**here, "peer": peer.name}) for peer in view.peers]
    yield "peer_silent_seconds", "gauge", "Since a peer's last message.", [(labels, p.silent) for p, labels in peers]
    yield "open_calls", "gauge", "Calls to a peer without an answer yet.", [(labels, p.calls) for p, labels in peers]
    text = "Casts, answers and messages of links that reached nobody, by cause."
    yield "dead_letters", "counter", text, [({**here, "cause": c}, n) for c, n in view.dead_letters.items()]
    text = "Received messages that were not let in, by reason."
    yield "dropped", "counter", text, [({**here, "reason": r}, n) for r, n in view.dropped.items()]
