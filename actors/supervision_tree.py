"""The supervision tree of a serving cluster: who is started, by whom, in which order, and what follows from a death.

    root                    any end among these ends the cluster: their state is nowhere else
      services              restarted; what they forget is little
        limiter
        applications        where there is HTTP: what is added at run time
        tagger              where the setting says so
        memory              where the setting overload is on: watches KV memory
        dispatcher-0        and further ones, where the setting dispatch names a policy that does not look at workers
      gateway               where the first gateway is in the head's process
      controller
      peer                  where there is HTTP: what the head's front tells other fronts
      offline               where the first gateway is in the head's process, as in those of others (below)
      workers               restarted for ever, with growing pauses
        w0                  a process (further ones, with autoscale, when the controller asks for them); in it
          root              any end among these ends the process
            worker
            blocks          and below it an actor for each deployed block
            services        with overload; restarted
              memory
      gateways              restarted for ever, the first time at once
        g1                  a process; in it
          root
            gateway
            peer            stops before it, which closes the listener
            offline         where the setting batch_dir names a folder; restarted for ever
              batches       runs batches, if no other process does
      prediction            restarted as gateways are; where the setting dispatch names a policy that looks at workers
        predictors          a process; in it
          root
            predictor-w0    and one for each other worker
            dispatcher-0    and further ones

``tree`` is data from settings alone: nothing runs, nothing is imported. ``topology`` starts it.
"""

from __future__ import annotations

from ..policies.cluster.restart_policy import Backoff
from ..policies.prediction.dispatching import POLICIES
from ..runtime.supervisor import Child
from ..runtime.tree import Branch, ProcessSpec
from .config import OUTSTANDING, Settings
from .predictor.messages import NODE
from .rate_limiter import limits_of
from .sizing import worker_names

HEAD = "head"
WORKER = "blockwright.actors.worker.main:start"
PREDICTORS = "blockwright.actors.predictor.main:start"
GATEWAY_MAILBOX = 1 << 13  # messages: where the loop was held up, the reports of thousands of short sweeps wait
LIMITER_MAILBOX = 1 << 16  # messages: an end that finds no room would leave a place taken for ever
FEW_CORES = 2  # at most, for the first gateway to stay in the head's process (docs/decisions/processes.md)
LASTED = 10.0  # seconds after which a process has lived, and the next death is the first again
WORKERS = Backoff(initial=0.25, most=4.0, jitter=0.0, at_once=1)  # no jitter: what they share is one machine, not a server
GATEWAYS = Backoff(initial=0.25, most=8.0, jitter=0.0, at_once=1)


def _actor(name: str, path: str, mailbox: int = 1024) -> Child:
    """Nothing waits for it when it is stopped: requests were drained before."""
    return Child(name=name, actor=f"blockwright.actors.{path}", mailbox=mailbox, drain=0.0)


def _forever(name: str, processes: list[ProcessSpec], backoff: Backoff) -> Branch:
    """Processes that are started again however often they die."""
    return Branch(name=name, children=tuple(processes), intensity=None, period=LASTED, backoff=backoff)


_LIMITER = _actor("limiter", "rate_limiter:Limiter", LIMITER_MAILBOX)
_APPLICATIONS = _actor("applications", "applications:Applications")
_TAGGER = _actor("tagger", "tagger.actor:Tagger")
_CONTROLLER = _actor("controller", "controller.actor:Controller")
_GATEWAY = _actor("gateway", "gateway.actor:Gateway", GATEWAY_MAILBOX)
_PEER = _actor("peer", "gateway.peers:GatewayPeer")
_BLOCKS = _actor("blocks", "block.blocks:Blocks")
_MEMORY = _actor("memory", "memory.cluster:ClusterMemory")
_NODE_MEMORY = Branch(name="services", children=(_actor("memory", "memory.node:NodeMemory"),))
_OFFLINE = Branch(
    name="offline", children=(_actor("batches", "batches.actor:Batches"),), intensity=None, period=LASTED, backoff=GATEWAYS
)


def inside_gateway(*, batches: bool) -> Branch:
    """Of a gateway's process."""
    return Branch(name="root", intensity=0, children=(_GATEWAY, _PEER, *(_OFFLINE,) * batches))


