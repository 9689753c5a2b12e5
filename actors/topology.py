"""Topology: starts and stops a serving cluster from its settings.

Binds the values to the parts of the tree that ``supervision_tree`` describes. Starting returns as soon as requests can be
accepted; hashing and loading continue in the background. Owns start and stop, but no serving state; learns the controller's
progress from what it publishes. Loads no torch.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from ..gpu.weights.checkpoint import Checkpoint
from ..policies.cluster.traffic import LinkCost
from ..policies.cluster.worker_size import SizeRefused, SizeRules, WorkerReading, WorkerSizes, size_of
from ..policies.control.scaling import ScalingPlan
from ..policies.control.state import ControllerState
from ..policies.measures import Measure
from ..policies.requests.admission_limit import AdmissionLimit
from ..policies.requests.book.book import RequestBook
from ..policies.requests.book.lengths import Lengths
from ..policies.requests.book.parts import BookParts, ChainRules
from ..policies.requests.request_timeout import RequestTimeout
from ..runtime.actor.ref import Ref
from ..runtime.base.errors import RuntimeFault
from ..runtime.cluster.cluster import ClusterHead
from ..runtime.cluster.inprocess import InProcessLauncher
from ..runtime.cluster.launcher import Launcher
from ..runtime.cluster.processes import ForkserverLauncher
from ..runtime.tree import Branch, lines, start_tree
from ..transport.errors import AddressError
from .batches.port import BatchService
from .changes_file import ChangesFile
from .checkpoints import OpenedCheckpoints, check_drafts, hash_applications, model_info, open_checkpoints
from .conditions import Published
from .controller.actor import Controller
from .controller.progress import Progress
from .cost_file import check_costs, read_link
from .device_choice import read_machine, this_machine
from .found_members import FoundMembers, Succession, find_members, settle_members
from .further_applications import absent_models, check_places, open_further
from .gateway.actor import Gateway
from .gateway.front_files import FrontFiles
from .gateway.limiting import Limiting
from .gateway.peers import GatewayConfig, GatewayPeer, LocalFront, LocalRelay
from .gateway.port import GatewayPlace, GatewayPort, ModelInfo, Readiness, Service
from .gateway.tagging import check_tagging, make_tagging
from .head_address import head_options, write_join_text
from .head_doubts import tell_doubts
from .node_news import take_over_predictors, tell_of_nodes, tell_of_predictors
from .predictor.admission import PREDICTOR_ADMISSION
from .predictor.messages import NODE
from .rate_limiter import limits_of
from .resources import cores
from .settings.errors import SettingsError, StartError
from .settings.faults import FaultSettings
from .settings.joining import JoinSettings
from .settings.settings import Settings
from .settings.workers import FRAGMENTATION
from .sizing import max_lengths, serving_dtype, size_rules, worker_configs, worker_limits, worker_names
from .speculation import with_drafting_chains
from .supervision_tree import HEAD, PREDICTORS, WORKER, dispatchers, gateway_nodes, gateway_processes, in_head, tree
from .variants import check_adaptive, variants_of
from .worker_processes import with_further, worker_launcher

log = logging.getLogger("blockwright.cluster")
CONTROLLER = f"{HEAD}/controller"
PREDICTORS_IN_PROCESS = "blockwright.actors.predictor.main:start_in_process"
WORKER_IN_PROCESS = "blockwright.actors.worker.main:start_in_process"
PATIENCE = 2.0  # a gateway's time-out for a dispatcher, in units of a dispatcher's time-out for predictors
ASK_SECONDS = 1.0  # time-out in seconds for asking a gateway or the controller for its state


@dataclass(frozen=True, slots=True)
class Http:
    """The head's HTTP front, and the port on which every gateway process listens.

    ``entry`` is "module:function" of a further gateway's process. ``batch_service`` is there if batches are. ``relay``: see
    ``GatewayPeer``.
    """

    front: LocalFront
    port: int
    entry: str
    batch_service: BatchService | None = None
    relay: LocalRelay | None = None


class Running:
    """A started cluster.

    ``port`` is this process's gateway, None if each gateway is a process of its own. ``answering`` are the nodes of gateway
    processes that are up. ``held`` has the checkpoints that are served; they cannot be removed from their zoo while they are
    in it (``Applications`` adds and removes them). ``stages`` has (name, seconds since ``start`` was called) for each stage
    reached, in order.
    """

    def __init__(
        self,
        cluster: ClusterHead,
        launcher: Launcher,
        port: GatewayPort | None,
        began: float,
        held: dict[str, Checkpoint],
    ) -> None:
        self.cluster = cluster
        self.launcher = launcher
        self.port = port
        self.controller = cluster.node.ref(CONTROLLER, Controller)
        self.progress = Published(Progress())
        self.answering: Published[tuple[str, ...]] = Published(())
        self.stages: list[tuple[str, float]] = []
        self.held = held
        self._began = began
        self._failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._background: list[asyncio.Task[None]] = []
        cluster.on_superseded(lambda _, sentence: self.fail(sentence))

    @property
    def peer(self) -> Ref:
        """The actor that the head's front asks for the state of other fronts."""
        return self.cluster.node.ref(f"{HEAD}/peer", GatewayPeer).ref

    async def ready(self, *, whole: bool = False) -> None:
        """Wait until every application can be served; with ``whole``, until every planned route of each is in force.

        Raises StartError if that cannot happen.
        """
        everything = asyncio.ensure_future(self._serves(whole))
        failure = asyncio.ensure_future(self.failed())
        try:
            await asyncio.wait((everything, failure), return_when=asyncio.FIRST_COMPLETED)
            if not everything.done():
                raise failure.result()
            everything.result()
        finally:
            everything.cancel()
            failure.cancel()

    async def _serves(self, whole: bool) -> None:
        """Wait for the progress, and until the gateway knows of it: it learns of routes after the controller."""
        known = await self.progress.until(lambda p: p.whole if whole else p.serves)
        if self.port is not None:
            await self.cluster.node.ref(f"{HEAD}/gateway", Gateway).knows(known.version)

    async def service(self) -> Service:
        """Return the models' state as the first gateway that answers reports it."""
        for name in self.answering.value if self.port is None else (HEAD,):
            try:
                found: Service = await self.cluster.node.ref(f"{name}/gateway", Gateway).service(timeout=ASK_SECONDS)
            except RuntimeFault:
                continue  # the gateway has just died
            return found
        return Service([], Readiness(False, "no gateway is up"))

    async def sharing(self) -> tuple[int, int]:
        """Return the bytes of all models' parameters, with equal tensors counted once, and the bytes that sharing saves.

        Both are 0 if they are not known in time: a worker that is busy, or dies, does not keep a server from being ready.
        """
        try:
            view: dict[str, Any] = await self.controller.cluster(timeout=ASK_SECONDS)
        except RuntimeFault:
            return 0, 0
        return view["parameter_bytes"], view["saved_bytes"]

    async def failed(self) -> StartError:
        """Wait until the cluster can never serve, which may be for ever, and return the reason."""
        fatal = asyncio.ensure_future(self.progress.until(lambda p: bool(p.fatal)))
        try:
            await asyncio.wait((fatal, self._failed), return_when=asyncio.FIRST_COMPLETED)
            return StartError(fatal.result().fatal if fatal.done() else self._failed.result())
        finally:
            fatal.cancel()

    @property
    def warnings(self) -> Sequence[str]:
        """The warnings for the person who started the cluster, although it serves."""
        return self.progress.value.warnings

    @property
    def preparing(self) -> Sequence[str]:
        """The kernels that workers still prepare on a card, and how far each is."""
        return self.progress.value.preparing

    def measures(self) -> list[Measure]:
        """Return the metrics of the head's node, for Prometheus."""
        return self.cluster.node.metrics()

    async def drain(self, seconds: float) -> None:
        """Stop all gateways from accepting requests. Wait until nothing runs, for at most ``seconds``. Needs HTTP."""
        await self.peer.drain_all(seconds, timeout=seconds + 10.0)

    async def stop(self) -> None:
        """Stop all requests, workers, processes and sockets. Idempotent."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        if self.port is not None:
            await self.port.drain(0)
        await self.cluster.stop()

    async def offer_to_join(self, joining: JoinSettings) -> None:
        """Write the text with which workers join, and report where, if the head listens for them."""
        if joining.listen:
            self.reached(f"workers join at {await asyncio.to_thread(write_join_text, self.cluster.node, joining)}")

    def doubts(self) -> str:
        """Return why the head takes no member for down while it reaches few of them; else ""."""
        return self.cluster.doubts

    def reached(self, stage: str) -> None:
        self.stages.append((stage, time.monotonic() - self._began))

    def run(self, root: Ref, opened: OpenedCheckpoints, settings: Settings, then: Callable[[], None]) -> None:
        """Hash, load and record the stages, in the background. ``then`` is called when everything is loaded."""
        tell_doubts(self.cluster)
        self.cluster.node.monitor(root, lambda down: self.fail(f"the cluster's supervisor ended: {down.cause}"))
        self._background += [
            asyncio.create_task(self._prepare(opened, settings)),
            asyncio.create_task(self._watch(then)),
        ]

    def fail(self, reason: str) -> None:
        """Report why the cluster can never serve, or not any more."""
        if not self._failed.done():
            self._failed.set_result(reason)

    async def take_over(self, found: FoundMembers, settings: Settings, workers: Collection[str]) -> None:
        """Take over what members of the head before have. ``workers``: the cluster's own."""
        await self.controller.take_over()
        await take_over_predictors(self.cluster, settings, workers)
        self.reached(found.sentence)

    async def _prepare(self, opened: OpenedCheckpoints, settings: Settings) -> None:
        try:
            applications = await asyncio.to_thread(hash_applications, opened, settings)
            self.reached("hashed")
            dtype = serving_dtype(settings.worker, {name: one.config for name, one in opened.checkpoints.items()})
            variants = await asyncio.to_thread(variants_of, opened.checkpoints, applications, settings, dtype)
            await self.controller.serve(applications)
            await self.controller.vary(variants)
        except Exception as error:  # a file that changed, an unreadable tensor, a chain shorter than its pipeline
            self.fail(str(error))

    async def _watch(self, then: Callable[[], None]) -> None:
        await self.progress.until(lambda p: p.workers_up)
        self.reached("workers up")
        await self.progress.until(lambda p: p.whole)
        self.reached("loaded")
        then()


