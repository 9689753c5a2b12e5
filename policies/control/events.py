"""Events that the controller's state machine takes and effects that it asks for. Values only; no state, no behavior."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..cluster.demand import Use
from ..cluster.scaling import PressedBlock
from ..cluster.worker_size import WorkerReport
from ..model.chain import Component
from ..model.confidence import Threshold
from .drop_events import OverloadEffect as OverloadEffect
from .drop_events import OverloadEvent as OverloadEvent
from .loads import LoadBlock, ModelFiles, NoCapacity


@dataclass(frozen=True, slots=True)
class Application:
    """A model to serve, with its components hashed and nothing loaded."""

    name: str
    checkpoint: str
    components: tuple[Component, ...]
    max_length: int  # tokens
    span: int = 1  # number of workers that its chain is spread over
    hashes: tuple[dict[str, bytes], ...] = ()  # raw tensor hashes of each component, by role
    base: str = ""  # adapters: the checkpoint that it changes
    sizes: tuple[dict[str, int], ...] = ()  # bytes of these tensors
    model: str = ""  # as in ``Chain``, like the next one
    virtual: int = 0
    created: int = 0  # seconds of Unix time
    base_model: str = ""  # adapters: id of the model that it was put on
    defaults: str = ""  # as ``Chain`` has it
    on_demand: bool = False  # loaded when requests ask for it, if the settings allow that
    family: str = ""  # as ``Chain`` has it
    threshold: Threshold | None = None  # as ``Chain`` has it
    content: bytes = b""  # as ``ModelFiles`` has it, of ``checkpoint``
    base_content: bytes = b""  # and of ``base``
    variant_of: str = ""  # as ``Chain`` has it, like the next one
    rank: int = 0
    drafts_for: str = ""  # as ``Chain`` has it

    @property
    def files(self) -> ModelFiles:
        """The files of its own checkpoint."""
        return ModelFiles(self.content, self.checkpoint)

    @property
    def base_files(self) -> ModelFiles | None:
        """The files of the checkpoint that an adapter changes."""
        return ModelFiles(self.base_content, self.base) if self.base else None

    @property
    def served_as(self) -> str:
        """The model id that clients ask for."""
        return self.model or self.name

    @property
    def changed(self) -> bool:
        """True for an adapter over a whole checkpoint, including one from a zoo, which knows no folder of its base."""
        return bool(self.base) or any(component.delta for component in self.components)

    @property
    def context(self) -> int:
        """The most visible tokens, as in ``Chain``."""
        return self.max_length - self.virtual

    def tensors(self, first: int = 0, last: int | None = None) -> dict[bytes, int]:
        """Return the bytes of the distinct raw tensors of components ``first`` to ``last`` (exclusive), by hash.

        Deltas are listed by id, and so are whole components whose tensors are not known.
        """
        found = {c.delta: c.delta_nbytes for c in self.components[first:last] if c.delta}
        if not self.sizes:
            return found | {c.shared: c.nbytes for c in self.components[first:last]}
        parts = zip(self.hashes[first:last], self.sizes[first:last], strict=True)
        return found | {hash: sizes[role] for hashes, sizes in parts for role, hash in hashes.items()}


@dataclass(frozen=True, slots=True)
class Serve:
    """The order to serve these applications in addition to the known ones.

    answered: the caller has an answer already, so that an error ends the cluster.
    """

    applications: tuple[Application, ...]
    answered: bool = False


@dataclass(frozen=True, slots=True)
class Vary:
    """The order to let these variants, and no others, serve in place of applications, where all of their components are.

    A variant gets a name of its own if it is new.
    """

    applications: tuple[Application, ...]


@dataclass(frozen=True, slots=True)
class Deploy:
    """The order to serve a known application again."""

    application: str


@dataclass(frozen=True, slots=True)
class Undeploy:
    """The order to withdraw an application: its own blocks are unloaded, and it stays known."""

    application: str


@dataclass(frozen=True, slots=True)
class Add:
    """The order to add an application while others are served. Answered by ``Added``.

    It is hidden until its routes are whole on every worker that is up, and forgotten if a worker cannot load it.
    """

    application: Application
    replaces: str = ""  # the application whose new requests it takes over


@dataclass(frozen=True, slots=True)
class Retire:
    """The order that an application takes no new requests; running ones go on until ``Remove``.

    default: the id for requests without a model from now on; empty: as before.
    """

    application: str
    default: str = ""


@dataclass(frozen=True, slots=True)
class Remove:
    """The order to forget an application: running requests end, its own blocks are unloaded."""

    application: str


@dataclass(frozen=True, slots=True)
class WorkerStarting:
    """A worker process that its supervisor has launched."""

    worker: str
    incarnation: int
    pid: int  # 0: it has no process of its own


@dataclass(frozen=True, slots=True)
class WorkerReported:
    """A worker's report of what it has, before it is up."""

    worker: str
    incarnation: int
    report: WorkerReport


