"""Events that the controller's state machine takes and effects that it asks for. Values only; no state, no behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...policies.cluster.demand import Use
from ...policies.cluster.scaling import PressedBlock
from ...policies.model.chain import Component
from ..worker.messages import LoadBlock, NoRoom
from .overload_messages import OverloadEffect as OverloadEffect
from .overload_messages import OverloadEvent as OverloadEvent


@dataclass(frozen=True, slots=True)
class Application:
    """A model to serve: its components are hashed, nothing of it is loaded."""

    name: str
    checkpoint: str
    components: tuple[Component, ...]
    max_length: int  # tokens
    span: int = 1  # workers that its chain is spread over
    hashes: tuple[dict[str, bytes], ...] = ()  # of each component's raw tensors, by role
    base: str = ""  # of an adapter: the checkpoint that it changes
    sizes: tuple[dict[str, int], ...] = ()  # their bytes
    model: str = ""  # as ``Chain`` has it, as the next
    virtual: int = 0
    created: int = 0  # seconds of Unix time
    base_model: str = ""  # of an adapter: the id of the model that it was put on
    defaults: str = ""  # as ``Chain`` has it
    on_demand: bool = False  # it is loaded when requests ask for it, where the settings allow that

    @property
    def served_as(self) -> str:
        """The model id that clients ask for."""
        return self.model or self.name

    @property
    def changed(self) -> bool:
        """Whether it is an adapter over a whole checkpoint, also one of a zoo, which knows no folder of its base."""
        return bool(self.base) or any(component.delta for component in self.components)

    @property
    def context(self) -> int:
        """As ``Chain`` has it."""
        return self.max_length - self.virtual

    def tensors(self, first: int = 0, last: int | None = None) -> dict[bytes, int]:
        """Bytes of the distinct raw tensors of components ``first`` .. ``last`` (exclusive), by hash, and of deltas, by
        id; of whole components where their tensors are not known."""
        found = {c.delta: c.delta_nbytes for c in self.components[first:last] if c.delta}
        if not self.sizes:
            return found | {c.shared: c.nbytes for c in self.components[first:last]}
        parts = zip(self.hashes[first:last], self.sizes[first:last], strict=True)
        return found | {hash: sizes[role] for hashes, sizes in parts for role, hash in hashes.items()}


@dataclass(frozen=True, slots=True)
class Serve:
    """Serve these applications besides those known."""

    applications: tuple[Application, ...]


@dataclass(frozen=True, slots=True)
class Deploy:
    """Serve a known application again."""

    application: str


@dataclass(frozen=True, slots=True)
class Undeploy:
    """Withdraw an application; its own blocks are unloaded, it stays known."""

    application: str


@dataclass(frozen=True, slots=True)
class Add:
    """Serve one more while the others are served: nobody sees it before its routes are whole on every worker that is up,
    and it is forgotten where one cannot load it. Answered by ``Added``."""

    application: Application
    replaces: str = ""  # the application whose new requests it takes from then on


@dataclass(frozen=True, slots=True)
class Retire:
    """An application takes no new requests; what runs goes on until ``Remove``."""

    application: str


@dataclass(frozen=True, slots=True)
class Remove:
    """Forget an application: what runs ends, its own blocks are unloaded."""

    application: str


@dataclass(frozen=True, slots=True)
class WorkerStarting:
    """Its supervisor has launched a process for it."""

    worker: str
    incarnation: int
    pid: int  # 0 where it has none of its own


@dataclass(frozen=True, slots=True)
class WorkerUp:
    worker: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class WorkerDown:
    """It ended, or could not be launched."""

    worker: str
    incarnation: int
    cause: str


@dataclass(frozen=True, slots=True)
class Unfit:
    """The worker's process runs, but says that it cannot start."""

    worker: str
    incarnation: int
    why: str


@dataclass(frozen=True, slots=True)
class Loaded:
    worker: str
    incarnation: int
    load: LoadBlock


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """The worker answered that it cannot; its own death is not reported this way."""

    worker: str
    incarnation: int
    load: LoadBlock
    message: str
    final: bool = False  # trying again is in vain


