"""The numbers of a worker's sweep machine: plain data, so that they travel with its state."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..plan.coefficients import Coefficients

OPEN_PLANS = 2  # of a live worker: the one that runs, and the next


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepConfig:
    """Everything that a ``SweepState`` is made with."""

    worker: str
    numerics: str  # types and kernel family: seeds every lineage
    budget: int  # bytes for parameters and KV
    slot_unit: int = 1024  # bytes; the back end pads slots to a multiple
    memory_chunk: int = 64 * 1024  # bytes that are mapped at a time: 64 KiB on a CPU, 2 MiB on a GPU
    granule: int = 64  # bytes; packed tensors begin at multiples, as kernels load whole cache lines of them
    page_size: int = 16  # tokens
    chunk_size: int = 256  # most prompt tokens of one sequence in one sweep
    sweep_tokens: int = 512  # most tokens in one sweep
    max_rows: int = 256  # sequences that own memory at a time
    prefix_cache: bool = True
    tenant_weights: dict[str, int] = field(default_factory=dict)  # account: part of the service; "*": of others; else 1
    input_cost: int = 1  # of a prompt token that is computed, for the account that computes it
    output_cost: int = 2  # of a generated token
    tenant_kv_share: dict[str, float] = field(default_factory=dict)  # account: most of KV memory, 0 to 1; "*" as above
    kv_reserve: float = 0.0  # of the memory that the largest application leaves: what others do not take from KV, 0 to 1
    on_demand: bool = False  # other applications are unloaded for a sequence that needs their memory
    lookahead: int = 3  # times round a pipeline over which its prompts are spread while others wait; 0: as in a single sweep
    offline_delay: float = 0.03  # part by which offline rows may make answers of others slower
    offline_sweep: float = 0.02  # seconds of a sweep of offline rows alone, but that one row may take as long as it takes
    costs: Coefficients | None = None  # what its sweeps cost, as far as is known: ``CostsLearned`` brings better ones
