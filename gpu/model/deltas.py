"""Configuration of deltas, as numbers: part of a delta's identity, and all that a back end needs besides tensors.

Standard library only. A *delta* is a small change of a component; all that are adapted from it share its parameters.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraTerm:
    """Low-rank term of one product: ``y += scale * (x @ a.T) @ b.T`` (Hu et al., "LoRA", section 4.1).

    Tensors: ``<role>.a`` [rank, width of the product], ``<role>.b`` [rows of the role, rank].
    """

    role: str  # role of the weight: "q", "o", "up", "mlp.down", a head's "weight"
    rank: int
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """Bottleneck behind an attention or feed-forward: ``y += scale * up(act(down(x)))``.

    y is the output, which is added to the residual r. ``reads`` says what x is: the "output" y (Houlsby et al., 2019), the
    "sum" y + r (Pfeiffer et al., 2020), or the "input" r (He et al., 2022, parallel). Tensors: ``down`` [width, hidden],
    ``down_bias`` [width], ``up`` [hidden, width], ``up_bias`` [hidden].
    """

    width: int
    activation: str  # "relu", or one of the feed-forward's
    reads: str
    scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaConfig:
    """The terms of one component's delta; at most one term of each kind for a role.

    ``biases`` are roles of weights whose products are shifted (Ben Zaken et al., "BitFit"): ``y += bias - replaced``.
    Tensors: ``<role>.bias`` [rows of the role], and ``<role>.replaced`` if the base has a bias that no longer applies.

    ``prompt`` (of an embedding) and ``prefix`` (of an attention) are numbers of virtual tokens: positions before the prompt
    whose hidden states (Lester et al., "prompt tuning") or keys and values (Li and Liang, "prefix tuning") are part of the
    delta. Tensors: ``prompt`` [virtual tokens, hidden], which is multiplied by ``prompt_factor``, and ``prefix`` [virtual
    tokens, keys of all heads, then values], which is neither rotated nor normed.
    """

    lora: tuple[LoraTerm, ...] = ()
    biases: tuple[str, ...] = ()
    prompt: int = 0
    prompt_factor: float = 1.0
    prefix: int = 0
    bottleneck: Bottleneck | None = None

    @property
    def virtual(self) -> int:
        """The number of virtual tokens."""
        return self.prompt or self.prefix
