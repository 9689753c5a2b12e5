"""The actor of a fake worker (``tests/fake_cluster.py``), behind the real runtime: the endpoints of a worker.

``FATE`` tells what the workers of this process do: how large a block may be, and which to hold back.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from blockwright.actors.block.blocks import Blocks
from blockwright.actors.gateway.actor import Gateway
from blockwright.actors.gateway.peers import GatewayConfig
from blockwright.actors.topology import make_gateway
from blockwright.actors.worker.main import join, read
from blockwright.actors.worker.messages import BlockLoaded, Submission, WorkerConfig, WorkerStatus
from blockwright.policies.cluster.worker_size import WorkerReading
from blockwright.policies.control.loads import LoadBlock
from blockwright.policies.requests.book.sweep_report import SweepReport
from blockwright.policies.requests.routes_changed import RoutesChanged
from blockwright.policies.sweep.page_events import Export
from blockwright.runtime import Actor, Node, current_traceparent, endpoint
from blockwright.runtime.base.errors import RemoteError
from blockwright.tests.fake_cluster import FakeWorker


@dataclass
class Fate:
    """What tests change and look at."""

    room: int | None = None  # components beyond this many are refused
    hold: asyncio.Event | None = None  # sweeps wait for it
    stalled: set[str] = field(default_factory=set)  # workers whose sweep never ends
    workers: dict[str, FakeWorker] = field(default_factory=dict)  # the last life of each
    routes: dict[str, RoutesChanged] = field(default_factory=dict)  # worker -> the routes that it was sent last
    traces: list[tuple[str, str]] = field(default_factory=list)  # request, the traceparent that it came with
    cancels: list[int] = field(default_factory=list)  # how many requests each message cancelled
    running: dict[str, int] = field(default_factory=dict)  # worker -> rows, after the last message that changed them
    gateways: dict[str, Gateway] = field(default_factory=dict)  # those that are not the head's
    machines: dict[str, WorkerReading] = field(default_factory=dict)  # what workers find; others: what is here
    unloaded: list[tuple[str, str, int]] = field(default_factory=list)  # worker, holder, components


CONTROLLER = "head/controller"
FATE = Fate()


def reset() -> Fate:
    FATE.__init__()  # type: ignore[misc]
    return FATE


class StandIn(Actor):
    """See the module."""

    def __init__(self, config: WorkerConfig) -> None:
        self.config = config

    async def on_start(self) -> None:
        self.worker = FATE.workers[self.config.name] = FakeWorker(self.config.name, self.node.incarnation)
        self.gateway = ""
        self.sweeping: asyncio.Task[None] | None = None
        self.node.heartbeat = self._heartbeat

    async def on_stop(self) -> None:
        if self.sweeping is not None:
            self.sweeping.cancel()

    def _heartbeat(self) -> dict[str, object]:
        age = 99.0 if self.config.name in FATE.stalled else 0.0
        reports = {self.gateway: self.worker.serial}
        here = {"running": len(self.worker.running), "reports": reports, "speed": self.config.speed}
        return {"sweep_age": age, "waiting": 0, **here}

    @endpoint
    async def submit(self, submission: Submission) -> None:
        assert submission.route in {route.id for route in FATE.routes[self.config.name].routes}, (
            "published before it is used"
        )
        self.gateway = submission.gateway
        FATE.traces.append((submission.request, current_traceparent() if submission.trace else ""))
        self.worker.submit(submission)
        FATE.running[self.config.name] = len(self.worker.running)
        if self.sweeping is None or self.sweeping.done():
            self.sweeping = asyncio.create_task(self._sweeps())

    async def _sweeps(self) -> None:
        while self.worker.running:
            if FATE.hold is not None:
                await FATE.hold.wait()
            report = self.worker.sweep()
            if report is not None:
                self._send(report)
            await asyncio.sleep(0)

    def _send(self, report: SweepReport) -> None:
        self.node.ref(self.gateway).tokens.cast(report)

    @endpoint
    async def export(self, wanted: Export) -> None:
        """It never ends."""

    @endpoint(urgent=True)
    async def cancel(self, requests: list[str]) -> None:
        FATE.cancels.append(len(requests))
        self.worker.cancel(requests)
        FATE.running[self.config.name] = len(self.worker.running)

    @endpoint
    async def ack(self, gateway: str, serial: int) -> None:
        self.worker.acknowledge(serial)

    @endpoint
    async def replay(self, gateway: str, serial: int) -> None:
        for report in self.worker.replay(serial):
            self._send(report)

    @endpoint(concurrent=True)
    async def load(self, block: LoadBlock) -> BlockLoaded:
        self.worker.room = FATE.room
        if self.worker.refusal(block) is not None:
            raise MemoryError(f"component needs 9 bytes and worker {self.config.name} has 8 left")
        self.worker.hold(block)
        return BlockLoaded(len(block.ids), 0.0)

    @endpoint(concurrent=True)
    async def unload(self, holder: str, ids: list[bytes], block: str) -> int:
        FATE.unloaded.append((self.config.name, holder, len(ids)))
        self.worker.unload(holder, ids)
        if block:
            self.node.ref(f"{self.config.name}/{block}").ended.cast()
        return len(ids)

    @endpoint
    async def routes(self, update: RoutesChanged) -> None:
        FATE.routes[self.config.name] = update

    @endpoint(urgent=True)
    async def status(self) -> WorkerStatus:
        memory = self.config.worker_memory.memory
        return WorkerStatus(
            name=self.config.name, incarnation=self.node.incarnation, pid=0, device="cpu", numerics="fake",
            budget=memory, parameters=0, kv=0, free=memory, components=[], waiting=0,
            running=len(self.worker.running), sweep=0, sweep_age=0.0, counters={}, kv_by_tenant={},
            served_by_tenant={}, kv_cap_hits={},
        )  # fmt: skip


async def start(node: Node, config: WorkerConfig) -> None:
    here = FATE.machines.get(node.name)
    try:
        if here is None:
            config, report = await join(node, config, CONTROLLER, read)
        else:
            config, report = await join(node, config, CONTROLLER, lambda config: here, here.machine)
    except RemoteError as error:
        await node.ref(CONTROLLER).unfit(node.name, node.incarnation, error.text)
        await asyncio.Event().wait()
    await node.spawn(StandIn(config), name="worker")
    await node.spawn(Blocks(CONTROLLER, report), name="blocks")


async def start_gateway(node: Node, config: GatewayConfig) -> None:
    """A further gateway without the HTTP before it; the node's actors are found by ``FATE.gateways``."""
    gateway = make_gateway(config.settings, config.models, node.name, config.limiter, config.others)
    await node.spawn(gateway, name="gateway")
    FATE.gateways[node.name] = gateway