def inside_worker(*, overload: bool) -> Branch:
    """Of a worker's process. The worker tells its blocks at each heartbeat: they are there before it, and end after it."""
    always = _BLOCKS, _actor("worker", "worker.actor:Worker")
    return Branch(name="root", intensity=0, children=(*always, *(_NODE_MEMORY,) * overload))


def inside_predictors(settings: Settings) -> Branch:
    """Of the process of the predictors, and of the dispatchers that ask them."""
    asked = [_actor(f"predictor-{name}", "predictor.actor:Predictor") for name in worker_names(settings)]
    return Branch(name="root", children=(*asked, *_dispatchers(settings)))


def _dispatchers(settings: Settings) -> tuple[Child, ...]:
    return tuple(_actor(name, "dispatcher.actor:Dispatcher") for name in dispatchers(settings))


def in_head(settings: Settings, cores: int) -> bool:
    """Whether the first gateway is in the head's process."""
    return cores <= FEW_CORES if settings.gateway_in_head == "auto" else settings.gateway_in_head == "yes"


def predicts(settings: Settings) -> bool:
    """Whether there are predictors: the policy looks at what workers have to do."""
    return settings.dispatch != OUTSTANDING and POLICIES[settings.dispatch].looks


def gateway_processes(settings: Settings, *, first_in_head: bool) -> list[str]:
    """Nodes that have nothing but a gateway."""
    return [f"g{number}" for number in range(int(first_in_head), settings.gateways)]


def gateway_nodes(settings: Settings, *, first_in_head: bool) -> list[str]:
    """Nodes of all gateways."""
    return [HEAD] * first_in_head + gateway_processes(settings, first_in_head=first_in_head)


def dispatchers(settings: Settings) -> dict[str, str]:
    """Name of each dispatcher and its address: beside the predictors, or on the head where the policy asks none. None
    where each gateway dispatches by itself."""
    node = NODE if predicts(settings) else HEAD
    names = [f"dispatcher-{number}" for number in range(settings.dispatchers * (settings.dispatch != OUTSTANDING))]
    return {name: f"{node}/{name}" for name in names}


def tree(
    settings: Settings,
    *,
    first_in_head: bool = True,
    worker_entry: str = WORKER,
    gateway_entry: str = "",
    predictor_entry: str = PREDICTORS,
) -> Branch:
    """Return the tree of these settings.

    The entries are "module:function" of a process's program. gateway_entry is that of a further gateway, which answers over
    HTTP; it is empty where the cluster has no HTTP front.
    """
    http = bool(gateway_entry)
    limiter, tagger = (_LIMITER,) * bool(limits_of(settings)), (_TAGGER,) * (settings.tagger != "off")
    asked = _dispatchers(settings) * (not predicts(settings))
    overload = settings.overload == "on"
    memory = (_MEMORY,) * overload
    services = Branch(name="services", children=limiter + (_APPLICATIONS,) * http + tagger + memory + asked)
    inside = inside_worker(overload=overload)
    workers = [
        ProcessSpec(name=name, entry=worker_entry, inside=inside, dormant=number >= settings.workers)
        for number, name in enumerate(worker_names(settings))
    ]
    names = gateway_processes(settings, first_in_head=first_in_head) if http else []
    batches = bool(settings.batch_dir) and http
    inside = inside_gateway(batches=batches)
    gateways = [ProcessSpec(name=name, entry=gateway_entry, inside=inside) for name in names]
    predictors = []
    if predicts(settings):
        predictors = [ProcessSpec(name=NODE, entry=predictor_entry, inside=inside_predictors(settings))]
    here = [_GATEWAY] * first_in_head + [_CONTROLLER] + [_PEER] * http
    return Branch(
        name="root",
        intensity=0,
        children=(
            services,
            *here,
            _forever("workers", workers, WORKERS),
            _forever("gateways", gateways, GATEWAYS),
            *(_OFFLINE,) * (batches and first_in_head),
            *([_forever("prediction", predictors, GATEWAYS)] if predictors else []),
        ),
    )
