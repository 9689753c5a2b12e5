"""Supervision tree of a serving cluster: each actor and process, its supervisor, the start order, and the restart rules.

    root                    any end among these ends the cluster: their state exists nowhere else
      services              restarted; they lose little state
        limiter
        applications        where there is HTTP: adds applications at run time
        tagger              where the setting says so
        memory              where the setting overload is on: watches KV memory
        cards               where workers compute on a card: reads it
        dispatcher-0        and further ones, where the setting dispatch names a policy that does not query workers
      gateway               where the first gateway is in the head's process
      controller
      peer                  where there is HTTP: answers other fronts for the head's front
      offline               where the first gateway is in the head's process; as in the gateways' processes (below)
      members               where the head listens for workers on other machines: takes them in
      gateway-admission     as members, where there is HTTP: takes gateways in
      predictor-admission   as members, where the setting dispatch names a policy that queries workers: takes predictors in
      workers               restarted for ever, with growing pauses
        w0                  a process (further ones when the controller asks for them, with autoscale or from a launcher,
                            which may start them elsewhere); inside it
          root              any end among these ends the process
            worker
            blocks          and below it one actor for each deployed block
            services        with overload; restarted
              memory
      gateways              restarted for ever, the first time at once
        g1                  a process; inside it
          root
            gateway
            peer            stops before the gateway, which closes the listener
            offline         where the setting batch_dir names a folder; restarted for ever
              batches       runs batches, if no other process does
      prediction            restarted as gateways are; where the setting dispatch names a policy that queries workers
        predictors          a process; inside it
          root
            predictor-w0    and one for each other worker
            coverage        as members; and below it the predictors of workers that joined
            dispatcher-0    and further ones

A worker or gateway that joins by itself is no child of the tree: an actor of its name stands for it at the head, and its
starter starts it again. Inside it is like the others.

``tree`` is data made from the settings alone: nothing runs, nothing is imported. ``topology`` starts it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..policies.cluster.restart_policy import Backoff
from ..runtime.supervisor import Child
from ..runtime.tree import Branch, ProcessSpec
from .predictor.messages import NODE
from .rate_limiter import limits_of
from .settings.dispatching import DispatchSettings
from .settings.network import NetworkSettings
from .settings.settings import Settings
from .sizing import worker_names

HEAD = "head"
WORKER = "blockwright.actors.worker.main:start"
PREDICTORS = "blockwright.actors.predictor.main:start"
GATEWAY_MAILBOX = 1 << 13  # messages: while the loop is held up, the reports of thousands of short sweeps wait
LIMITER_MAILBOX = 1 << 16  # messages: the end of a request that found no space would leave its slot taken for ever
FEW_CORES = 2  # with at most this many cores the first gateway stays in the head's process (docs/decisions/processes.md)
LASTED = 10.0  # seconds after which a process counts as having lived, and its next death is the first again
WORKERS = Backoff(initial=0.25, maximum=4.0, jitter=0.0, at_once=1)  # no jitter: the workers share a machine, not a server
GATEWAYS = Backoff(initial=0.25, maximum=8.0, jitter=0.0, at_once=1)


def _actor(name: str, path: str, mailbox: int = 1024) -> Child:
    """Return an actor's entry. Stopping does not wait for it, because requests were drained before."""
    return Child(name=name, actor=f"blockwright.actors.{path}", mailbox=mailbox, drain=0.0)


def _forever(name: str, processes: list[ProcessSpec], backoff: Backoff) -> Branch:
    """Return a branch of processes that are restarted however often they die."""
    return Branch(name=name, children=tuple(processes), intensity=None, period=LASTED, backoff=backoff)


_LIMITER = _actor("limiter", "rate_limiter:Limiter", LIMITER_MAILBOX)
_APPLICATIONS = _actor("applications", "applications:Applications")
_TAGGER = _actor("tagger", "tagger.actor:Tagger")
_MEMBERS = _actor("members", "members:WorkerAdmission")
_GATEWAY_ADMISSION = _actor("gateway-admission", "gateway.admission:GatewayAdmission")
_COVERAGE = _actor("coverage", "predictor.coverage:Coverage")
_PREDICTOR_ADMISSION = _actor("predictor-admission", "predictor.admission:PredictorAdmission")
_CONTROLLER = _actor("controller", "controller.actor:Controller")
_GATEWAY = _actor("gateway", "gateway.actor:Gateway", GATEWAY_MAILBOX)
_PEER = _actor("peer", "gateway.peers:GatewayPeer")
_BLOCKS = _actor("blocks", "block.blocks:Blocks")
_CARDS = _actor("cards", "cards:Cards")
_MEMORY = _actor("memory", "memory.cluster:ClusterMemory")
_COPIES = _actor("copies", "memory.copies:PageCopies")
_NODE_MEMORY = Branch(name="services", children=(_actor("memory", "memory.node:NodeMemory"),))
_OFFLINE = Branch(
    name="offline", children=(_actor("batches", "batches.actor:Batches"),), intensity=None, period=LASTED, backoff=GATEWAYS
)