class DemandEvent:
    """News about applications on demand."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class LoadRefused(DemandEvent):
    """The worker answered that it has no room for it beside what it has."""

    worker: str
    incarnation: int
    load: LoadBlock
    why: NoRoom


@dataclass(frozen=True, slots=True)
class ApplicationsWanted(DemandEvent):
    """A gateway has requests of these applications, and no route for them, or none with room: tokens of the longest."""

    applications: dict[str, int]


@dataclass(frozen=True, slots=True)
class Used(DemandEvent):
    """Answer to ``AskUse``: of all gateways together, by application."""

    uses: Mapping[str, Use]


@dataclass(frozen=True, slots=True)
class Quiet(DemandEvent):
    """Answer to ``AwaitQuiet``."""

    application: str


@dataclass(frozen=True, slots=True)
class LookAgain(DemandEvent):
    """Answer to ``LookLater``."""


@dataclass(frozen=True, slots=True)
class Room:
    """Answer to ``AskRoom``: bytes of a worker's budget that its parameters leave to KV."""

    worker: str
    incarnation: int
    nbytes: int
    left_alone: dict[str, int] = field(default_factory=dict)  # by application: the same with its parameters alone
    owned: dict[str, int] = field(default_factory=dict)  # by application: of packed tensors that go with it


@dataclass(frozen=True, slots=True)
class Beat:
    """A worker's heartbeat."""

    worker: str
    incarnation: int
    sweep_age: float  # seconds without progress
    waiting: int
    running: int
    routes: int = 0  # version of the publication that it has taken


class ScalingEvent:
    """News about what is pressed, and about workers that come and go with the load."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Observed(ScalingEvent):
    """What a gateway has seen since it last told; as ``Provisioning.observe``."""

    measured: float
    predicted: float


@dataclass(frozen=True, slots=True)
class DrainWorker(ScalingEvent):
    """An operator wants that nothing runs on a worker, and that nothing comes there; or, without ``drain``, again."""

    worker: str
    drain: bool


@dataclass(frozen=True, slots=True)
class Vacated(ScalingEvent):
    """Answer to ``VacateWorker``."""

    worker: str


@dataclass(frozen=True, slots=True)
class WorkerStopped(ScalingEvent):
    """Answer to ``StopWorker``."""

    worker: str


@dataclass(frozen=True, slots=True)
class Pressed(ScalingEvent):
    """These blocks of a worker have nearly as long a queue as its memory allows."""

    worker: str
    incarnation: int
    blocks: tuple[PressedBlock, ...]


@dataclass(frozen=True, slots=True)
class Idle(ScalingEvent):
    """A block that was deployed for a burst was not used for a while; who had it loaded."""

    worker: str
    incarnation: int
    applications: tuple[str, ...]


_OfWorkers = WorkerStarting | WorkerUp | WorkerDown | Unfit | Beat | Room | Loaded | LoadFailed
_OfApplications = Serve | Deploy | Undeploy | Add | Retire | Remove
Event = _OfWorkers | _OfApplications | DemandEvent | ScalingEvent | OverloadEvent


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
class AskRoom:
    worker: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Publish:
    """What is published has changed. Workers in ``first`` must know it before gateways: new routes begin or pass there.

    Without any, gateways come first: they must stop sending before a worker forgets a route.
    """

    version: int
    first: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unload:
    """After all publications before it: these components are no longer needed by ``holder`` on the worker."""

    worker: str
    incarnation: int
    holder: str
    ids: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Added:
    """An ``Add`` is over: the application is served, or it is forgotten because of ``error``."""

    application: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class FinishRequests:
    """After all publications before it: ``Remove`` it once no gateway has anything of it any more."""

    application: str


class DemandEffect:
    """For applications on demand."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class AskUse(DemandEffect):
    """What each gateway has of each application."""


@dataclass(frozen=True, slots=True)
class AwaitQuiet(DemandEffect):
    """After all publications before it: until no gateway has a request of the application at a worker."""

    application: str


@dataclass(frozen=True, slots=True)
class LookLater(DemandEffect):
    seconds: float


class ScalingEffect:
    """For workers that come and go with the load."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class StartWorker(ScalingEffect):
    """Its supervisor is to start a process for it, and to keep it running."""

    worker: str
    why: str


@dataclass(frozen=True, slots=True)
class VacateWorker(ScalingEffect):
    """After all publications before it, which have told gateways to send nothing more there: they move what they have there
    to other workers. What still is there after ``grace`` seconds is given back and goes on elsewhere."""

    worker: str
    grace: float
    why: str


@dataclass(frozen=True, slots=True)
class ResumeWorker(ScalingEffect):
    """An operator has ended its drain: it serves its routes again."""

    worker: str


@dataclass(frozen=True, slots=True)
class StopWorker(ScalingEffect):
    """Its supervisor is to end it, and not to start it again."""

    worker: str


@dataclass(frozen=True, slots=True)
class Fatal:
    """The cluster cannot serve what it was started for; one sentence."""

    message: str


_OfParts = DemandEffect | ScalingEffect | OverloadEffect
Effect = KillWorker | Load | AskRoom | Publish | Unload | Added | FinishRequests | Fatal | _OfParts
