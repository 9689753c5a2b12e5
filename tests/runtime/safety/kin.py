"""Supervised actors that crash when asked, and what must hold of their lives.

On every node a supervisor with three children, by each strategy somewhere; on the head one more, whose child may live on any
worker. Checked: a monitor of an actor fires once, for a life that is over; children are up while their supervisor is, and
gone when it is; restarts keep within the intensity and in order; there are never two of what there is to be one of.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from blockwright.policies.cluster.restart_policy import Backoff, Strategy
from blockwright.runtime import Actor, Crash, Down, Node, RuntimeFault, endpoint
from blockwright.runtime.supervisor import Child, Supervisor
from blockwright.runtime.testing import Simulation
from blockwright.tests.runtime.safety.world import Violation, World
from blockwright.transport.address import PeerId

CHILDREN = ("k0", "k1", "k2")
STRATEGY = {
    "head": Strategy.ONE_FOR_ONE,
    "w0": Strategy.ONE_FOR_ONE,
    "w1": Strategy.ONE_FOR_ALL,
    "w2": Strategy.REST_FOR_ONE,
}
INTENSITY, PERIOD = 2, 5.0
PAUSE = Backoff().delay(INTENSITY + 1, 1.0)  # seconds from a child's end, which counts, to its restart, at most


@dataclass(slots=True)
class ActorWatch:
    """A monitor of one of the children, or of the one on the move."""

    watcher: PeerId
    watched: PeerId  # incarnation 0: it was not up
    name: str
    fired: list[Down] = field(default_factory=list)


@dataclass(slots=True)
class Family:
    """The record of one simulation."""

    world: World
    starts: dict[PeerId, list[tuple[float, str]]] = field(default_factory=dict)  # of children of a node's own supervisor
    watches: list[ActorWatch] = field(default_factory=list)
    wanderers: list[Wanderer] = field(default_factory=list)

    async def settle(self, node: Node) -> None:
        """Start the supervisor of a node."""
        children = [Child(name=name, actor=Kin, args=(self,), drain=0.0) for name in CHILDREN]
        await node.spawn(Supervisor(children, STRATEGY[node.name], INTENSITY, PERIOD), name="kin")

    async def settle_wanderer(self, head: Node) -> None:
        """Its supervisor starts only if its child does, so again if that one's node goes down just then."""
        child = Child(name="wanderer", actor=Wanderer, on=("w0", "w1", "w2"), patience=3.0)
        for _ in range(20):
            try:
                await head.spawn(Supervisor([child], intensity=100), name="root")
                return
            except RuntimeFault:
                await asyncio.sleep(0.3)
        raise AssertionError("no supervisor could be started in 6 s")

    def watch(self, node: Node, target: str) -> None:
        name, _, actor = target.partition("/")
        watch = ActorWatch(node.id, PeerId(name, node.current_incarnation(name)), actor)
        self.watches.append(watch)
        node.monitor(node.ref(target), watch.fired.append)

    def started(self, node: PeerId, name: str) -> None:
        starts = self.starts.setdefault(node, [])
        starts.append((self.world.sim.time, name))
        if STRATEGY[node.name] is Strategy.ONE_FOR_ALL and len(starts) > 1:
            before = CHILDREN.index(starts[-2][1])
            if name not in (CHILDREN[0], CHILDREN[(before + 1) % 3]):
                raise self.world.violated("order", f"{node}/{name} started after {CHILDREN[before]}")
        if STRATEGY[node.name] is Strategy.ONE_FOR_ONE:
            restarts = [time for time, _ in starts[len(CHILDREN) :]]
            if len(restarts) > INTENSITY and restarts[-1] - restarts[-1 - INTENSITY] < PERIOD - PAUSE:
                raise self.world.violated("intensity", f"{node} restarted children at {restarts}")

    def wandered(self, newcomer: Wanderer) -> None:
        for other in self.wanderers:
            if other.lives(self.world.sim):
                raise self.world.violated("single", f"{newcomer.ref} starts while {other.ref} lives")
        self.wanderers.append(newcomer)

    def faults(self, sim: Simulation) -> Violation | None:
        """What does not hold now; some of it only after a while."""
        alive = {node.id: node for node in sim.nodes.values() if node.open}
        for node in alive.values():
            running = [name for name in CHILDREN if name in node.actors.current]
            if "kin" in node.actors.current and len(running) < len(CHILDREN):
                return Violation("supervision", f"of the children of {node.id} only {running} run")
            if "kin" not in node.actors.current and running:
                return Violation("supervision", f"{running} of {node.id} have outlived their supervisor")
        living = [str(one.ref) for one in self.wanderers if one.lives(sim)]
        if "root" in sim.head.actors.current and len(living) != 1:
            return Violation("single", f"there is to be one wanderer and there are {living}")
        return next(filter(None, (self._fault_of(watch, alive) for watch in self.watches)), None)

    def _fault_of(self, watch: ActorWatch, alive: dict[PeerId, Node]) -> Violation | None:
        if len(watch.fired) > 1:
            return Violation("monitor", f"{watch.watcher} was notified with {watch.fired} of {watch.name}")
        if watch.watcher not in alive:
            return None
        life = alive[watch.watched].actors.current.get(watch.name) if watch.watched in alive else None
        if not watch.fired and life is None:
            return Violation("monitor", f"{watch.watcher} was not notified of the end of {watch.watched}/{watch.name}")
        if watch.fired and life is not None and watch.fired[0].life == life.address.life:
            return Violation("monitor", f"{watch.watcher} was notified with {watch.fired} and {life.address} lives")
        return None


class Kin(Actor):
    def __init__(self, family: Family) -> None:
        self.family = family

    async def on_start(self) -> None:
        self.family.started(self.node.id, self.ref.name)

    @endpoint(concurrent=True)
    async def crash(self) -> None:
        raise Crash("as was asked")


class Wanderer(Actor):
    """Where it runs is the head's supervisor's to say. It comes from a message, so the record comes from ``FAMILY``."""

    async def on_start(self) -> None:
        FAMILY[-1].wandered(self)

    @endpoint(concurrent=True)
    async def crash(self) -> None:
        raise Crash("as was asked")

    def lives(self, sim: Simulation) -> bool:
        """Whether this object runs, in a process that does."""
        member = sim.cluster.members()[self.node.name]
        life = self.node.actors.current.get(self.ref.name)
        return member.id == self.node.id and member.state != "down" and life is not None and life.actor is self


FAMILY: list[Family] = []  # the last is of the simulation that runs