async def start(
    settings: Settings,
    *,
    http: Http | None = None,
    launcher: Launcher | None = None,
    in_process: bool = False,
    worker_entry: str = "",
    succession: Succession | None = None,
) -> Running:
    """Start a cluster; loading continues after this returns.

    ``http`` None: this process has the only gateway. ``launcher`` None: the default one. ``in_process``: all nodes run here.
    ``worker_entry``: a "module:function" for workers in place of the usual one. ``succession``: this head's place among the
    heads of a keeper; None: it has none, and all end with it. Raises CheckpointError or SettingsError.
    """
    began = time.monotonic()
    here = await _read_here(settings, launcher)
    opened, fronts = await _open_checkpoints(settings, again=succession is not None and not succession.first)
    models = {name: checkpoint.config for name, checkpoint in opened.checkpoints.items()}
    rules, configs = size_rules(settings, models), worker_configs(settings, models, this_machine())
    _refuse_early(here, rules)
    first_in_head = http is None or in_head(settings.network, cores())
    processes = gateway_processes(settings.network, first_in_head=first_in_head) if http is not None else []
    local = launcher or (InProcessLauncher() if in_process else worker_launcher(settings.network.directory))
    launcher = with_further(local, settings)
    cluster = await _open_cluster(settings.faults, settings.joining, launcher, succession)
    try:
        whole = _tree(settings, http, worker_entry, in_process=in_process, first_in_head=first_in_head)
        infos = _models(opened, max_lengths(settings.requests, models))
        gateway = _gateway(fronts, infos) if first_in_head else None
        running = Running(cluster, launcher, gateway, began, dict(opened.checkpoints))
        state = _state(settings, rules, fronts.models.default_model)
        found = await find_members(cluster, state, settings.faults, {*configs}, {*processes}, succession)
        running.answering.publish(found.gateways)
        values: dict[str, Any] = {
            **_services(settings, http.batch_service if http is not None else None),
            "members": (cluster, next(iter(configs.values())), {*configs, *processes, NODE}, CONTROLLER, settings.launching),
            "gateway-admission": _gateway_admission(cluster, fronts, infos, {*configs, *processes, NODE}, running.held),
            PREDICTOR_ADMISSION: (cluster, settings, {*configs, *processes, NODE}, CONTROLLER),
            "applications": (settings, worker_limits(settings.worker, models), CONTROLLER, running.held),
            "gateway": gateway,
            "controller": _controller(settings, rules, state, running, found, first_in_head=first_in_head),
            "peer": GatewayPeer(http.front, processes, relay=http.relay) if http is not None else (),
            **configs,
            **_gateway_configs(fronts, infos, first_in_head, http.port if http is not None else 0),
        }
        tell_of_predictors(cluster, settings, configs.keys())
        tell_of_nodes(cluster, running.controller.ref, running.answering, configs.keys(), processes)
        root = await start_tree(cluster.node, whole, values, nodes=cluster)
        running.reached("checkpoints opened")
        if await settle_members(cluster, found):
            await running.take_over(found, settings, configs.keys())
        await running.offer_to_join(settings.joining)
        programs = [*([http.entry] if http is not None and processes else []), *found.programs]
        running.run(root, opened, settings, partial(_warm, local, programs))
    except BaseException:
        await cluster.stop()
        raise
    return running