@dataclass(frozen=True, slots=True)
class WorkerUp:
    worker: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class WorkerDown:
    """The end of a worker, or a failed launch."""

    worker: str
    incarnation: int
    cause: str


@dataclass(frozen=True, slots=True)
class WorkerCannotStart:
    """A worker whose process runs but reports that it cannot start."""

    worker: str
    incarnation: int
    why: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """A worker's answer that a block is there. nbytes: of packed tensors that came new. seconds: that this took."""

    worker: str
    incarnation: int
    load: LoadBlock
    nbytes: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """A worker's answer that it cannot load a block. The worker's own death is not reported this way."""

    worker: str
    incarnation: int
    load: LoadBlock
    message: str
    final: bool = False  # retrying is in vain


@dataclass(frozen=True, slots=True)
class LoadRefused:
    """A worker's answer that it has no room for a block beside what it holds."""

    worker: str
    incarnation: int
    load: LoadBlock
    why: NoCapacity


@dataclass(frozen=True, slots=True)
class LoadLacks:
    """A worker's answer that neither a folder nor its store has what a block needs, until it is named sources.

    components: ids of the missing components and deltas.
    """

    worker: str
    incarnation: int
    load: LoadBlock
    components: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class HeldBlock:
    """Components ``first`` to ``last`` (exclusive) of an application that a worker holds. ids: theirs, and their deltas'."""

    holder: str
    first: int
    last: int
    ids: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class WorkerTold:
    """A worker's account of all that it holds, to a new head. What the head before asked of it is not answered any more."""

    worker: str
    incarnation: int
    held: tuple[HeldBlock, ...]


@dataclass(frozen=True, slots=True)
class HeadChanged:
    """A new head has taken over: whatever the one before has asked and not been answered is to be asked again."""


@dataclass(frozen=True, slots=True)
class ApplicationsWanted:
    """Applications for which a gateway has requests but no route, or none with room: tokens of the longest request."""

    applications: dict[str, int]


@dataclass(frozen=True, slots=True)
class UsageAnswer:
    """The answer to ``AskUsage``: the usage at all gateways together, by application."""

    uses: dict[str, Use]


@dataclass(frozen=True, slots=True)
class Quiet:
    """The answer to ``AwaitQuiet``."""

    application: str


@dataclass(frozen=True, slots=True)
class Recheck:
    """The answer to ``RecheckLater``."""

    worker: str = ""
    application: str = ""


@dataclass(frozen=True, slots=True)
class KvCapacity:
    """The answer to ``AskCapacity``: bytes of a worker's budget that its parameters leave to KV."""

    worker: str
    incarnation: int
    nbytes: int
    left_alone: dict[str, int] = field(default_factory=dict)  # by application: the same with only its own parameters loaded
    owned: dict[str, int] = field(default_factory=dict)  # by application: bytes of packed tensors freed with it


@dataclass(frozen=True, slots=True)
class WorkerHeartbeat:
    """A worker's heartbeat."""

    worker: str
    incarnation: int
    sweep_age: float  # seconds without progress
    waiting: int
    running: int
    routes: int = 0  # version of the last publication it took


@dataclass(frozen=True, slots=True)
class BorderTraffic:
    """Activations that a worker has sent to the next one of a route, before component ``depth`` of an application."""

    application: str
    depth: int
    to: str
    sweeps: int
    positions: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class TrafficCounted:
    """The traffic of a worker since its start, from its heartbeat, if it has changed.

    passages: by application whose routes begin there, the sweeps with rows of it and their positions.
    """

    worker: str
    incarnation: int
    passages: dict[str, tuple[int, int]]
    sent: tuple[BorderTraffic, ...]


@dataclass(frozen=True, slots=True)
class Observed:
    """A gateway's observations since its last report; as in ``Provisioning.observe``."""

    measured: float
    predicted: float


@dataclass(frozen=True, slots=True)
class DrainWorker:
    """An operator's order that a worker runs and receives nothing; with ``drain`` false, that it serves again."""

    worker: str
    drain: bool


@dataclass(frozen=True, slots=True)
class WorkerEnters:
    """A worker has joined that no supervisor of ours started, or one that a launcher started elsewhere.

    ``labels``: what its starter says of it.
    """

    worker: str
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkerLeaves:
    """A worker elsewhere is asked by who runs its process to end, and leaves once it is empty."""

    worker: str
    why: str


@dataclass(frozen=True, slots=True)
class Vacated:
    """The answer to ``VacateWorker``."""

    worker: str


@dataclass(frozen=True, slots=True)
class WorkerStopped:
    """The answer to ``StopWorker``."""

    worker: str


@dataclass(frozen=True, slots=True)
class Pressed:
    """Blocks of a worker with nearly as long a queue as its memory allows."""

    worker: str
    incarnation: int
    blocks: tuple[PressedBlock, ...]


