"""A node as monitoring sees it: actors, mailboxes and peers as values that travel, and the same as Prometheus metrics.

Owns the records and the names of the metrics; how a view is taken is in ``node/inspection.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ...policies.measures import Measure


@dataclass(frozen=True, slots=True)
class LaneView:
    """``oldest``: seconds that the message at its head has waited."""

    depth: int = 0
    oldest: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeRelease:
    """The release of a node, and the versions of the protocol that it speaks ("5-6"); empty where it has not said."""

    name: str
    release: str
    protocol: str


@dataclass(frozen=True, slots=True)
class RefusedRelease:
    """A node that was refused because its release is too far away, and the sentence that it got."""

    name: str
    release: str
    why: str


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


def measures(view: NodeView) -> list[Measure]:
    """Return the same state in numbers. Actors are few and named by the application, so each has samples of its own."""
    made = []
    for name, kind, text, samples in _families(view):
        made.append(Measure(f"blockwright_runtime_{name}", kind, text))
        for labels, value in samples:
            made[-1].add(labels, value)
    return made


def _families(view: NodeView) -> Iterator[tuple[str, str, str, list[tuple[dict[str, str], float]]]]:
    actors = [(actor, {"node": view.name, "actor": actor.name}) for actor in view.actors]
    lanes = [
        (lane, {**labels, "lane": name})
        for a, labels in actors
        for name, lane in (("normal", a.normal), ("urgent", a.urgent))
    ]
    here = {"node": view.name}
    yield "loop_lag_seconds", "gauge", "Delay of the event loop at the last heartbeat.", [(here, view.lag)]
    yield "mailbox_depth", "gauge", "Waiting messages, by lane.", [(labels, lane.depth) for lane, labels in lanes]
    text = "Age of the oldest message in a lane, in seconds."
    yield "mailbox_oldest_seconds", "gauge", text, [(labels, lane.oldest) for lane, labels in lanes]
    text = "Seconds the current message has been running."
    yield "message_age_seconds", "gauge", text, [(labels, a.current_age) for a, labels in actors]
    text = "Running concurrent messages and streams, outside the mailbox."
    yield "running_beside", "gauge", text, [(labels, a.beside) for a, labels in actors]
    yield "streams", "gauge", "Running streams.", [(labels, a.streams) for a, labels in actors]
    yield "messages_handled", "counter", "Messages handled or being handled.", [(labels, a.handled) for a, labels in actors]
    yield "messages_failed", "counter", "Messages that ended in an error.", [(labels, a.failed) for a, labels in actors]
    yield "restarts", "counter", "Restarts by a supervisor.", [(labels, a.restarts) for a, labels in actors]
    peers = [(peer, {**here, "peer": peer.name}) for peer in view.peers]
    yield "peer_silent_seconds", "gauge", "Seconds since a peer's last message.", [(labels, p.silent) for p, labels in peers]
    yield "open_calls", "gauge", "Calls to a peer that are not answered yet.", [(labels, p.calls) for p, labels in peers]
    text = "Casts, answers and link messages that reached no receiver, by cause."
    yield "dead_letters", "counter", text, [({**here, "cause": c}, n) for c, n in view.dead_letters.items()]
    text = "Received messages that were rejected, by reason."
    yield "dropped", "counter", text, [({**here, "reason": r}, n) for r, n in view.dropped.items()]
