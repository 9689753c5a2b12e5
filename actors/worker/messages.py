"""What a worker accepts and says. Standard library and policies only.

Tokens: one ``SweepReport`` per sweep and gateway holds everything that this gateway must know of the sweep. Reports of one
worker incarnation to one gateway are numbered from 1 (``serial``); the worker keeps them until they are acknowledged and
sends them again when asked, so that a lost message is noticed (by the next serial, or the one in the heartbeat) and mended.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...policies.memory.packed_tensor import TensorPiece
from ...policies.plan.coefficients import Coefficients
from ...policies.sweep.config import SweepConfig
from ...policies.sweep.events import (
    GivenBack,
    PeerMessage,
    Preempted,
    Progressed,
    PromptScored,
    Submission,
    TokensEmitted,
)
from ...policies.sweep.offline_capacity import OfflineCapacity
from ...policies.sweep.page_events import Exported

__all__ = [
    "BlockLoaded",
    "Exported",
    "GatewayNews",
    "LoadBlock",
    "NoCapacity",
    "ParametersArrived",
    "ParametersWanted",
    "PeerReport",
    "Submission",
    "SweepReport",
    "WorkerConfig",
    "WorkerStatus",
    "sweep_config",
]


GatewayNews = TokensEmitted | PromptScored | Progressed | GivenBack | Preempted | Exported
"""The sweep machine's effects, as they are."""


@dataclass(frozen=True, slots=True)
class SweepReport:
    """worker -> gateway. ``news``: in the order in which the sweep machine said it. ``offline``: what the worker takes of
    offline requests after it; None: as it said last. ``seconds``: that the sweep took of which it tells; 0: of none."""

    worker: str
    incarnation: int
    serial: int
    sweep: int
    news: list[GatewayNews]
    offline: list[OfflineCapacity] | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class PeerReport:
    """worker -> worker, numbered as sweep reports are: one that is lost would leave a lease waiting or held for ever."""

    worker: str
    incarnation: int
    serial: int
    messages: list[PeerMessage]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Everything a worker process is started with (the rest comes in messages)."""

    name: str
    device: str = "cpu"
    dtype: str = "float32"
    backend: str = "auto"  # "auto" | "native" | "torch"
    instruction_set: str = ""  # the best that native kernels may use; "": whatever the processor has
    threads: int = 1
    memory: int = 1 << 30  # bytes for parameters and KV
    page_size: int = 16
    chunk_size: int = 256  # most prompt tokens of one sequence in one sweep
    sweep_tokens: int = 512  # most tokens in one sweep
    max_rows: int = 256  # sequences that own memory at a time
    max_length: int = 4096  # tokens of the longest sequence
    kv_layers: int = 64  # of the longest chain
    prefix_cache: bool = True
    tenant_weights: dict[str, int] = field(default_factory=dict)
    tenant_kv_share: dict[str, float] = field(default_factory=dict)
    kv_reserve: float = 0.0
    on_demand: bool = False
    offline_delay: float = 0.03
    offline_sweep: float = 0.02
    pace: Coefficients | None = None  # times that sweeps are held to
    profile: Coefficients | None = None  # what sweeps are expected to cost
    check: bool = False  # verify the memory invariant after every seventh sweep, not only when idle
    overload: bool = False  # it has a memory actor
    event_log: str = ""  # folder of the event log; "": none
    event_log_size: int = 64 << 20  # bytes
    log_format: str = "text"  # "text" | "json"
    log_level: str = "warning"


def sweep_config(config: WorkerConfig, numerics: str, slot_unit: int) -> SweepConfig:
    """The numbers of its sweep machine."""
    return SweepConfig(
        worker=config.name,
        numerics=numerics,
        budget=config.memory,
        slot_unit=slot_unit,
        page_size=config.page_size,
        chunk_size=config.chunk_size,
        sweep_tokens=config.sweep_tokens,
        max_rows=config.max_rows,
        prefix_cache=config.prefix_cache,
        tenant_weights=config.tenant_weights,
        tenant_kv_share=config.tenant_kv_share,
        kv_reserve=config.kv_reserve,
        on_demand=config.on_demand,
        offline_delay=config.offline_delay,
        offline_sweep=config.offline_sweep,
        costs=config.profile,
    )


@dataclass(frozen=True, slots=True)
class LoadBlock:
    """controller -> worker: make components ``first`` .. ``last`` (exclusive) of a checkpoint resident.

    ``ids`` are their component ids (of variants those of the components that they share) and ``hashes`` those of their raw
    tensors by role, which were computed once, at the head; what is already resident is only counted again.
    """

    checkpoint: str
    first: int
    last: int
    ids: list[bytes]
    holder: str  # who needs them (an application); the same holder may unload
    hashes: list[dict[str, bytes]] = field(default_factory=list)
    base: str = ""  # of an adapter: the checkpoint that it changes
    deltas: list[bytes] = field(default_factory=list)  # of an adapter: ids of the components', empty where there is none
    idle: float = 0.0  # seconds without use after which the controller wants to know; 0: never
    length: int = 0  # tokens of its longest sequence
    layers: int = 0  # with KV, of the whole chain
    source: str = ""  # a worker that may have them in its memory, to come from there; what does not is read


@dataclass(frozen=True, slots=True)
class BlockLoaded:
    new_bytes: int  # of packed tensors that this call added
    seconds: float
    fetched: int = 0  # bytes of these that came from the source that was named
    unfetched: str = ""  # why not all of them did


@dataclass(frozen=True, slots=True)
class ParametersWanted:
    """worker -> worker: send these pieces of packed tensors. Answered over the link, by a ``ParametersArrived``."""

    worker: str
    number: int  # unique in the life of who asks
    pieces: list[TensorPiece]


@dataclass(frozen=True, slots=True)
class ParametersArrived:
    """What leads the bytes of a ``ParametersWanted``, piece by piece. Bytes of ``missing`` tensors mean nothing."""

    number: int
    missing: list[bytes]


@dataclass(frozen=True, slots=True)
class NoCapacity:
    """There is no room for the block; nothing was changed for it."""

    message: str
    lacking: int  # bytes that must become free first
    never: bool  # it would not fit if nothing else were here
    owned: dict[str, int]  # application -> bytes of packed tensors that go with it


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """A worker as ``/admin/cluster`` and the dispatcher see it."""

    name: str
    incarnation: int
    pid: int
    device: str
    numerics: str
    budget: int  # bytes
    parameters: int
    kv: int  # of pages that sequences list
    free: int
    components: list[bytes]
    waiting: int
    running: int
    sweep: int
    sweep_age: float  # seconds for which the running sweep, beyond its pace, has computed nothing; 0 when idle
    counters: dict[str, float]
    kv_by_tenant: dict[str, int]  # bytes
    served_by_tenant: dict[str, int]  # cost of the tokens computed for it: see ``policies/sweep/fair_share.py``
    kv_cap_hits: dict[str, int]  # times that something of a tenant gave way because of its cap
    parameters_by_application: dict[str, tuple[int, int]] = field(default_factory=dict)  # bytes owned, bytes shared
    left_alone: dict[str, int] = field(default_factory=dict)  # to KV, once an application alone has parameters here
    kv_by_application: dict[str, tuple[int, int]] = field(default_factory=dict)  # bytes listed, of these shared
    cached: int = 0  # bytes of KV that only the prefix cache keeps: it gives way
    slow: str = ""  # why the native kernels do not compute, where nobody asked for others
