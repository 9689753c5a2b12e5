"""Fault injection: the faults of a simulation as values, and random plans of them.

Times are virtual seconds from the moment at which all nodes are up. A fault names nodes, not lives: it hits whichever life
of the node is current. Nothing here acts; ``simulation.py`` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from ...transport.handshake import Lane
from ...transport.wire import Traffic


@dataclass(frozen=True, slots=True)
class Drop:
    """The next ``count`` messages of one lane from ``source`` to ``target`` are lost; the connection lives on.

    lane: control messages, or a class of link traffic.
    """

    at: float
    source: str
    target: str
    count: int = 1
    lane: Lane | Traffic = Lane.CONTROL


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The next ``count`` messages of one lane from ``source`` to ``target`` come a second time, ``lag`` seconds later."""

    at: float
    source: str
    target: str
    count: int = 1
    lag: float = 0.05
    lane: Lane | Traffic = Lane.CONTROL


@dataclass(frozen=True, slots=True)
class BreakLink:
    """The connection of link traffic between two nodes breaks and is made again: what was on it, either way, is lost."""

    at: float
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Delay:
    """A delay of ``extra`` seconds for each message from ``source`` to ``target``, for ``lasting`` seconds, still in
    order.
    """

    at: float
    source: str
    target: str
    extra: float
    lasting: float


@dataclass(frozen=True, slots=True)
class HoldLane:
    """One lane from ``source`` to ``target`` stands still for ``lasting`` seconds; the others overtake it.

    lane: control messages, heartbeats (Lane.PULSE), or a class of link traffic.
    """

    at: float
    source: str
    target: str
    lane: Lane | Traffic
    lasting: float


@dataclass(frozen=True, slots=True)
class Partition:
    """``nodes`` and ``others`` (none: all others) cannot reach each other for ``lasting`` seconds. Connections that carry
    nothing for longer than the network's patience break on both ends, and what was on its way is lost; else it is late.

    one_way: only what ``nodes`` send is held up. Connections break all the same, since nothing that they get is confirmed.
    """

    at: float
    nodes: tuple[str, ...]
    lasting: float
    others: tuple[str, ...] = ()
    one_way: bool = False

    def cuts(self, one: str, other: str) -> bool:
        """Return True if the first cannot reach the second."""
        return self._sends(one, other) or (not self.one_way and self._sends(other, one))

    def breaks(self, one: str, other: str) -> bool:
        """Return True if connections between these two break."""
        return self._sends(one, other) or self._sends(other, one)

    def _sends(self, near: str, far: str) -> bool:
        return near in self.nodes and (far in self.others if self.others else far not in self.nodes)


@dataclass(frozen=True, slots=True)
class Pause:
    """SIGSTOP, and SIGCONT ``lasting`` seconds later: no line of the node's code runs, its timers are late.

    If the node is the head and members outlive it, the next head starts meanwhile, as on another machine.
    """

    at: float
    node: str
    lasting: float


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL: no line of the node's code runs any more, not even ``finally``. See ``Simulation(restart=...)``. The head can
    be killed where members outlive it (``orphan_grace``); the next one starts ``restart`` seconds later."""

    at: float
    node: str


Fault = Drop | Duplicate | BreakLink | Delay | HoldLane | Partition | Pause | Kill


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Faults in any order."""

    faults: tuple[Fault, ...] = ()

    @staticmethod
    def random(
        random: Random, nodes: Sequence[str], *, count: int, within: float, links: int = 0, heads: int = 0
    ) -> FaultPlan:
        """Draw ``count`` faults of all kinds within ``within`` seconds.

        nodes: the head first; it is cut off and slowed down like the others, but neither paused nor killed. links: the
        number of further faults, on link traffic alone. heads: of further faults that only members survive which outlive
        their head (``orphan_grace``): its death, its pause, and cuts of one direction.
        """
        if len(nodes) < 2:
            raise ValueError(f"{len(nodes)} node cannot lose touch with another; give the head and at least one more")
        faults = [_random_fault(random, list(nodes), within) for _ in range(count)]
        faults += [_link_fault(random, nodes, within) for _ in range(links)]
        return FaultPlan((*faults, *[_head_fault(random, nodes, within) for _ in range(heads)]))


def _head_fault(random: Random, nodes: Sequence[str], within: float) -> Fault:
    """Draw a fault of the head, or a cut of one direction."""
    at, head = random.uniform(0.0, within), nodes[0]
    kind = random.choice((Kill, Kill, Pause, Partition))
    if kind is Kill:
        return Kill(at, head)
    if kind is Pause:
        return Pause(at, head, random.choice((0.5, 2.0, 6.0)))
    source, target = random.sample(list(nodes), 2)
    return Partition(at, (source,), random.uniform(0.1, 6.0), (target,), one_way=True)


def _link_fault(random: Random, nodes: Sequence[str], within: float) -> Fault:
    """Draw a fault that concerns links alone."""
    at, (source, target) = random.uniform(0.0, within), random.sample(list(nodes), 2)
    kind, lane = random.choice((Drop, Duplicate, BreakLink)), random.choice(tuple(Traffic))
    if kind is Drop:
        return Drop(at, source, target, random.randint(1, 3), lane)
    if kind is Duplicate:
        return Duplicate(at, source, target, random.randint(1, 5), random.uniform(0.0, 0.2), lane)
    return BreakLink(at, source, target)


def _random_fault(random: Random, nodes: list[str], within: float) -> Fault:
    at = random.uniform(0.0, within)
    source, target = random.sample(nodes, 2)
    worker = random.choice(nodes[1:])
    kind = random.choice((Drop, Duplicate, Delay, HoldLane, Partition, Pause, Kill))
    if kind is Drop:
        return Drop(at, source, target, random.randint(1, 3))
    if kind is Duplicate:
        return Duplicate(at, source, target, random.randint(1, 10), random.uniform(0.0, 0.2))
    if kind is Delay:
        return Delay(at, source, target, random.uniform(0.001, 0.5), random.uniform(0.1, 1.0))
    if kind is HoldLane:
        return HoldLane(at, source, target, random.choice((Lane.CONTROL, Lane.PULSE, *Traffic)), random.uniform(0.05, 0.5))
    if kind is Partition:
        side = random.sample(nodes, random.randint(1, len(nodes) - 1))
        lasting = random.uniform(0.1, 2.0)
        if random.random() < 0.5:
            return Partition(at, (source,), lasting, (target,))
        return Partition(at, tuple(side), lasting)
    if kind is Pause:
        return Pause(at, worker, random.choice((0.1, 0.5, 1.0, 4.0)))
    return Kill(at, worker)