def inside_gateway(*, batches: bool) -> Branch:
    """Return the tree of a gateway's process."""
    return Branch(name="root", intensity=0, children=(_GATEWAY, _PEER, *(_OFFLINE,) * batches))


def inside_worker(*, overload: bool) -> Branch:
    """Return the tree of a worker's process.

    The worker reports to its blocks at each heartbeat, so they start before it and stop after it.
    """
    always = _BLOCKS, _actor("worker", "worker.actor:Worker")
    return Branch(name="root", intensity=0, children=(*always, *(_NODE_MEMORY,) * overload))


def inside_predictors(settings: Settings, workers: Sequence[str]) -> Branch:
    """Return the tree of the process of the predictors of these workers, and of the dispatchers that ask them.

    Workers that join later have theirs below ``coverage``.
    """
    asked = [_actor(f"predictor-{name}", "predictor.actor:Predictor") for name in workers]
    later = (_COVERAGE,) * bool(settings.joining.listen)
    return Branch(name="root", children=(*asked, *later, *_dispatchers(settings.dispatching)))


def _dispatchers(dispatching: DispatchSettings) -> tuple[Child, ...]:
    return tuple(_actor(name, "dispatcher.actor:Dispatcher") for name in dispatchers(dispatching))


def in_head(network: NetworkSettings, cores: int) -> bool:
    """Return whether the first gateway is in the head's process."""
    return cores <= FEW_CORES if network.gateway_in_head == "auto" else network.gateway_in_head == "yes"


def gateway_processes(network: NetworkSettings, *, first_in_head: bool) -> list[str]:
    """Return the nodes that have nothing but a gateway."""
    return [f"g{number}" for number in range(int(first_in_head), network.gateways)]


def gateway_nodes(network: NetworkSettings, *, first_in_head: bool) -> list[str]:
    """Return the nodes of all gateways."""
    return [HEAD] * first_in_head + gateway_processes(network, first_in_head=first_in_head)


def dispatchers(dispatching: DispatchSettings) -> dict[str, str]:
    """Return the name and the address of each dispatcher; empty if each gateway dispatches by itself.

    Dispatchers are beside the predictors, or on the head if the policy asks none.
    """
    node = NODE if dispatching.predicts else HEAD
    names = [f"dispatcher-{number}" for number in range(dispatching.dispatchers * dispatching.is_asked)]
    return {name: f"{node}/{name}" for name in names}


def tree(
    settings: Settings,
    *,
    first_in_head: bool = True,
    worker_entry: str = WORKER,
    gateway_entry: str = "",
    predictor_entry: str = PREDICTORS,
) -> Branch:
    """Return the supervision tree of these settings.

    The entries are "module:function" of a process's program. ``gateway_entry`` is the one of a further gateway, which
    answers over HTTP; it is empty where the cluster has no HTTP front.
    """
    http = bool(gateway_entry)
    limiter, tagger = (_LIMITER,) * bool(limits_of(settings.tenants)), (_TAGGER,) * settings.tagging.is_on
    asked = _dispatchers(settings.dispatching) * (not settings.dispatching.predicts)
    overload = settings.parameter_drops.is_on
    copies = (_COPIES,) * (settings.worker_memory.marks_copies and len(worker_names(settings)) > 1)
    watched = (_MEMORY,) * overload + copies + (_CARDS,) * settings.worker.may_be_card
    services = Branch(name="services", children=limiter + (_APPLICATIONS,) * http + tagger + watched + asked)
    inside = inside_worker(overload=overload)
    workers = [
        ProcessSpec(name=name, entry=worker_entry, inside=inside, dormant=number >= settings.worker.workers)
        for number, name in enumerate(worker_names(settings))
    ]
    names = gateway_processes(settings.network, first_in_head=first_in_head) if http else []
    batches = bool(settings.offline.batch_dir) and http
    inside = inside_gateway(batches=batches)
    gateways = [ProcessSpec(name=name, entry=gateway_entry, inside=inside) for name in names]
    predictors = []
    if settings.dispatching.predicts:
        predictors = [
            ProcessSpec(name=NODE, entry=predictor_entry, inside=inside_predictors(settings, worker_names(settings)))
        ]
    here = [_GATEWAY] * first_in_head + [_CONTROLLER] + [_PEER] * http
    return Branch(
        name="root",
        intensity=0,
        children=(
            services,
            *here,
            *(_MEMBERS,) * bool(settings.joining.listen),
            *(_GATEWAY_ADMISSION,) * (bool(settings.joining.listen) and http),
            *(_PREDICTOR_ADMISSION,) * (bool(settings.joining.listen) and settings.dispatching.predicts),
            _forever("workers", workers, WORKERS),
            _forever("gateways", gateways, GATEWAYS),
            *(_OFFLINE,) * (batches and first_in_head),
            *([_forever("prediction", predictors, GATEWAYS)] if predictors else []),
        ),
    )
