"""What happened in a simulation as somebody outside of all nodes saw it, and the properties that must hold of it.

Owns the record of sends, handlings, outcomes, monitors and declarations, and the checks. A violated property raises
``Violation``, whose text starts with the property's name.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from blockwright.runtime import Down, Node
from blockwright.runtime.testing import Pause, Simulation
from blockwright.transport.address import PeerId

SLACK = 0.01  # seconds that an outcome may come after its deadline


class Violation(AssertionError):
    def __init__(self, what: str, text: str) -> None:
        super().__init__(f"{what}: {text}")
        self.what = what


@dataclass(slots=True)
class Sent:
    """A call, cast or stream on its way, by (sender, number)."""

    kind: str
    node: PeerId
    to: PeerId  # incarnation 0: it was not up
    at: float
    timeout: float | None  # None: a cast
    outcome: str = ""
    made: int = 0  # items of a stream, by its producer
    read: int = 0


@dataclass(slots=True)
class Watch:
    """One registration of a monitor on a node."""

    watcher: PeerId
    watched: PeerId  # incarnation 0: it was not up
    fired: list[Down] = field(default_factory=list)
    undone: bool = False


class World:
    """See the module."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.sent: dict[tuple[str, int], Sent] = {}
        self.handled: Counter[tuple[str, int]] = Counter()
        self.last: dict[tuple[str, str, str], int] = {}  # (sender, receiver, lane) -> last number handled
        self.down_at: dict[tuple[PeerId, PeerId], float] = {}  # (where, whose life): when it was declared down there
        self.watches: list[Watch] = []
        self.downs: Counter[PeerId] = Counter()  # as reported to the application
        self.kinds: Counter[str] = Counter()

    # ---- the record

    def observe(self, node: Node) -> None:
        """Note the moment at which this node declares others down."""
        remove = node.table.remove

        def spy(down: Down) -> object:
            self.down_at.setdefault((node.id, PeerId(down.node, down.incarnation)), self.sim.time)
            return remove(down)

        node.table.remove = spy

    def send(self, node: Node, sender: str, number: int, target: str, timeout: float | None, kind: str) -> None:
        self.kinds[kind] += 1
        name = target.partition("/")[0]
        to = PeerId(name, node.current_incarnation(name))
        self.sent[sender, number] = Sent(kind, node.id, to, self.sim.time, timeout)

    def handle(self, node: Node, receiver: str, sender: str, number: int, lane: str) -> None:
        sent, now = self.sent[sender, number], self.sim.time
        self.handled[sender, number] += 1
        if self.handled[sender, number] > 1:
            raise self.violated("duplicate", f"{receiver} handled message {number} of {sender} twice")
        if lane:
            if self.last.get((sender, receiver, lane), 0) > number:
                last = self.last[sender, receiver, lane]
                raise self.violated("fifo", f"{receiver} handled {lane} {number} of {sender} after {last}")
            self.last[sender, receiver, lane] = number
        over = self.down_at.get((node.id, sent.node))
        if over is not None and (sent.at > over or (now > over and (sent.timeout is not None or not lane))):
            text = f"{receiver} handled {number} of {sender} at {now}; {sent.node} was declared down there at {over}"
            raise self.violated("fencing", text)

    def outcome(self, sender: str, number: int, outcome: str, answered_by: str = "") -> None:
        sent, now = self.sent[sender, number], self.sim.time
        if sent.outcome:
            raise self.violated("outcome", f"message {number} of {sender} ended twice: {sent.outcome}, {outcome}")
        sent.outcome = outcome
        pauses = sum(f.lasting for f in self.sim.plan.faults if isinstance(f, Pause))
        if sent.timeout is not None and now > sent.at + sent.timeout + pauses + SLACK:
            raise self.violated("outcome", f"message {number} of {sender} ended {now - sent.at} s after it began: {outcome}")
        if answered_by:
            name, _, incarnation = answered_by.partition("/")[0].partition("#")
            over = self.down_at.get((sent.node, PeerId(name, int(incarnation))))
            if over is not None and now > over:
                text = f"{sender} took an answer of {answered_by} at {now}, which was declared down at {over}"
                raise self.violated("fencing", text)
        over = self.down_at.get((sent.node, sent.to))
        if over is not None and sent.at < over and now > over + pauses + SLACK and sent.kind != "stream":
            text = f"message {number} of {sender} to {sent.to} ended at {now} ({outcome}), which was down at {over}"
            raise self.violated("outcome", text)

    def made(self, sender: str, number: int, window: int) -> None:
        """The producer of a stream makes one more item."""
        sent = self.sent[sender, number]
        sent.made += 1
        if sent.made - sent.read > window + 1:
            text = f"stream {number} of {sender} made {sent.made} items while {sent.read} were read of a window of {window}"
            raise self.violated("credit", text)

    def violated(self, what: str, text: str) -> Violation:
        """Raised where it is seen, and again at the end: an actor's error is only an answer to its caller."""
        self.first = getattr(self, "first", None) or Violation(what, text)
        return self.first

    # ---- the properties that show at the end

    def check(self, sim: Simulation) -> None:
        """When nothing happens any more."""
        if (first := getattr(self, "first", None)) is not None:
            raise first
        alive = {node.id: node for node in sim.nodes.values() if node.open}
        self._check_outcomes(alive)
        self._check_monitors(alive)
        if left := self.leftovers(sim):
            raise Violation("memory", left)

    def _check_outcomes(self, alive: dict[PeerId, Node]) -> None:
        for (sender, number), sent in self.sent.items():
            if sent.node in alive and sent.timeout is not None and not sent.outcome:
                raise Violation("outcome", f"message {number} of {sender} has none at {self.sim.time}")

    def _check_monitors(self, alive: dict[PeerId, Node]) -> None:
        for watch in self.watches:
            gone = watch.watched not in alive
            expected = 1 if gone and watch.watcher in alive else len(watch.fired[:1])
            if len(watch.fired) != expected:
                text = f"{watch.watcher} was notified {len(watch.fired)} times of the end of {watch.watched}: {watch.fired}"
                raise Violation("monitor", text)
        for life, times in self.downs.items():
            if times != 1 or life in alive:
                raise Violation("monitor", f"the cluster reported {times} times the end of {life}")

    def leftovers(self, sim: Simulation) -> str:
        """What a node still holds though nothing goes on any more; empty when nothing."""
        nodes = [node for node in sim.nodes.values() if node.open]
        for node in nodes:
            for peer in node.table.current.values():
                for table in ("pending", "inbound", "streams"):
                    if left := getattr(peer, table):
                        return f"{node.id} still holds {table} of {peer.id}: {list(left)[:5]}"
            if len(node.table.current) > len(nodes) or len(node.table.last_down) > len(nodes):
                return f"{node.id} remembers {len(node.table.last_down)} nodes that are down"
            for outcome in (node.parts.monitors._of_peer, node.parts.monitors._watched):
                if gone := [str(peer) for peer in outcome if node.table.find(peer) is None]:
                    return f"{node.id} still holds monitors of {gone}"
            for name, cell in node.actors.instances.items():
                if cell.waiting or cell.running:
                    return f"{node.id}/{name} has {cell.waiting} messages waiting and {len(cell.running)} running"
        return ""
