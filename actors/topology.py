"""A serving cluster from its settings: who runs where, what is started in which order, and how all of it ends.

The head node has the controller and the gateway; every worker is a node of its own. Starting returns as soon as requests
can be taken; hashing and loading go on behind it. Owns the order of start and stop, no serving state. Loads no torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Container
from pathlib import Path

from blockwright.actors.config import Settings, SettingsError
from blockwright.actors.controller.actor import Controller
from blockwright.actors.controller.messages import Application, Serve
from blockwright.actors.controller.state import ControllerState
from blockwright.actors.gateway.actor import MAILBOX as GATEWAY_MAILBOX
from blockwright.actors.gateway.actor import Gateway
from blockwright.actors.gateway.port import GatewayPort, ModelInfo
from blockwright.actors.gateway.state import GatewayState
from blockwright.actors.rate_limiter import MAILBOX, Limiter, limits_of
from blockwright.actors.resources import address_space, cores, free_memory
from blockwright.actors.sizing import max_lengths, serving_dtype, spans, worker_configs, worker_names
from blockwright.actors.worker.messages import WorkerConfig
from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.policies.plan.cost import Coefficients
from blockwright.runtime.base.down import Down
from blockwright.runtime.base.errors import NoSuchActor
from blockwright.runtime.base.node_view import Measure
from blockwright.runtime.cluster.cluster import Cluster
from blockwright.runtime.cluster.inprocess import InProcessLauncher
from blockwright.runtime.cluster.launcher import Launcher
from blockwright.runtime.cluster.processes import ForkserverLauncher
from blockwright.transport.errors import AddressError

HEAD = "head"
WORKER = "blockwright.actors.worker.main:start"
WORKER_IN_PROCESS = "blockwright.actors.worker.main:start_in_process"


class StartError(Exception):
    """The cluster cannot serve what it was started for; one sentence for the person who started it."""


class Hub:
    """The cluster's membership as the controller needs it: workers by name alone."""

    def __init__(self, cluster: Cluster, entry: str, configs: dict[str, WorkerConfig]) -> None:
        self._cluster, self._entry, self._configs = cluster, entry, configs

    async def launch(self, worker: str) -> None:
        await self._cluster.launch(worker, self._entry, self._configs[worker])

    async def kill(self, worker: str, cause: str) -> None:
        await self._cluster.kill(worker, cause)

    def pid(self, worker: str) -> int:
        member = self._cluster.members().get(worker)
        return member.pid if member is not None else 0


