"""Transfers over the links of all nodes, and what must hold of them.

Each life of a node sends to others messages of every class and of all sizes, from nothing to several chunks, over slow
links that lose, repeat and break. Checked: a transfer ends once, and as reported: what was acknowledged has come whole;
what came is exactly what was sent, once, in the order of its class; nothing of a fenced incarnation comes, nothing waits for
one; no chunk goes while one of a more urgent class could; in the end nothing is left over.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from random import Random

from blockwright.policies.cluster.chunk_order import Chunk, Traffic
from blockwright.runtime import Actor, Node, RuntimeFault
from blockwright.runtime.testing import Pause, Simulation
from blockwright.tests.runtime.safety.world import SLACK, Violation, World
from blockwright.transport.address import PeerId, parse_identity
from blockwright.transport.device_link import SLOTS
from blockwright.transport.errors import TransportError
from blockwright.transport.link import Link

LOADS = 4  # transfers of each life of a node
RATE = 10e6  # bytes per second of a link: a chunk takes a while
SIZES = (0, 1, 700, 20_000, 70_000, 150_000, 300_000)  # bytes of a buffer; the least chunk has 65,536
GROUND = Random("ground").randbytes(1 << 20)  # what is sent is somewhere in it


@dataclass(slots=True)
class Load:
    """One transfer."""

    node: PeerId
    to: PeerId
    kind: Traffic
    number: int  # of this sender's
    pieces: tuple[tuple[int, int], ...]  # from and to, in the ground
    outcome: str = ""
    came: int = 0


@dataclass(slots=True)
class Freight:
    """The record of one simulation."""

    world: World
    loads: dict[tuple[PeerId, int], Load] = field(default_factory=dict)
    last: dict[tuple[PeerId, PeerId, Traffic], int] = field(default_factory=dict)  # number that came last
    outcomes: Counter[str] = field(default_factory=Counter)
    cut: int = 0  # loads that went in more than one chunk
    kinds: Counter[str] = field(default_factory=Counter)  # of the links that transfers ended on
    watched: dict[int, Link] = field(default_factory=dict)

    def receive(self, node: Node) -> None:
        """Before anybody can send."""
        for kind in Traffic:
            node.on_link(kind, lambda sender, header, buffers, kind=kind: self.came(node, kind, header, buffers))

    def came(self, node: Node, kind: Traffic, header: bytes, buffers: list[memoryview]) -> None:
        text, number = header.decode().split()
        sender, now = parse_identity(text), self.world.sim.time
        load = self.loads[sender, int(number)]
        load.came += 1
        what = f"load {number} of {sender} to {load.to}"
        if load.came > 1:
            self.world.violated("transfer", f"{what} came {load.came} times")
        if (load.to, load.kind) != (node.id, kind):
            self.world.violated("transfer", f"{what} came to {node.id} as {kind.name}")
        if [bytes(buffer) for buffer in buffers] != [GROUND[start:end] for start, end in load.pieces]:
            self.world.violated("transfer", f"{what} came with other bytes")
        if self.last.get((sender, node.id, kind), -1) > load.number:
            self.world.violated("fifo", f"{what} came after load {self.last[sender, node.id, kind]}")
        self.last[sender, node.id, kind] = load.number
        over = self.world.down_at.get((node.id, sender))
        if over is not None and now > over:
            self.world.violated("fencing", f"{what} came at {now}; its sender was declared down there at {over}")

    def ended(self, load: Load, outcome: str) -> None:
        if load.outcome:
            self.world.violated("transfer", f"load {load.number} of {load.node} ended twice: {load.outcome}, {outcome}")
        load.outcome = outcome
        self.outcomes[outcome] += 1
        if outcome == "done" and not load.came:
            self.world.violated(
                "transfer", f"load {load.number} of {load.node} was acknowledged by {load.to} and never came"
            )
        pauses = sum(f.lasting for f in self.world.sim.plan.faults if isinstance(f, Pause))
        over, now = self.world.down_at.get((load.node, load.to)), self.world.sim.time
        if over is not None and now > over + pauses + SLACK:
            text = f"load {load.number} of {load.node} to {load.to} ended at {now} ({outcome}), which was down at {over}"
            self.world.violated("transfer", text)

    def watch(self, link: Link) -> None:
        """See each chunk that is chosen."""
        if id(link) in self.watched:
            return
        self.watched[id(link)] = link
        link.rate = RATE
        order, choose = link._order, link._order.next

        def chosen() -> Chunk | None:
            chunk = choose()
            if chunk is not None:
                self.cut += chunk.offset > 0 and chunk.last
                urgent = [kind for kind in Traffic if kind < chunk.kind]
                if late := [k.name for k in urgent if order._queues[k].waiting or order._queues[k].again]:
                    self.world.violated("priority", f"a chunk of {chunk.kind.name} goes while {late} waits for {link.peer}")
            return chunk

        order.next = chosen  # type: ignore[method-assign]

    def faults(self, sim: Simulation) -> Violation | None:
        """What does not hold now; some of it only after a while."""
        alive = {node.id: node for node in sim.nodes.values() if node.open}
        for load in self.loads.values():
            if load.node in alive and not load.outcome:
                return Violation("transfer", f"load {load.number} of {load.node} to {load.to} has no outcome")
        for node in alive.values():
            seen = node.tensor_links.inspect()
            waiting = {to: link["messages"] for to, link in seen["to"].items() if link["messages"]}
            if seen["device_slots_free"] not in (0, SLOTS):
                return Violation("memory", f"{node.id} has {seen['device_slots_free']} of {SLOTS} device slots")
            if waiting or seen["assembling_bytes"]:
                return Violation("memory", f"{node.id} holds {waiting} messages, {seen['assembling_bytes']} bytes of others")
            if gone := [
                to for to in (*seen["to"], *seen["from"]) if node.parts.inbound._resolver.known(parse_identity(to)) is None
            ]:
                return Violation("memory", f"{node.id} still has links of {gone}")
        return None


class Hauler(Actor):
    """Sends; one on each life of a node."""

    def __init__(self, freight: Freight, random: Random) -> None:
        self.freight, self.random = freight, random
        self.open: set[asyncio.Task[None]] = set()

    async def on_start(self) -> None:
        self.driver = asyncio.create_task(self._drive())

    async def _drive(self) -> None:
        await asyncio.sleep(0.05)  # until the head listens, too
        for number in range(LOADS):
            if self.random.random() < 0.5:  # else together with the last one, so that classes meet
                await asyncio.sleep(self.random.uniform(0.0, 0.7))
            others = sorted(self.node.peers())
            if not others:
                continue
            try:
                link = self.node.link(self.random.choice(others))
            except RuntimeFault:
                continue
            self.freight.watch(link)
            kind, pieces = self.random.choice(tuple(Traffic)), tuple(self._piece() for _ in range(self.random.randint(1, 2)))
            load = self.freight.loads[self.node.id, number] = Load(self.node.id, link.peer, kind, number, pieces)
            task = asyncio.create_task(self._send(link, load))
            self.open.add(task)
            task.add_done_callback(self.open.discard)
            await asyncio.sleep(0)  # they leave in the order of their numbers

    def _piece(self) -> tuple[int, int]:
        start, size = self.random.randrange(1 << 19), self.random.choice(SIZES)
        return start, start + size

    async def _send(self, link: Link, load: Load) -> None:
        header = f"{load.node} {load.number}".encode()
        try:
            await link.send(load.kind, header, [memoryview(GROUND)[start:end] for start, end in load.pieces])
            outcome = "done"
            self.freight.kinds[link.kind] += 1
        except TransportError as error:
            outcome = type(error).__name__
        self.freight.ended(load, outcome)