def _tree(settings: Settings, http: Http | None, worker_entry: str, *, in_process: bool, first_in_head: bool) -> Branch:
    """Return the supervision tree, and show it in the log."""
    whole = tree(
        settings,
        first_in_head=first_in_head,
        worker_entry=worker_entry or (WORKER_IN_PROCESS if in_process else WORKER),
        gateway_entry=http.entry if http is not None else "",
        predictor_entry=PREDICTORS_IN_PROCESS if in_process else PREDICTORS,
    )
    log.info("supervision tree:\n%s", "\n".join(lines(whole)))
    return whole


def _warm(launcher: Launcher, programs: Sequence[str]) -> None:
    """Preload programs for a quick restart of what dies. Not at the start, which workers wait for."""
    if programs and isinstance(launcher, ForkserverLauncher):
        launcher.preload([program.partition(":")[0] for program in programs])


def _services(settings: Settings, batch_service: BatchService | None) -> dict[str, Any]:
    """Return the values of the services, the dispatchers, the predictors and the batch runner."""
    asked = {name: (settings.dispatching, number) for number, name in enumerate(dispatchers(settings.dispatching))}
    own = {
        "limiter": (limits_of(settings.tenants),),
        "tagger": (settings.tagging,),
        "memory": (settings.parameter_drops, settings.worker, CONTROLLER),
        "copies": (settings.worker_memory,),
        "cards": (settings.worker.card,),
    }
    return {**own, "batches": (batch_service,), NODE: settings, **asked}


