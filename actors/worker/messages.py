"""Messages of the worker: everything that it accepts and sends. Imports the standard library and policies only.

Tokens: one ``SweepReport`` per sweep and gateway holds everything that this gateway must know of the sweep. Reports of one
worker incarnation to one gateway are numbered from 1 (``serial``). The worker keeps them until they are acknowledged and
sends them again on request. A lost message is noticed by the next serial, or by the one in the heartbeat, and sent again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...policies.control.events import KvCapacity
from ...policies.memory.packed_tensor import TensorPiece
from ...policies.plan.coefficients import Coefficients
from ...policies.sweep.config import SweepConfig
from ...policies.sweep.events import GatewayNews, PeerMessage, Submission
from ...policies.sweep.page_events import Exported
from ..settings.batching import BatchingSettings
from ..settings.logs import LogSettings
from ..settings.memory import MemorySettings
from ..settings.models import TierSettings
from ..settings.offline import OfflineSettings
from ..settings.sources import SourceSettings
from ..settings.tenants import TenantSettings
from ..settings.workers import WorkerSettings

__all__ = [
    "BlockLoaded",
    "Exported",
    "GatewayNews",
    "ParametersArrived",
    "ParametersWanted",
    "PeerReport",
    "RawWanted",
    "Submission",
    "WorkerConfig",
    "WorkerStatus",
    "sweep_config",
]


@dataclass(frozen=True, slots=True)
class PeerReport:
    """worker -> worker. Numbered like sweep reports, because a lost one would leave a lease waiting or held for ever."""

    worker: str
    incarnation: int
    serial: int
    messages: list[PeerMessage]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Everything that a worker process is started with. The rest comes in messages."""

    name: str
    worker: WorkerSettings  # the type is settled; threads and device are when the worker has joined
    worker_memory: MemorySettings  # so is the size
    batching: BatchingSettings
    tenants: TenantSettings
    offline: OfflineSettings
    logs: LogSettings
    tiering: TierSettings = field(default_factory=TierSettings)
    sources: SourceSettings = field(default_factory=SourceSettings)
    max_length: int = 4096  # tokens of the longest sequence
    kv_layers: int = 64  # layers with KV of the longest chain
    on_demand: bool = False
    exact: bool = False  # as in ``SweepConfig``
    speed: float = 0.0  # bytes of parameters that tokens of a small sweep pass in a second, all together; 0: not measured
    pace: Coefficients | None = None  # simulated pace: sweeps are not let finish faster than this
    profile: Coefficients | None = None  # expected costs of sweeps
    check: bool = False  # verify the memory invariant after every seventh sweep, not only when idle
    resume_window: float = 0.0  # seconds for which it remembers answers that were cut off
    heartbeat: float = 0.5  # seconds between two of its heartbeats
    silence: float = 0.0  # seconds without a word of any gateway after which it stops planning; 0: it never does
    overload: bool = False  # parameter dropping is on: the worker has a memory actor
    sharing: int = 1  # workers that share its machine
    joined: bool = False  # by itself: it reads its machine anew
    launched: bool = False  # by the head's launcher, elsewhere: it ends when its standard input closes
    head: str = ""  # the head's machine, as ``WorkerReading`` has it; empty: the worker's own


def sweep_config(config: WorkerConfig, numerics: str, slot_unit: int, chunk: int, alignment: int) -> SweepConfig:
    """Return the configuration of the worker's sweep machine. The numbers are its back end's, in bytes."""
    return SweepConfig(
        worker=config.name,
        numerics=numerics,
        budget=config.worker_memory.memory,
        slot_unit=slot_unit,
        memory_chunk=chunk,
        granule=alignment,
        grammars_counted=not config.worker.may_be_card,
        page_size=config.worker_memory.page_size,
        chunk_size=config.batching.chunk_size,
        sweep_tokens=config.batching.sweep_tokens,
        max_rows=config.batching.max_rows,
        prefix_cache=config.worker_memory.prefix_cache,
        hidden_pages=config.worker_memory.hidden_pages,
        tier_sweeps=config.batching.tier_sweeps,
        tier_turns=config.batching.tier_turns,
        group_batching=config.batching.group_batching,
        tenant_weights=config.tenants.tenant_weights,
        tier_weights=config.tiering.tier_weights,
        tier_fairness=config.tiering.tier_fairness,
        tier_preemption=config.tiering.tier_preemption,
        class_ageing=config.tiering.class_ageing,
        tenant_kv_share=config.tenants.tenant_kv_share,
        kv_reserve=config.worker_memory.kv_reserve if config.on_demand else 0.0,
        on_demand=config.on_demand,
        exact=config.exact,
        offline_delay=config.offline.offline_delay,
        offline_sweep=config.offline.offline_sweep,
        costs=config.profile,
    )


