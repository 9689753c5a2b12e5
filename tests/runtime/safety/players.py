"""Actors that send each other everything there is, drawn from the seed, and the scenario that they play.

Each seed: 3 nodes and the head, 20 actors, at least 300 messages, 5 faults; a node that is down comes back and its actors
begin anew.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from random import Random

from blockwright.runtime import Actor, Down, Node, RemoteError, RuntimeFault, endpoint
from blockwright.runtime.base.window import WINDOW_ITEMS
from blockwright.runtime.testing import FaultPlan, Simulation
from blockwright.tests.runtime.safety.haulers import Freight, Hauler
from blockwright.tests.runtime.safety.kin import CHILDREN, FAMILY, Family
from blockwright.tests.runtime.safety.world import Violation, Watch, World
from blockwright.tests.transport.fake_nccl import FakeHub, FakeNccl
from blockwright.transport.address import PeerId
from blockwright.transport.memory_file import MemoryFile

PLACES = {"head": 2, "w0": 6, "w1": 6, "w2": 6}  # actors on each node
MESSAGES = 15  # of each actor
FAULTS, WITHIN = 5, 2.5
LINK_FAULTS = 2  # more, of link traffic alone
COUNTS = (*(0, 1, 2, 3, 5, 8) * 5, 400)  # items of a stream; a window holds 256
CRASHES = 0.02  # of each message, that somebody's child is to crash besides
KINDS = ("call", "call", "call", "cast", "cast", "rush", "rush_cast", "aside", "hang", "relay", "stream")


class Player(Actor):
    """``key`` names one life of one actor."""

    def __init__(self, world: World, family: Family, random: Random) -> None:
        self.world = world
        self.family = family
        self.random = random
        self.numbers = itertools.count(1)
        self.open: set[asyncio.Task[None]] = set()
        self.driver: asyncio.Task[None] | None = None

    async def on_start(self) -> None:
        self.key = f"{self.node.id}/{self.ref.name}"
        self.driver = asyncio.create_task(self._drive())

    # ---- what it does for others

    @endpoint
    async def call(self, sender: str, number: int, nap: float) -> str:
        self.world.handle(self.node, self.key, sender, number, "normal")
        if nap:
            await asyncio.sleep(nap)
        return f"{self.key} {sender} {number}"

    @endpoint(urgent=True)
    async def rush(self, sender: str, number: int, nap: float) -> str:
        self.world.handle(self.node, self.key, sender, number, "urgent")
        return f"{self.key} {sender} {number}"

    @endpoint(concurrent=True)
    async def aside(self, sender: str, number: int, nap: float) -> str:
        self.world.handle(self.node, self.key, sender, number, "")
        await asyncio.sleep(nap)
        return f"{self.key} {sender} {number}"

    @endpoint(concurrent=True)
    async def hang(self, sender: str, number: int, nap: float) -> str:
        self.world.handle(self.node, self.key, sender, number, "")
        await asyncio.Event().wait()
        return ""

    @endpoint(concurrent=True)
    async def relay(self, sender: str, number: int, nap: float) -> str:
        """Inherits the deadline: it asks for ten seconds and gets what is left."""
        self.world.handle(self.node, self.key, sender, number, "")
        left = self.world.sent[sender, number].timeout
        await self._request("hang", self._someone(), 10.0, within=left)
        return f"{self.key} {sender} {number}"

    @endpoint
    async def fail(self, sender: str, number: int, nap: float) -> str:
        self.world.handle(self.node, self.key, sender, number, "normal")
        raise ValueError(f"{sender} {number}")

    @endpoint
    async def stream(self, sender: str, number: int, count: int) -> AsyncIterator[int]:
        self.world.handle(self.node, self.key, sender, number, "normal")
        for item in range(count):
            self.world.made(sender, number, WINDOW_ITEMS)
            yield item

    # ---- what it asks of others

    async def _drive(self) -> None:
        for turn in range(MESSAGES):
            await asyncio.sleep(self.random.uniform(0.0, 0.3))
            if turn == 3:
                self._watch(self.random.choice(tuple(PLACES)))
                self.family.watch(self.node, self._kin())
            kind, target = self.random.choice(KINDS), self._someone()
            if self.random.random() < CRASHES:
                self.node.ref(self._kin()).crash.cast()
            if kind == "call" and self.random.random() < 0.02:
                kind = "fail"
            timeout = self.random.uniform(0.2, 1.5)
            if kind in ("cast", "rush_cast"):
                number = next(self.numbers)
                self.world.send(self.node, self.key, number, target, None, kind)
                name = "call" if kind == "cast" else "rush"
                getattr(self.node.ref(target), name).cast(self.key, number, self._nap())
                continue
            task = asyncio.create_task(self._request(kind, target, timeout))
            self.open.add(task)
            task.add_done_callback(self.open.discard)
            if self.random.random() < 0.1:
                asyncio.get_running_loop().call_later(self.random.uniform(0.0, 0.5), task.cancel)
        while self.open:
            await asyncio.wait(self.open)

    async def _request(self, kind: str, target: str, patience: float, *, within: float | None = None) -> None:
        """``within``: seconds after which it must have ended, if that is not ``patience``."""
        number, ref = next(self.numbers), self.node.ref(target)
        self.world.send(self.node, self.key, number, target, patience if within is None else within, kind)
        wanted = f"{self.key} {number}"
        answered_by = ""
        try:
            if kind == "stream":
                await self._read(ref, number, patience)
            else:
                answer = await getattr(ref, kind)(self.key, number, self._nap(), timeout=patience)
                answered_by, _, echoed = answer.partition(" ")
                if echoed != wanted:
                    raise self.world.violated("answer", f"message {wanted} was answered with {answer!r}")
            outcome = "answered"
        except RemoteError as fault:
            outcome = fault.kind
            if outcome != "ValueError" or kind != "fail" or fault.text != wanted:
                raise self.world.violated("answer", f"{kind} {wanted} failed with {fault!r}") from fault
        except RuntimeFault as fault:
            outcome = type(fault).__name__
        except asyncio.CancelledError:
            self.world.outcome(self.key, number, "cancelled")
            raise
        except Violation:
            raise
        except TimeoutError:
            outcome = "left"
        except BaseException as error:
            raise self.world.violated("outcome", f"{kind} {wanted} raised {error!r}") from error
        self.world.outcome(self.key, number, outcome, answered_by)

    async def _read(self, ref, number: int, patience: float) -> None:
        """Slowly; sometimes leaves early. What comes is 0, 1, 2, ... without a gap, and whole if it ends well."""
        count = self.random.choice(COUNTS)
        leave = self.random.randrange(800)
        seen = 0
        async with asyncio.timeout(patience), ref.stream(self.key, number, count, timeout=patience) as items:
            async for item in items:
                if item != seen:
                    raise self.world.violated("stream", f"stream {number} of {self.key} gave {item} after {seen} items")
                seen += 1
                self.world.sent[self.key, number].read += 1
                if seen == leave:
                    return
                if item % 20 == 19:
                    await asyncio.sleep(self._nap())
        if seen != count:
            raise self.world.violated("stream", f"stream {number} of {self.key} ended after {seen} of {count} items")

    def _nap(self) -> float:
        return self.random.choice((0.0, 0.0, 0.0, 0.01, 0.1))

    def _kin(self) -> str:
        if self.random.random() < 0.1:
            return f"w{self.random.randrange(3)}/wanderer"
        return f"{self.random.choice(tuple(PLACES))}/{self.random.choice(CHILDREN)}"

    def _someone(self) -> str:
        node = self.random.choice(tuple(PLACES))
        return f"{node}/p{self.random.randrange(PLACES[node])}"

    def _watch(self, name: str) -> None:
        if name != self.node.name:
            watch = Watch(self.node.id, PeerId(name, self.node.current_incarnation(name)))
            self.world.watches.append(watch)
            self.node.monitor(name, watch.fired.append)


class Game:
    """One seed."""

    def __init__(self, seed: int, faults: int = FAULTS, device: bool = False, cards: bool = False, heads: int = 0) -> None:
        nodes = ("w0", "w1", "w2")
        draw = Random(f"{seed}/plan")
        links = LINK_FAULTS if faults else 0
        plan = FaultPlan.random(draw, ("head", *nodes), count=faults, within=WITHIN, links=links, heads=heads)
        mortal = {"orphan_grace": 60.0, "setup_head": self._setup_head} if heads else {}
        self.heads = heads
        self.sim = Simulation(seed=seed, nodes=nodes, faults=plan, setup=self._setup, startup=4.0, restart=0.05, **mortal)
        self.world = World(self.sim)
        self.family = Family(self.world)
        self.freight = Freight(self.world)
        self.device = device or cards  # transfers go through slots in a device's memory
        self.hub = FakeHub() if cards else None  # or by NCCL, since each life has a card of its own

    def play(self) -> World:
        FAMILY[:] = [self.family]
        self.sim.run(self._scenario)
        return self.world

    async def _setup(self, node: Node) -> None:
        self.freight.receive(node)
        if self.device:
            late = Random(f"{self.sim.seed} {node.id} device")
            memory = MemoryFile(node.clock, lambda: late.uniform(0.0, 0.02))
            if self.hub is None:
                node.offer_device(memory)
            else:
                memory.card = str(node.id)
                seconds, fails = lambda: late.uniform(0.0, 0.01), lambda: late.random() < 0.1
                node.offer_device(memory, FakeNccl(self.hub, node.clock, seconds, fails=fails))
        self.world.observe(node)
        await node.spawn(Hauler(self.freight, Random(f"{self.sim.seed} {node.id} hauler")), name="hauler")
        await self.family.settle(node)
        for place in range(PLACES[node.name]):
            player = Player(self.world, self.family, Random(f"{self.sim.seed} {node.id} {place}"))
            await node.spawn(player, name=f"p{place}")

    async def _setup_head(self, node: Node) -> None:
        self.sim.cluster.on_down(self._record_down)
        await self._setup(node)

    async def _scenario(self, sim: Simulation) -> None:
        if not self.heads:
            await self._setup_head(sim.head)
            await self.family.settle_wanderer(sim.head)
        await sim.until_calm()
        while not all(self._idle(sim, name) for name in PLACES):  # noqa: ASYNC110 - nodes come and go
            await asyncio.sleep(0.25)
        for _ in range(60):  # what was lost has been said again by then, and what nobody waits for has ended
            await asyncio.sleep(0.5)
            if not self.world.leftovers(sim) and self.family.faults(sim) is None and self.freight.faults(sim) is None:
                break
        self.world.check(sim)
        if (fault := self.family.faults(sim) or self.freight.faults(sim)) is not None:
            raise fault

    def _record_down(self, down: Down) -> None:
        self.world.downs[PeerId(down.node, down.incarnation)] += 1

    def _idle(self, sim: Simulation, name: str) -> bool:
        node = sim.nodes[name]
        if name != "head" and sim.cluster.members()[name].state != "up":
            return False
        players = [life.actor for life in node.actors.current.values() if isinstance(life.actor, Player)]
        hauler = node.actors.current.get("hauler")
        if hauler is None or not hauler.actor.driver.done():
            return False
        return len(players) == PLACES[name] and all(p.driver is not None and p.driver.done() for p in players)