def _state(settings: Settings, rules: SizeRules, default: str) -> ControllerState:
    more: dict[str, Any] = {"block_idle": settings.worker_memory.block_idle, "on_demand": settings.models.on_demand}
    names, least = worker_names(settings), settings.worker.workers
    launching = settings.launching
    rules_of = settings.autoscaling.rules(least, least + launching.launched_workers, places=launching.places)
    elsewhere = launching.launcher, launching.launch_labels
    more["scaling"] = ScalingPlan(rules_of, names, settings.faults.drain_timeout, *elsewhere)
    more["sizes"] = rules
    more["by_room"] = by_room = settings.worker.placement == FRAGMENTATION
    more["traffic_window"] = 0.0 if by_room else settings.worker.traffic_window
    if (link := read_link(settings.worker.profile)) is not None:
        more["link"] = LinkCost(link.latency, link.bandwidth or inf)
    state = ControllerState(names[:least], settings.faults.stall_timeout, **more)
    state.overload.watched = settings.parameter_drops.is_on
    state.default_is_set = bool(settings.models.default_model)
    state.table.default = default
    return state


def _controller(
    settings: Settings,
    rules: SizeRules,
    state: ControllerState,
    running: Running,
    found: FoundMembers,
    *,
    first_in_head: bool,
) -> tuple[Any, ...]:
    """Return the values of the controller."""
    adopted = found.keeping.adopted if found.keeping is not None else None
    gateways = [f"{name}/gateway" for name in (*[HEAD] * first_in_head, *found.gateways)]
    more = settings.worker.may_be_card, WorkerSizes(rules), settings.logs, found.keeping, running.doubts
    return adopted.state if adopted is not None else state, gateways, running.progress, *more