@dataclass(frozen=True, slots=True)
class BlockLoaded:
    """The result of a ``LoadBlock``."""

    new_bytes: int  # bytes of packed tensors that this call added
    seconds: float
    fetched: int = 0  # bytes of these that came from the named source
    unfetched: str = ""  # why not all of them did


@dataclass(frozen=True, slots=True)
class ParametersWanted:
    """worker -> worker: send these pieces of packed tensors. Answered over the link by a ``ParametersArrived``."""

    worker: str
    number: int  # unique in the life of the asking worker
    pieces: list[TensorPiece]


@dataclass(frozen=True, slots=True)
class ParametersArrived:
    """Header of the bytes that answer a ``ParametersWanted``, piece by piece. Bytes of ``missing`` tensors are void.

    checksums: of packed tensors whose last piece is among the bytes, by id.
    """

    number: int
    missing: list[bytes]
    checksums: dict[bytes, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RawWanted:
    """worker -> worker: send bytes ``first`` to ``last`` (exclusive) of the raw tensor with this hash.

    Answered over the link by a ``ParametersArrived`` of this number, which is below 0.
    """

    worker: str
    number: int
    tensor: bytes
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class SegmentRows:
    """Layers ``first`` to ``last`` of a family: the sweeps in which rows passed them, and these rows, added up."""

    family: str
    first: int
    last: int
    sweeps: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """The state of a worker for ``/admin/cluster`` and the dispatcher."""

    name: str
    incarnation: int
    pid: int
    device: str
    numerics: str
    budget: int  # bytes
    parameters: int
    kv: int  # bytes of pages that sequences list
    free: int
    components: list[bytes]
    waiting: int
    running: int
    sweep: int
    sweep_age: float  # seconds for which the running sweep, beyond its pace, has computed nothing; 0 when idle
    counters: dict[str, float]
    kv_by_tenant: dict[str, int]  # bytes
    served_by_tenant: dict[str, int]  # cost of the tokens computed for each: see ``policies/sweep/fair_share.py``
    kv_cap_hits: dict[str, int]  # times that something of a tenant yielded because of its cap
    parameters_by_application: dict[str, tuple[int, int]] = field(default_factory=dict)  # bytes owned, bytes shared
    # bytes left to KV if this application alone had parameters here
    left_alone: dict[str, int] = field(default_factory=dict)
    # bytes listed, and how many of these are shared
    kv_by_application: dict[str, tuple[int, int]] = field(default_factory=dict)
    cached: int = 0  # bytes of KV that only the prefix cache keeps; evicted when memory is needed
    segments: list[SegmentRows] = field(default_factory=list)  # of the families that lie whole on this worker
    links: dict[str, str] = field(default_factory=dict)  # worker -> kind of the link that takes tensors there
    proof: dict[str, Any] = field(
        default_factory=dict
    )  # what a card's proofs of its bits have shown (``gpu/cuda/prove.py``)
    slow: str = ""  # why native kernels are not used, unless other ones were asked for
    store: str = ""  # why its store keeps nothing more
    # by holder, what a former life has left in memory and no load has asked for since: ids of components and deltas
    unclaimed: dict[str, list[bytes]] = field(default_factory=dict)
    other: int = 0  # bytes of compiled grammars and their tables of tokens: in the budget, but beside the memory of a card

    @property
    def capacity(self) -> KvCapacity:
        """The bytes that parameters leave to KV, as the controller counts them."""
        owned = {name: owned for name, (owned, _) in self.parameters_by_application.items()}
        return KvCapacity(self.name, self.incarnation, self.budget - self.parameters, self.left_alone, owned)