class Running:
    """A started cluster. ``stages``: (name, seconds since ``start`` was called) of what is done, in order."""

    def __init__(self, cluster: Cluster, controller: Controller, gateway: Gateway, launcher: Launcher, began: float) -> None:
        self.cluster, self.controller, self.gateway, self.launcher = cluster, controller, gateway, launcher
        self.port: GatewayPort = gateway
        self.stages: list[tuple[str, float]] = []
        self._began = began
        self._background: list[asyncio.Task[None]] = []

    async def ready(self, *, whole: bool = False) -> None:
        """Until every application can be served; with ``whole``, until every planned route of each is in force.

        Raises StartError when that cannot be.
        """
        everything = asyncio.ensure_future(self.gateway.until(lambda: self._serves(whole)))
        failure = asyncio.ensure_future(self.failed())
        try:
            await asyncio.wait((everything, failure), return_when=asyncio.FIRST_COMPLETED)
            if not everything.done():
                raise failure.result()
        finally:
            everything.cancel()
            failure.cancel()

    def _serves(self, whole: bool) -> bool:
        """As the gateway knows it, which learns of routes a moment after the controller."""
        state, known = self.controller.state, self.gateway.state.table
        told = bool(state.blocks) and known.version == state.version
        return told and (state.whole if whole else all(known.routes[name] for name in state.blocks))

    async def failed(self) -> StartError:
        """Returns, with the reason, when the cluster can never serve; otherwise waits for ever."""
        return StartError(await asyncio.shield(self.controller.fatal))

    @property
    def warnings(self) -> list[str]:
        """What whoever started the cluster should hear, though it serves."""
        return self.controller.warnings

    def measures(self) -> list[Measure]:
        """What the head's node counts, for Prometheus."""
        return self.cluster.node.metrics()

    async def stop(self) -> None:
        """End all requests, workers, processes, sockets. Idempotent."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self.gateway.drain(0)
        with contextlib.suppress(NoSuchActor):
            await self.cluster.node.despawn("controller")  # first: the end of the workers is no news for it
        await self.cluster.stop()

    def reached(self, stage: str) -> None:
        self.stages.append((stage, time.monotonic() - self._began))

    def run(self, checkpoints: dict[str, Checkpoint], settings: Settings) -> None:
        """Hash, load and note the stages, behind everything else."""
        self._background += [
            asyncio.create_task(self._prepare(checkpoints, settings)),
            asyncio.create_task(self._watch()),
        ]

    async def _prepare(self, checkpoints: dict[str, Checkpoint], settings: Settings) -> None:
        try:
            applications = await asyncio.to_thread(_applications, checkpoints, settings)
            self.reached("hashed")
            self.controller.serve(Serve(applications))
        except Exception as error:  # a file that changed, an unreadable tensor, a chain shorter than its pipeline
            if not self.controller.fatal.done():
                self.controller.fatal.set_result(str(error))

    async def _watch(self) -> None:
        await self.controller.until(lambda: self.controller.state.all_up)
        self.reached("workers up")
        await self.controller.until(lambda: self.controller.state.whole)
        self.reached("loaded")


async def start(settings: Settings, *, in_process: bool = False, worker_entry: str = "") -> Running:
    """Start a cluster; loading goes on when this returns.

    in_process: workers are nodes of this process (tests). worker_entry: "module:function" instead of the worker's own.

    Raises CheckpointError, SettingsError: one sentence for the person who started it.
    """
    began = time.monotonic()
    if not settings.applications:
        raise SettingsError("applications is empty; name a checkpoint to serve")
    if settings.pace:
        await asyncio.to_thread(_check_pace, settings.pace)
    checkpoints = await asyncio.to_thread(
        lambda: {name: Checkpoint.open(source) for name, source in settings.applications.items()}
    )
    models = {name: checkpoint.config for name, checkpoint in checkpoints.items()}
    lengths = max_lengths(settings, models)
    configs = worker_configs(settings, models, free_memory=free_memory(), cores=cores(), address_space=address_space())
    launcher: Launcher = InProcessLauncher() if in_process else _processes(settings)
    entry = worker_entry or (WORKER_IN_PROCESS if in_process else WORKER)
    cluster = Cluster(HEAD, launcher=launcher, heartbeat=settings.heartbeat, silence=settings.silence)
    try:
        await cluster.start()
    except BaseException as error:
        await launcher.stop()
        if isinstance(error, AddressError | OSError):  # of the sockets' directory, which a setting or TMPDIR names
            raise SettingsError(f"directory: the cluster's sockets cannot lie there: {error}") from error
        raise
    try:
        gateway_address = f"{HEAD}/gateway"
        state = ControllerState(worker_names(settings), stall_timeout=settings.stall_timeout)
        controller = Controller(state, Hub(cluster, entry, configs), [gateway_address])
        limits = limits_of(settings)
        if limits:
            await cluster.node.spawn(Limiter(limits), name="limiter", mailbox=MAILBOX)
        gateway = Gateway(
            _gateway_state(settings, checkpoints, lengths),
            name="g0",
            cluster=controller.cluster,
            limiter=f"{HEAD}/limiter" if limits else "",
            others=gateway_nodes(settings)[1:],
        )
        # First: the controller publishes to it from its first tick on.
        await cluster.node.spawn(gateway, name="gateway", mailbox=GATEWAY_MAILBOX)
        await cluster.node.spawn(controller, name="controller")
        for listener in (gateway, controller):
            cluster.on_up(_tell_up(listener, configs))
            cluster.on_down(_tell_down(listener, configs))
        running = Running(cluster, controller, gateway, launcher, began)
        running.reached("checkpoints opened")
        controller.start()
        running.run(checkpoints, settings)
    except BaseException:
        await cluster.stop()
        raise
    return running


def _check_pace(path: str) -> None:
    """Workers read the table again; here its faults reach the person who named it."""
    try:
        Coefficients.from_table(json.loads(Path(path).read_text()))
    except (OSError, ValueError) as error:
        raise SettingsError(f"pace: {path} cannot be used ({error}); give a JSON file of seconds, or none") from None


def _processes(settings: Settings) -> ForkserverLauncher:
    directory = Path(settings.directory) if settings.directory else None
    return ForkserverLauncher(directory, preload=["torch", "blockwright.actors.worker.main"])


def _tell_up(listener: Gateway | Controller, workers: Container[str]) -> Callable[[str, int], None]:
    """Nodes that are not workers are other people's business."""
    return lambda name, incarnation: listener.worker_up(name, incarnation) if name in workers else None


def _tell_down(listener: Gateway | Controller, workers: Container[str]) -> Callable[[Down], None]:
    return lambda down: listener.worker_down(down.node, down.incarnation, down.cause) if down.node in workers else None


def _gateway_state(settings: Settings, checkpoints: dict[str, Checkpoint], lengths: dict[str, int]) -> GatewayState:
    created = int(time.time())
    models = [ModelInfo(name, str(c.path), lengths[name], created, False) for name, c in checkpoints.items()]
    return gateway_state(settings, models)


def gateway_nodes(settings: Settings) -> list[str]:
    """The nodes that answer HTTP, the head first."""
    return [HEAD, *(f"g{number}" for number in range(1, settings.gateways))]


def gateway_state(settings: Settings, models: list[ModelInfo]) -> GatewayState:
    """Of one gateway."""
    return GatewayState(
        "",  # filled in by the actor, which knows where it is
        models,
        page_size=settings.page_size,
        worker_wait=settings.worker_wait,
        max_waiting=settings.max_waiting,
        max_waiting_tokens=settings.max_waiting_tokens,
        gateways=settings.gateways,
    )


def _applications(checkpoints: dict[str, Checkpoint], settings: Settings) -> tuple[Application, ...]:
    """Hash every tensor: seconds of work, so on a thread."""
    models = {name: checkpoint.config for name, checkpoint in checkpoints.items()}
    lengths, dtype, over = max_lengths(settings, models), serving_dtype(settings, models), spans(settings)
    return tuple(
        Application(
            name,
            str(checkpoint.path),
            tuple(spec.component for spec in checkpoint.specs(settings.page_size, dtype)),
            lengths[name],
            over[name],
        )
        for name, checkpoint in checkpoints.items()
    )