async def _read_here(settings: Settings, launcher: Launcher | None) -> WorkerReading | None:
    """Return what this machine has for its workers; None if they do not run here. Raises SettingsError."""
    if launcher is not None and not isinstance(launcher, ForkserverLauncher):
        return None
    return await asyncio.to_thread(read_machine, settings.worker, len(worker_names(settings)), here=True)


def _refuse_early(here: WorkerReading | None, rules: SizeRules) -> None:
    """Refuse what workers that this process forks would refuse, before any is started. Raises SettingsError.

    ``here``: what this machine has for them; None: they run elsewhere. The size of each worker still comes from its
    own report.
    """
    if here is not None:
        try:
            size_of(here, rules)
        except SizeRefused as refused:
            raise SettingsError(str(refused)) from None


async def _open_checkpoints(settings: Settings, *, again: bool) -> tuple[OpenedCheckpoints, Settings]:
    """Check the other settings, then open what is served.

    Also return the settings of gateways, which name the model of requests without one.
    """
    if not settings.models.applications:
        raise SettingsError("applications is empty; name a checkpoint to serve")
    await asyncio.to_thread(check_costs, settings.worker)
    await asyncio.to_thread(check_tagging, settings.tagging)
    await asyncio.to_thread(check_folders, settings)
    await asyncio.to_thread(check_places, settings.models)
    opened = await asyncio.to_thread(open_checkpoints, settings, again=again)
    file, default = ChangesFile.of(settings.models), settings.models.default_model
    if file is not None:
        changes = await asyncio.to_thread(file.read)
        opened, warnings = await asyncio.to_thread(open_further, settings, opened, changes)
        await asyncio.to_thread(check_drafts, settings, opened.checkpoints, opened.bases, opened.families)
        default = default or changes.default
        for sentence in warnings:
            log.warning("%s", sentence)
    await asyncio.to_thread(check_adaptive, settings, opened.checkpoints)
    opened = await asyncio.to_thread(with_drafting_chains, settings, opened)
    for sentence in absent_models(settings, opened.checkpoints):
        log.warning("%s", sentence)
    _tell_bases(opened)
    speculate = settings.drafting.speculate | {
        name: "tokens" for name in opened.drafting.values() if name not in settings.drafting.guessing
    }
    first = next(iter(settings.models.applications))
    return opened, settings.changed(default_model=default or first, speculate=speculate)


async def _open_cluster(
    faults: FaultSettings, joining: JoinSettings, launcher: Launcher, succession: Succession | None
) -> ClusterHead:
    more = head_options(joining)
    if succession is not None and faults.orphan_grace:
        more |= {"epoch": succession.epoch, "secret": succession.secret, "orphan_grace": faults.orphan_grace}
    cluster = ClusterHead(HEAD, launcher=launcher, heartbeat=faults.heartbeat, silence=faults.silence, **more)
    try:
        await cluster.start()
    except BaseException as error:
        await launcher.stop()
        if isinstance(error, AddressError) and joining.listen:
            raise SettingsError(f"listen: {error}; choose another --listen tcp://HOST:PORT") from error
        if isinstance(error, AddressError | OSError):  # a fault of the sockets' directory, which a setting or TMPDIR names
            raise SettingsError(f"directory: the cluster's sockets cannot lie there: {error}") from error
        raise
    return cluster


def _models(opened: OpenedCheckpoints, lengths: dict[str, int]) -> list[ModelInfo]:
    created = int(time.time())
    names = (name for name in opened.checkpoints if name not in opened.drafting)
    return [model_info(opened, name, lengths[name], created) for name in names]


def _tell_bases(opened: OpenedCheckpoints) -> None:
    for name, base in opened.bases.items():
        if name in opened.assumed:
            log.warning("%s does not name %s as its base, but is put on it as the only whole model there is", name, base)
        else:
            log.info("%s is put on %s", name, base)


