"""The serving actors on the simulated cluster: controller, gateways, limiter and workers are the product's own.

Simulated are the device (``device.py``) and the files of checkpoints. Owns who runs on which node, and the clients of each
gateway's process, which live and die with it.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from blockwright.actors.conditions import Published
from blockwright.actors.controller.actor import Controller
from blockwright.actors.controller.progress import Progress
from blockwright.actors.cost_file import read_costs
from blockwright.actors.gateway.actor import Gateway
from blockwright.actors.gateway.limiting import Limiting
from blockwright.actors.gateway.port import ModelInfo
from blockwright.actors.node_news import tell_of_nodes
from blockwright.actors.predictor.main import start_in_process as start_predictors
from blockwright.actors.predictor.messages import NODE
from blockwright.actors.rate_limiter import limits_of
from blockwright.actors.settings.dispatching import OUTSTANDING
from blockwright.actors.settings.settings import Settings
from blockwright.actors.sizing import WorkerLimits
from blockwright.actors.supervision_tree import dispatchers, inside_gateway, inside_worker, tree
from blockwright.actors.worker.actor import Worker
from blockwright.actors.worker.former_life import take_over
from blockwright.actors.worker.messages import WorkerConfig
from blockwright.policies.control.events import Application
from blockwright.policies.control.loads import LoadBlock
from blockwright.policies.control.state import ControllerState
from blockwright.policies.model.chain import Component, Kind, KvLayout
from blockwright.policies.requests.admission_limit import AdmissionLimit
from blockwright.policies.requests.book.parts import BookParts, ChainRules
from blockwright.policies.requests.request_timeout import RequestTimeout
from blockwright.runtime import Node
from blockwright.runtime.testing import FaultPlan, Simulation
from blockwright.runtime.testing import simulation as entrance
from blockwright.runtime.tree import start_inside, start_tree
from blockwright.tests.serving.device import SWEEP, TOKEN, SimulatedBackend, SimulatedDevice, Spec
from blockwright.tests.serving.late import LateAnswer, LateGateway, before_machine
from blockwright.tests.worker_config import worker_config

HEAD = "head"
ENTRY = f"{entrance.__name__}:enter"
PAGE = 4  # tokens
UNFIT = "there is not enough memory"


async def _at_once(work: Callable[[], bytes]) -> bytes:
    """There are no threads."""
    return work()


class Quiet:
    """A front that nobody asks."""

    retry_window = 0.0

    def owners(self) -> list[str]:
        return []


@dataclass(frozen=True, slots=True)
class Plan:
    """What a seed serves, and with what."""

    workers: tuple[str, ...]
    gateways: tuple[str, ...]  # besides the head's, each on a node of its own
    applications: tuple[Application, ...]
    memory: int  # bytes of each worker
    max_rows: int
    chunk_size: int
    rooms: dict[str, int] = field(default_factory=dict)  # worker -> bytes that placement counts on; empty: any
    dispatch: str = OUTSTANDING
    overload: bool = False
    kv_reserve: float = 0.0  # above 0: what does not fit is on demand, and makes room for long sequences
    redundant: float = 0.0  # seconds between looks for cached pages that several workers have; 0: never
    profile: str = ""  # of the devices; empty: nobody knows what sweeps cost, and nothing is forecast
    variants: tuple[Application, ...] = ()  # chains of the same components that may serve in an application's place
    switches: int = 0  # of a running request between chains

    @property
    def settings(self) -> Settings:
        limits, gateways = {"*": 1 << 30}, 1 + len(self.gateways)
        more = {"dispatch": self.dispatch, "profile": self.profile, "overload": "on" if self.overload else "off"}
        more["redundant_pages"] = self.redundant
        return Settings(workers=len(self.workers), gateways=gateways, tokens_per_minute=limits, **more)

    def components(self, application: str) -> tuple[Component, ...]:
        return next(a.components for a in (*self.applications, *self.variants) if a.name == application)


def write_profile(folder: Path) -> str:
    """What a sweep of the simulated device costs, on average; where that was written."""
    path = folder / "profile.json"
    path.write_text(json.dumps({"coefficients": {"base": SWEEP, "token": TOKEN}}))
    return str(path)


def chain(application: str, layers: int, own_from: int) -> tuple[Component, ...]:
    """Embedding, (attention, MLP) * layers, head; from depth ``own_from`` on components are this application's alone."""
    layout = KvLayout(1, 8, "float32", PAGE)
    kinds = [Kind.EMBEDDING, *[Kind.ATTENTION, Kind.MLP] * layers, Kind.HEAD]
    parts = []
    for depth, kind in enumerate(kinds):
        identity = f"{application if depth >= own_from else 'base'}/{depth}".encode().ljust(16, b".")
        width_in = 0 if kind is Kind.EMBEDDING else 6
        parts.append(Component(identity, kind, 1000, width_in, 6, layout if kind is Kind.ATTENTION else None))
    return tuple(parts)


