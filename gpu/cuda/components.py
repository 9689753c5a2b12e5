"""Components of a run as operations need them: addresses of weights, norms, slots, and what deltas add to each product.

A component with attention and feed-forward of the same hidden state becomes two parts; the first keeps its result aside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..model.config import (
    MLP,
    AttentionConfig,
    EmbeddingConfig,
    HeadConfig,
    MlpConfig,
    NormConfig,
    ParallelConfig,
    StitchConfig,
    attention_of,
)
from ..row_backend import RowPacked
from .deltas import CudaDelta, DeltaRole, Records
from .ops import Norm, Slots, Terms, Weight

Biases = tuple[tuple[int, int], ...]


@dataclass(slots=True)
class Product:
    """A product with its biases. ``terms``: what the run's deltas add to it."""

    weight: Weight
    biases: Biases
    roles: tuple[DeltaRole, ...]
    terms: Terms | None = None


@dataclass(slots=True)
class EmbeddingPart:
    """An embedding in a run. ``virtual``: rows of deltas' virtual tokens, 0 for none."""

    place: int
    config: EmbeddingConfig
    weight: int
    virtual: int = 0


@dataclass(slots=True)
class BlockPart:
    """An attention or a feed-forward: norms before and after, two products, a residual sum."""

    place: int
    width: int
    multiplier: float
    before: Norm | None
    after: Norm | None
    first: Product
    second: Product
    aside: bool = False  # the result waits for the next part, which adds it
    bottlenecks: tuple[Terms, int] | None = None


@dataclass(slots=True, kw_only=True)
class AttentionPart(BlockPart):
    """An attention in a run."""

    config: AttentionConfig
    norms: tuple[Norm, ...]  # of queries and keys
    rotary: tuple[int, int]
    kv: Slots
    layer: int
    virtual: int = 0


@dataclass(slots=True, kw_only=True)
class MlpPart(BlockPart):
    """A feed-forward in a run."""

    config: MlpConfig


@dataclass(slots=True)
class HeadPart:
    """A head, which is a run of its own."""

    config: HeadConfig
    norm: Norm
    product: Product


Part = EmbeddingPart | AttentionPart | MlpPart | HeadPart


@dataclass(slots=True)
class CudaRun:
    """Consecutive components, and the deltas that are attached to them, by number, then by place."""

    packed: tuple[RowPacked, ...]
    parts: list[Part]
    width: int
    vocabulary: int  # a head's; else 0
    groups: tuple[int, ...]  # heads of a group, of its attentions
    kept: list[Any]  # what the addresses point into
    deltas: dict[int, dict[int, CudaDelta]] = field(default_factory=dict)
    records: Records | None = None
    buckets: dict[Any, Any] = field(default_factory=dict)  # recorded graphs (``graphs.py``)

    def renew(self, records: Records) -> None:
        """Set what the attached deltas add. Nothing that was recorded may be queued."""
        self.buckets.clear()
        self.records = records if self.deltas else None
        for part in self.parts:
            if isinstance(part, EmbeddingPart):
                part.virtual = records.virtual(part.place, "prompt")
                continue
            if isinstance(part, HeadPart):
                part.product.terms = records.terms(0, part.product.roles)
                continue
            part.first.terms = records.terms(part.place, part.first.roles)
            part.second.terms = records.terms(part.place, part.second.roles)
            if isinstance(part, AttentionPart):
                part.virtual = records.virtual(part.place, "prefix")
            part.bottlenecks = records.bottlenecks(part.place, part.width)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The back end that parts belong to: slots of a component's KV, and addresses of rotary tables."""

    slots: Callable[[RowPacked], Slots]
    rotary: Callable[[AttentionConfig], tuple[int, int]]


def describe(packed: Sequence[RowPacked], kv_layer: int, around: Surroundings) -> list[Part]:
    """Return the parts of a run whose first attention has KV layer ``kv_layer``."""
    parts: list[Part] = []
    for place, one in enumerate(packed):
        parts += _parts(place, one, kv_layer, around)
        kv_layer += attention_of(one.spec.config) is not None
    return parts


def _parts(place: int, packed: RowPacked, layer: int, around: Surroundings) -> list[Part]:
    config = packed.spec.config
    match config:
        case EmbeddingConfig():
            return [EmbeddingPart(place, config, packed.weights["weight"].data_ptr())]
        case AttentionConfig():
            return [_attention(place, packed, config, layer, around, aside=False)]
        case MlpConfig():
            return [_mlp(place, packed, config, "")]
        case ParallelConfig():
            return [
                _attention(place, packed, config.attention, layer, around, aside=True),
                _mlp(place, packed, config.mlp, MLP),
            ]
        case HeadConfig():
            norm = _norm(packed, "norm", config.norm)
            assert norm is not None
            return [HeadPart(config, norm, _product(packed, "", "weight"))]
        case StitchConfig():
            raise AssertionError("a stitch is refused when it is assembled")


def _attention(
    place: int, packed: RowPacked, config: AttentionConfig, layer: int, around: Surroundings, aside: bool
) -> AttentionPart:
    norms = (_norm(packed, role, config.norm) for role in ("q_norm", "k_norm"))
    return AttentionPart(
        place,
        config.hidden,
        config.multiplier,
        _norm(packed, "norm", config.norm),
        _norm(packed, "post_norm", config.norm),
        _product(packed, "", "q", "k", "v"),
        _product(packed, "", "o"),
        aside,
        config=config,
        norms=tuple(norm for norm in norms if norm is not None),
        rotary=around.rotary(config),
        kv=around.slots(packed),
        layer=layer,
    )


def _mlp(place: int, packed: RowPacked, config: MlpConfig, prefix: str) -> MlpPart:
    inner = ("gate", "up") if config.gated else ("up",)
    return MlpPart(
        place,
        config.hidden,
        config.multiplier,
        _norm(packed, f"{prefix}norm", config.norm),
        _norm(packed, f"{prefix}post_norm", config.norm),
        _product(packed, prefix, *inner),
        _product(packed, prefix, "down"),
        config=config,
    )


def _norm(packed: RowPacked, role: str, config: NormConfig) -> Norm | None:
    if role not in packed.weights:
        return None
    bias = packed.weights.get(f"{role}_bias")
    return Norm(config, packed.weights[role].data_ptr(), 0 if bias is None else bias.data_ptr())


def _product(packed: RowPacked, prefix: str, *roles: str) -> Product:
    weights, found = packed.weights, []
    first = 0
    for role in roles:
        rows = weights[prefix + role].shape[0]
        found.append(DeltaRole(prefix + role, first, rows))
        first += rows
    parts = tuple((weights[role.name].data_ptr(), role.rows) for role in found)
    bias = (weights.get(f"{role.name}_bias") for role in found)
    biases = tuple((0 if one is None else one.data_ptr(), role.rows) for one, role in zip(bias, found, strict=True))
    width = weights[found[0].name].shape[1]
    return Product(Weight(parts, width), biases if any(address for address, _ in biases) else (), tuple(found))