def _gateway(settings: Settings, models: list[ModelInfo]) -> Gateway:
    """Return the head's gateway."""
    others = gateway_nodes(settings.network, first_in_head=True)[1:]
    limiter = f"{HEAD}/limiter" if limits_of(settings.tenants) else ""
    return make_gateway(settings, models, "g0", limiter, others)


def make_gateway(
    settings: Settings,
    models: list[ModelInfo],
    name: str,
    limiter: str,
    others: Sequence[str],
    place: GatewayPlace | None = None,
) -> Gateway:
    """Return a gateway. ``name`` appears in request ids; ``others`` are the nodes of the other gateways."""
    limits = settings.requests
    parts = BookParts(
        "",  # filled in by the actor, which knows its address
        models,
        page_size=settings.worker_memory.page_size,
        timeouts=RequestTimeout(settings.faults.worker_wait, limits.request_timeout),
        overload=AdmissionLimit(limits.max_waiting, limits.max_waiting_tokens, settings.network.gateways),
        tenants=len(settings.network.tenants),
        lengths=Lengths(settings.tagging.is_on or bool(settings.tagging.request_log)),
        asks=settings.dispatching.is_asked,
        rules=ChainRules(
            target=settings.dispatching.slo_ttft,
            switches=settings.models.switches,
            similarity_share=settings.models.similarity_share,
            kv=settings.dispatching.kv_dispatch,
            proactive_copies=settings.dispatching.proactive_copies,
            cold_kv=settings.dispatching.cold_kv,
        ),
    )
    parts.table.link = read_link(settings.worker.profile)
    parts.table.default = settings.models.default_model or parts.table.default
    tagging = make_tagging(settings.tagging, parts.lengths, name, f"{HEAD}/tagger")
    addresses: dict[str, Any] = {
        "controller": CONTROLLER,
        "applications": f"{HEAD}/applications",
        "limiting": Limiting(limiter, limits_of(settings.tenants)),
    }
    parts.asking.alone = settings.autoscaling.autoscale == "preemptive"
    more: dict[str, Any] = {"dispatchers": list(dispatchers(settings.dispatching).values())}
    more |= {
        "patience": PATIENCE * settings.dispatching.dispatch_timeout,
        "autoscale": settings.autoscaling.autoscale != "off",
    }
    more |= addresses | {"place": place}
    return Gateway(RequestBook(parts), name=name, others=others, tagging=tagging, **more)


def _gateway_configs(
    settings: Settings, models: list[ModelInfo], first_in_head: bool, port: int
) -> dict[str, GatewayConfig]:
    """Return the configuration of each gateway that is a process."""
    names = gateway_nodes(settings.network, first_in_head=first_in_head)
    limiter = f"{HEAD}/limiter" if limits_of(settings.tenants) else ""
    found = {}
    for name in gateway_processes(settings.network, first_in_head=first_in_head):
        others = [other for other in names if other != name]
        fronts = list(dict.fromkeys([HEAD, *others]))
        found[name] = GatewayConfig(settings, models, port, others, fronts, limiter)
    return found


def _gateway_admission(
    cluster: ClusterHead, settings: Settings, models: list[ModelInfo], taken: Collection[str], held: dict[str, Checkpoint]
) -> tuple[Any, ...]:
    """Return the values of the actor that takes in gateways on other machines."""
    limiter = f"{HEAD}/limiter" if limits_of(settings.tenants) else ""
    config = GatewayConfig(settings, models, 0, [], [HEAD], limiter)
    return cluster, config, taken, FrontFiles(settings, held)


def check_folders(settings: Settings) -> None:
    """Create each folder and try to write to it. Raises SettingsError."""
    for name in ("request_log", "tagger_folder", "event_log"):
        if folder := settings.value(name):
            try:
                path = Path(folder).expanduser()
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
                tempfile.TemporaryFile(dir=path).close()
            except (OSError, RuntimeError) as error:
                reason = getattr(error, "strerror", None) or error
                raise SettingsError(f"{name}: {folder} cannot be used ({reason}); name a folder to write to") from None