def tier(top: Application, layers: int) -> Application:
    """The lower tier of an application with this many layers and a head of its own."""
    head = replace(top.components[-1], id=f"{top.name}/exit {layers}".encode().ljust(16, b"."))
    parts = (*top.components[: 1 + 2 * layers], head)
    return Application(f"{top.name}:{layers}", "", parts, top.max_length, family=top.name)


@dataclass(slots=True)
class House:
    """One cluster of one seed. ``client``: the work of a client, run in each gateway's process by ``clients(gateway)``."""

    plan: Plan
    sim: Simulation = field(init=False)
    seed: int
    failed: Callable[[BaseException], None]  # called with what a device found wrong
    clients: Callable[[Gateway], list[Coroutine[Any, Any, None]]]
    unfit: set[tuple[str, int]] = field(default_factory=set)  # lives of workers that say that they cannot start
    workers: dict[str, Worker] = field(default_factory=dict)  # of the last life of each
    devices: dict[str, SimulatedDevice] = field(default_factory=dict)
    gateways: dict[str, Gateway] = field(default_factory=dict)
    legacies: dict[str, dict[str, Any]] = field(default_factory=dict)  # of workers, from life to life
    warm: list[Worker] = field(default_factory=list)  # lives that have taken over a former one
    state: ControllerState = field(init=False)  # the controller's, for the properties
    late: Counter[str] = field(default_factory=Counter)  # answers that were planted
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sim = Simulation(
            seed=self.seed, nodes=(), faults=FaultPlan(), setup=self._setup, restart=None, heartbeat=0.5, silence=2.5,
            startup=4.0, limit=3000.0,
        )  # fmt: skip

    async def open(self) -> None:
        """Start everything, by the product's own supervision tree; on the head."""
        sim, plan = self.sim, self.plan
        configs = {name: self._config(name) for name in plan.workers}
        self.state = ControllerState(plan.workers, 3.0, memory=plan.rooms, block_idle=2.0 if plan.rooms else 0.0)
        settings = plan.settings
        gateway = self._gateway(HEAD, list(plan.gateways))
        controller = sim.head.ref(f"{HEAD}/controller", Controller)
        values = {
            "limiter": (limits_of(settings.tenants),),
            **{name: (settings.dispatching, number) for number, name in enumerate(dispatchers(settings.dispatching))},
            "memory": (settings.parameter_drops, settings.worker, f"{HEAD}/controller"),
            "copies": (settings.worker_memory,),
            "applications": (settings, WorkerLimits("float32", frozenset()), f"{HEAD}/controller"),
            "gateway": gateway,
            "controller": (self.state, [f"{HEAD}/gateway"], Published(Progress())),
            "peer": (Quiet(), list(plan.gateways)),
            **configs,
            **dict.fromkeys((*plan.gateways, NODE)),
        }
        tell_of_nodes(sim.cluster, controller, Published(()), configs.keys(), plan.gateways)
        whole = tree(settings, first_in_head=True, worker_entry=ENTRY, gateway_entry=ENTRY, predictor_entry=ENTRY)
        await start_tree(sim.head, whole, values, nodes=sim.cluster)
        self._serve_clients(gateway)
        if plan.variants:
            await controller.vary(list(plan.variants))
        await controller.serve(list(plan.applications))

    def _config(self, name: str) -> WorkerConfig:
        plan = self.plan
        longest = max(a.max_length for a in plan.applications)
        return worker_config(
            name, memory=plan.memory, page_size=PAGE, chunk_size=plan.chunk_size, sweep_tokens=48,
            max_rows=plan.max_rows, max_length=longest, kv_layers=4, check=self.seed % 8 == 0,
            profile=read_costs(plan.profile), redundant_pages=plan.redundant,
            kv_reserve=plan.kv_reserve, on_demand=plan.kv_reserve > 0,
        )  # fmt: skip

    # nodes

    async def _setup(self, node: Node) -> None:
        """On each life of each node but the head."""
        if node.name in self.plan.gateways:
            gateway = self._gateway(node.name, [HEAD, *[name for name in self.plan.gateways if name != node.name]])
            await start_inside(node, inside_gateway(batches=False), {"gateway": gateway, "peer": (Quiet(), [])})
            self._serve_clients(gateway)
            return
        if node.name == NODE:
            await start_predictors(node, self.plan.settings)
            return
        if (node.name, node.incarnation) in self.unfit:  # as ``actors/worker/main.py`` does
            await node.ref(f"{HEAD}/controller").unfit(node.name, node.incarnation, UNFIT)
            await asyncio.Event().wait()
        random = Random(f"{self.seed} {node.id} device")

        def open_device(config, backend, chunk, on_swept, on_fatal, lay_out):  # type: ignore[no-untyped-def]
            self.devices[node.name] = SimulatedDevice(random, on_swept, on_fatal, lay_out)
            return self.devices[node.name]

        node.legacy, config = self.legacies.setdefault(node.name, {}), self._config(node.name)
        former = take_over(node.legacy, config)
        backend: Any = SimulatedBackend() if former is None else former.backend
        here = {"open_device": open_device, "read_specs": self._read, "aside": _at_once}
        worker = Worker(config, backend, self.failed, former, **here)
        self.warm += [worker] * (former is not None)
        before_machine(worker, Random(f"{self.seed} {node.id} late"), self._late, self.late)
        inside = inside_worker(overload=self.plan.overload)
        await start_inside(node, inside, {"worker": worker, "blocks": (f"{HEAD}/controller",)})
        self.workers[node.name] = worker

    async def _read(self, block: LoadBlock, page_size: int, kv_dtype: str) -> Any:
        known = {c.id: c for application in self.plan.applications for c in application.components}
        return [Spec(known[id]) for id in block.ids]

    def _gateway(self, node: str, others: list[str]) -> Gateway:
        models = [ModelInfo(a.name, a.checkpoint, a.max_length, 0, False) for a in self.plan.applications]
        asked = list(dispatchers(self.plan.settings.dispatching).values())
        timeouts, overload = RequestTimeout(20.0, 0.0), AdmissionLimit(1000, 0, 1 + len(self.plan.gateways))
        more = {"asks": bool(asked), "rules": ChainRules(switches=self.plan.switches)}
        parts = BookParts("", models, page_size=PAGE, timeouts=timeouts, overload=overload, **more)
        book = LateGateway(parts)
        book.doubt(Random(f"{self.seed} {node} late"), self._late, self.late)
        name, controller = "g0" if node == HEAD else node, f"{HEAD}/controller"
        limits = limits_of(self.plan.settings.tenants)
        more = {"limiting": Limiting(f"{HEAD}/limiter" if limits else "", limits), "others": others, "dispatchers": asked}
        return Gateway(book, name=name, controller=controller, **more)

    def _late(self, text: str) -> None:
        """A late answer has changed something."""
        self.failed(LateAnswer(text))

    def _serve_clients(self, gateway: Gateway) -> None:
        self.gateways[gateway.node.name] = gateway
        for work in self.clients(gateway):
            self._later(work)

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(work))