@dataclass(frozen=True, slots=True)
class Idle:
    """A block deployed for a burst that was unused for a while, and the applications that had it loaded."""

    worker: str
    incarnation: int
    applications: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Park:
    """An application on demand gives way: no worker keeps anything of it until it is asked for."""

    application: str


@dataclass(frozen=True, slots=True)
class AllFit:
    """Applications that were loaded on demand fit beside all others: they are served from now on."""

    applications: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NoWayBack:
    """Dropped parameters have had no room to come back for longer than a burst takes."""

    refused: LoadRefused


WorkerNews = (
    WorkerStarting | WorkerReported | WorkerUp | WorkerDown | WorkerCannotStart | WorkerHeartbeat | KvCapacity | Loaded
    | LoadFailed | LoadRefused | LoadLacks | WorkerTold
)  # fmt: skip
DemandEvent = ApplicationsWanted | UsageAnswer | Quiet | Recheck  # about applications on demand
ScalingEvent = Observed | DrainWorker | WorkerEnters | WorkerLeaves | Vacated | WorkerStopped | Pressed | Idle


@dataclass(frozen=True, slots=True)
class Rerouted:
    """An application is served on other routes from now on, and its requests have left the ended ones."""

    application: str
    ended: tuple[str, ...]
    begun: tuple[str, ...]


Conclusion = Park | AllFit | NoWayBack | Rerouted  # from a party instead of outside; all parties hear of it in turn
_OfApplications = Serve | Vary | Deploy | Undeploy | Add | Retire | Remove
Event = WorkerNews | HeadChanged | TrafficCounted | _OfApplications | DemandEvent | ScalingEvent | OverloadEvent | Conclusion


@dataclass(frozen=True, slots=True)
class KillWorker:
    worker: str
    cause: str


@dataclass(frozen=True, slots=True)
class Load:
    worker: str
    incarnation: int
    load: LoadBlock


@dataclass(frozen=True, slots=True)
class AskCapacity:
    worker: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Publish:
    """A changed publication to send.

    Workers in ``first`` must know it before gateways: new routes begin or pass there. Without any, gateways come first:
    they must stop sending before a worker forgets a route.
    """

    version: int
    first: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unload:
    """The order, after all earlier publications, to unload components that ``holder`` no longer needs on the worker."""

    worker: str
    incarnation: int
    holder: str
    ids: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Added:
    """The end of an ``Add``: the application is served, or it is forgotten because of ``error``."""

    application: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class FinishRequests:
    """The order, after all earlier publications, to ``Remove`` an application once no gateway has anything of it."""

    application: str


@dataclass(frozen=True, slots=True)
class AskUsage:
    """The question to each gateway about its usage of each application."""


@dataclass(frozen=True, slots=True)
class AwaitQuiet:
    """A wait, after all earlier publications, until no gateway has a request of the application at a worker."""

    application: str


@dataclass(frozen=True, slots=True)
class RecheckLater:
    """A look again after some time at what had no room: a load of a worker, or what is loaded on demand."""

    seconds: float
    worker: str = ""
    application: str = ""


@dataclass(frozen=True, slots=True)
class StartWorker:
    """The order to the supervisor to start a worker and keep it running."""

    worker: str
    why: str


@dataclass(frozen=True, slots=True)
class WishWorkers:
    """The wish for that many workers beside those of the start; an engine starts and ends them by itself."""

    workers: int
    why: str


@dataclass(frozen=True, slots=True)
class VacateWorker:
    """The order, after all earlier publications, to move a worker's requests to other workers.

    With those publications gateways send nothing more there. A request that is still there after ``grace`` seconds
    is given back and goes on elsewhere.
    """

    worker: str
    grace: float
    why: str


@dataclass(frozen=True, slots=True)
class ResumeWorker:
    """The end of an operator's drain: the worker serves its routes again."""

    worker: str


@dataclass(frozen=True, slots=True)
class GiveUpWorker:
    """The order to the supervisor to start a worker no more, until it is ordered again."""

    worker: str
    why: str


@dataclass(frozen=True, slots=True)
class StopWorker:
    """The order to the supervisor to end a worker and not restart it.

    joined: the last life of a worker that has joined, and is dismissed since it has no supervisor; 0: it has one.
    """

    worker: str
    joined: int = 0


@dataclass(frozen=True, slots=True)
class Fatal:
    """The cluster cannot serve what it was started for; one sentence."""

    message: str


DemandEffect = AskUsage | AwaitQuiet | RecheckLater
ScalingEffect = StartWorker | WishWorkers | VacateWorker | ResumeWorker | GiveUpWorker | StopWorker
_OfWorkers = KillWorker | Load | AskCapacity | Publish | Unload
Effect = _OfWorkers | Added | FinishRequests | Fatal | DemandEffect | ScalingEffect | OverloadEffect
