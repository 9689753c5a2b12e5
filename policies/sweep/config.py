"""The settings of a worker's sweep machine. Plain data, so that they travel with its state."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..plan.coefficients import Coefficients

OPEN_PLANS = 2  # of a live worker: the running one and the next


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepConfig:
    """All settings of a ``SweepState``."""

    worker: str
    numerics: str  # types and kernel family: seed of every lineage
    budget: int  # bytes for parameters and KV
    slot_unit: int = 1024  # bytes; the back end pads slots to a multiple
    memory_chunk: int = 64 * 1024  # bytes mapped at a time: 64 KiB on a CPU, 2 MiB on a GPU
    grammars_counted: bool = True  # compiled grammars lie in the budget's memory; False: beside it, as it is a card's
    granule: int = 64  # bytes; packed tensors are aligned to it, as kernels load whole cache lines
    page_size: int = 16  # tokens
    chunk_size: int = 256  # limit of prompt tokens of one sequence in one sweep
    sweep_tokens: int = 512  # limit of tokens in one sweep
    max_rows: int = 256  # limit of sequences that own memory at a time
    prefix_cache: bool = True
    hidden_pages: str = "auto"  # on: hidden states at exits are kept; auto: if a higher tier is here, too; off: never
    tier_sweeps: str = "auto"  # lockstep: sweeps compute all tiers; decoupled: some only lower ones; auto: where that pays
    tier_turns: int = 2  # most sweeps in a row that compute lower tiers alone
    group_batching: bool = True  # False: no sweep computes two tiers
    tenant_weights: dict[str, int] = field(default_factory=dict)  # account -> weight of its service; "*": all others; else 1
    input_cost: int = 1  # cost of a computed prompt token, to the account that computes it
    output_cost: int = 2  # cost of a generated token
    tier_weights: dict[str, int] = field(default_factory=dict)  # model id of a tier -> its weight within its family; else 1
    tier_fairness: bool = True  # False: tiers are as other models, and each token costs the same
    tier_preemption: bool = True  # False: urgent sequences wait for rows and pages as all others
    class_ageing: float = 10.0  # seconds of waiting after which a sequence rises by one service class; 0: never
    tenant_kv_share: dict[str, float] = field(default_factory=dict)  # account -> cap on its part of KV, 0 to 1; "*" as above
    kv_reserve: float = 0.0  # fraction, of the memory the largest application leaves, reserved for KV, 0 to 1
    on_demand: bool = False  # other applications are unloaded for a sequence that needs their memory
    lookahead: int = 3  # pipeline rounds over which prompts are spread while others wait; 0: single sweep
    exact: bool = False  # no guess of hidden states stands
    offline_delay: float = 0.03  # fraction by which offline rows may slow down online answers
    offline_sweep: float = 0.02  # target seconds of an offline-only sweep; one row may take longer
    costs: Coefficients | None = None  # cost of its sweeps, if known; ``CostsLearned`` refines it
