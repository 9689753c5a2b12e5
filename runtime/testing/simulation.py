"""Deterministic simulation of a whole cluster in one process, under virtual time, with faults: the product's own code on a
simulated machine.

    async def setup(node):                       # on each life of each worker node
        await node.spawn(Account(100), name="account")

    async def scenario(sim):                     # on the head
        await sim.head.ref("w0/account").pay("w1/account", 30, timeout=5)

    Simulation(seed=7, nodes=3, faults=5, setup=setup).run(scenario)

Everything is drawn from the seed, also ``random`` and what asyncio runs next: the same seed gives the same ``trace.digest``
in any process. Time passes only when nothing is ready, so that an hour of heartbeats takes a moment. Nodes, heads, monitors
and fencing are ``runtime.node`` and ``runtime.cluster`` themselves; simulated are the loop, the network, the processes.
What os.urandom, threads, sockets or files would give is not: code under test must not need them (``ManualClock`` stays for
tests of one part on an ordinary loop).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextvars import Context
from random import Random
from typing import Any, TypeVar

from ...transport.address import PeerId
from ..base.down import Down
from ..base.errors import NodeDown
from ..cluster.cluster import ClusterHead
from ..cluster.launcher import LaunchError
from ..node.node import Node
from .faults import Fault, FaultPlan, Kill, Pause
from .launcher import SimulatedLauncher
from .loop import LIFE, Life, VirtualLoop
from .network import SimulatedNetwork, Strike
from .trace import Trace

T = TypeVar("T")
Setup = Callable[[Node], Awaitable[None]]
SEED = "BLOCKWRIGHT_SEED"  # environment variable: run this seed only
HEAD = "head"
LAST_WAIT = 60.0  # virtual seconds for the tasks of dead heads when a simulation is taken down


class Unhandled(Exception):
    """An error that no code awaited: in a callback, or in a task that was dropped."""


def seeds(count: int, first: int = 0) -> Sequence[int]:
    """Return ``count`` seeds, or the one in the environment variable BLOCKWRIGHT_SEED."""
    return [int(os.environ[SEED])] if SEED in os.environ else range(first, first + count)


class Simulation:
    """See the module. Runs one scenario, once.

    nodes: names, or how many ("w0", "w1", ...), besides the head. faults: a plan, or how many random ones.
    within: seconds in which random faults begin. restart: seconds after which a node that is down is launched again; None:
    never. latency: least and most seconds of a message. patience: seconds of a partition until connections break.
    heartbeat, silence, startup: as for ``ClusterHead``. limit: virtual seconds after which a scenario is ``Stalled``.

    orphan_grace: as for ``ClusterHead``. If it is above 0, faults may kill or pause the head: the scenario runs in a life of
    its own, ``setup_head`` on each life of the head, and the next head starts ``restart`` seconds after the last has ended,
    or has paused for ``silence``.
    """

    def __init__(
        self,
        *,
        seed: int,
        nodes: int | Sequence[str] = 3,
        faults: FaultPlan | int = 0,
        within: float = 3.0,
        setup: Setup | None = None,
        restart: float | None = 0.5,
        latency: tuple[float, float] = (0.0002, 0.002),
        patience: float = 1.0,
        heartbeat: float = 0.5,
        silence: float = 2.5,
        startup: float = 10.0,
        limit: float = 3600.0,
        orphan_grace: float = 0.0,
        setup_head: Setup | None = None,
    ) -> None:
        self.seed = seed
        self.names = tuple(f"w{i}" for i in range(nodes)) if isinstance(nodes, int) else tuple(nodes)
        self.random = Random(f"{seed}/scenario")  # for the scenario and its actors
        if isinstance(faults, int):
            faults = FaultPlan.random(Random(f"{seed}/faults"), (HEAD, *self.names), count=faults, within=within)
        self.plan = faults
        self.trace = Trace()
        self.nodes: dict[str, Node] = {}  # the current or last life of each; white-box checks look here
        self.loop = VirtualLoop(limit=limit)  # type: ignore[abstract]  # what it has not raises NotImplementedError
        self._setup = setup
        self._restart = restart
        self._intervals = {"heartbeat": heartbeat, "silence": silence, "startup": startup}
        self._grace, self._setup_head = orphan_grace, setup_head
        self.heads: list[ClusterHead] = []  # all that began
        world = Random(f"{seed}/world")
        self.network = SimulatedNetwork(self.loop, world, self.trace, latency=latency, patience=patience)
        self.network.inject = self.inject
        self._launcher = SimulatedLauncher(self.network, self.loop, world, self._start_node)
        self._lives: dict[PeerId, Life] = {}  # of heads
        self._begun = asyncio.Event()  # the current head has taken over
        self._calm_at, self._ending = 0.0, False
        self._relaunches: set[asyncio.Task[None]] = set()
        self._started: asyncio.Task[None] | None = None

    @property
    def cluster(self) -> ClusterHead:
        """The current head's, or the last one's while there is none."""
        return self.heads[-1]

    @property
    def head(self) -> Node:
        """The head's node: spawn actors on it, take references from it."""
        return self.cluster.node

    def context_of_head(self) -> Context:
        """Return a context for what the head's program is to do, where the scenario has a life of its own."""
        return self._lives[self.head.id].context.copy()

    @property
    def time(self) -> float:
        """Virtual seconds since the loop began."""
        return self.loop.time()

    @property
    def replay(self) -> str:
        """The command that runs this simulation again."""
        test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
        return f"{SEED}={self.seed} python -m pytest '{test}'" if test else f"Simulation(seed={self.seed}, ...)"

    def run(self, scenario: Callable[[Simulation], Awaitable[T]]) -> T:
        """Run the scenario and return its result. Its error gets a note with the command that runs it again. Raises
        Stalled, Unhandled.
        """
        try:
            with self._world():
                life = Life("scenario") if self._grace else self._new_head()
                main = self.loop.create_task(self._main(scenario), context=life.context.copy())
                result: T = self.loop.run_until_complete(main)
                if self.loop.errors:
                    first = self.loop.errors[0]
                    raise Unhandled(f"{len(self.loop.errors)} errors that no code awaited; {first}") from first.get(
                        "exception"
                    )
        except BaseException as error:
            error.add_note(f"seed {self.seed}, at {self.time:.6f} s of virtual time; again: {self.replay}")
            raise
        return result

    def note(self, *what: object) -> None:
        """Add to the trace. Only what is the same in every run: no addresses of objects."""
        self.trace.add(self.time, "note", *what)

    def strike(self, choose: Strike) -> None:
        """Let ``choose`` (source, target, lane, body) say of each message what happens when it is sent: None, or a fault
        whose time and ends do not matter. A Drop, Delay or Duplicate hits this message alone; any other follows at once."""
        self.network.strike = choose

    def inject(self, fault: Fault) -> None:
        """Let a fault happen now, whatever its ``at``."""
        self.trace.add(self.time, "fault", fault)
        self._calm_at = max(self._calm_at, self.time + getattr(fault, "lasting", 0.0) + getattr(fault, "lag", 0.0))
        if isinstance(fault, Kill | Pause) and fault.node == HEAD and self._grace:
            self._strike_head(fault)
        elif isinstance(fault, Kill):
            self._launcher.kill(self._current(fault.node))
        elif isinstance(fault, Pause):
            node = self._current(fault.node)
            self._launcher.pause(node)
            self.loop.call_later(fault.lasting, self._launcher.resume, node, context=Context())
        else:
            self.network.apply(fault)

    async def until_calm(self) -> None:
        """Until all planned faults have begun, and all that began is over."""
        while self.time < self._calm_at:  # noqa: ASYNC110 - what is injected meanwhile moves it
            await asyncio.sleep(self._calm_at - self.time)

    # ---- inside

    async def _main(self, scenario: Callable[[Simulation], Awaitable[T]]) -> T:
        if self._grace:
            self._start_head()
            await self._begun.wait()
        else:
            await self._reign(1)
        start = self.time
        for fault in self.plan.faults:
            self._calm_at = max(self._calm_at, start + fault.at)
            self.loop.call_at(start + fault.at, self.inject, fault, context=Context())
        result = await scenario(self)
        self._ending = True
        await self._begun.wait()
        cluster = self.cluster
        await self.loop.create_task(cluster.stop(), context=self.context_of_head())
        return result

    # ---- heads

    def _new_head(self) -> Life:
        head = PeerId(HEAD, len(self._lives) + 1)
        self._lives[head] = life = Life(str(head))
        return life

    def _start_head(self) -> None:
        """Let the next head begin; does nothing at the end, when one is there."""
        if self._ending and self._begun.is_set():
            return
        life = self._new_head()
        self._started = self.loop.create_task(self._reign(len(self._lives)), context=life.context.copy())
        self._started.add_done_callback(self._failed)

    def _failed(self, begun: asyncio.Task[None]) -> None:
        if not begun.cancelled() and (error := begun.exception()) is not None:
            self.loop.call_exception_handler({"message": "a head could not begin", "exception": error})
            self._begun.set()

    def _strike_head(self, fault: Kill | Pause) -> None:
        head, life = list(self._lives.items())[-1]
        if not life.running or not self._launcher.listens(head):
            return  # there is none at the moment
        wait = self._restart or 0.0
        if isinstance(fault, Kill):
            self._launcher.behead(head, life)
        else:
            life.running = False
            self.loop.call_later(fault.lasting, self.loop.resume, life, context=Context())
            wait += self._intervals["silence"]
            if fault.lasting <= wait:
                return
        self._begun.clear()
        self.loop.call_later(wait, self._start_head, context=Context())

    async def _reign(self, epoch: int) -> None:
        """Be a head, until it stands."""
        cluster = ClusterHead(
            HEAD,
            launcher=self._launcher,
            epoch=epoch,
            listen="tcp://simulated:0",  # there is a network between any two
            orphan_grace=self._grace,
            secret=b"simulation",
            unix=self.loop.time,
            heartbeat=self._intervals["heartbeat"],
            silence=self._intervals["silence"],
            startup=self._intervals["startup"],
        )
        cluster.on_up(lambda name, incarnation: self.trace.add(self.time, "up", f"{name}#{incarnation}"))
        cluster.on_adopt(lambda name, incarnation: self.trace.add(self.time, "adopted", f"{name}#{incarnation}", epoch))
        cluster.on_down(self._on_down)
        cluster.on_superseded(lambda later, why: self._retire(cluster, why))
        self.heads.append(cluster)
        await cluster.start()
        self._meet(cluster.node)
        if self._setup_head is not None:
            await self._setup_head(cluster.node)
        if epoch > 1:
            await cluster.adopting()
        # It died meanwhile, and was, or will be, launched again; or this head has slept, and is over.
        again = [ValueError, NodeDown, LaunchError] if self._grace else []
        for name in self.names:
            with contextlib.suppress(*again):
                await self._launch(name)
        for name in self.names:
            with contextlib.suppress(*again):
                await cluster.wait_up(name)
        if not cluster.superseded:
            self._begun.set()

    def _retire(self, cluster: ClusterHead, why: str) -> None:
        """End the program of a head that woke and was refused."""
        self.trace.add(self.time, "superseded", why)
        task = asyncio.ensure_future(cluster.stop())
        self._relaunches.add(task)
        task.add_done_callback(self._relaunches.discard)

    async def _launch(self, name: str) -> None:
        cluster = next(head for head in self.heads if self._lives[PeerId(HEAD, head.epoch)] is LIFE.get())
        await cluster.launch(name, f"{__name__}:enter", None)

    def _on_down(self, down: Down) -> None:
        self.trace.add(self.time, "down", f"{down.node}#{down.incarnation}", down.cause)
        if self._restart is not None and not self._ending:
            task = asyncio.ensure_future(self._launch_again(down.node))
            self._relaunches.add(task)
            task.add_done_callback(self._relaunches.discard)

    async def _launch_again(self, name: str) -> None:
        assert self._restart is not None
        await asyncio.sleep(self._restart)
        with contextlib.suppress(ValueError, LaunchError):  # the scenario was faster, or the cluster stops
            await self._launch(name)

    def _current(self, name: str) -> PeerId:
        if (incarnation := self._launcher.spawned().get(name)) is None:
            raise ValueError(f"the simulation has no node {name!r} that can be paused or killed; it has {self.names}")
        return PeerId(name, incarnation)

    def _meet(self, node: Node) -> None:
        self.nodes[node.name] = node
        node.tensor_links.share = False  # shared memory is the machine's

    async def _start_node(self, node: Node) -> None:
        self._meet(node)
        if self._setup is not None:
            await self._setup(node)

    @contextlib.contextmanager
    def _world(self) -> Iterator[None]:
        """Keep the outside out: neither the state of ``random`` nor the time of garbage collection, which finalizes, gets
        in.
        """
        state, collecting = random.getstate(), gc.isenabled()
        random.seed(f"{self.seed}/global")
        gc.disable()
        try:
            yield
        finally:
            self._take_down()
            random.setstate(state)
            if collecting:
                gc.enable()

    def _take_down(self) -> None:
        """Let all tasks end, also those of lives that were killed, with no listener."""
        self.trace.sealed = self.network.closed = self._ending = True
        self.loop.limit = float("inf")
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        for life in (*self._launcher.lives.values(), *self._lives.values()):
            if not life.running:
                self.loop.resume(life)
        if tasks:  # what they start on their way out is dropped with the loop, and so is what waits for a head that is gone
            self.loop.run_until_complete(asyncio.wait(tasks, timeout=LAST_WAIT if len(self.heads) > 1 else None))
        self.loop.close()


async def enter(node: Node, config: Any) -> None:
    """Entry function of every node of a simulation."""
    life = LIFE.get()
    assert life is not None, "only a simulation starts this"
    assert life.program is not None, "the head has no entry function"
    await life.program(node)
