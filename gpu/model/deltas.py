"""What the delta of a component adds, as numbers: part of its identity, and all that a back end needs besides tensors.

Standard library only. A *delta* is a small change of a component whose parameters all its variants share.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraTerm:
    """Low-rank term of one product: ``y += scale * (x @ a.T) @ b.T`` (Hu et al., "LoRA", section 4.1).

    Tensors: ``<role>.a`` [rank, width of the product], ``<role>.b`` [rows of the role, rank].
    """

    role: str  # of the weight: "q", "o", "up", "mlp.down", "weight" of a head
    rank: int
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaConfig:
    """The terms of one component's delta; of each kind at most one of a role.

    ``biases``: roles of weights whose products are shifted (Ben Zaken et al., "BitFit"): ``y += bias - replaced``. Tensors:
    ``<role>.bias`` [rows of the role], and ``<role>.replaced`` where the base has a bias that counts no more.
    """

    lora: tuple[LoraTerm, ...] = ()
    biases: tuple[str, ...] = ()
