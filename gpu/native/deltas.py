"""The packed form of a delta for the native kernels: for each product one A of all its low-rank terms, and their Bs.

Owns the order of the parts in a delta's memory. A product's terms lie behind each other as columns of its A, from an even
column on; roles whose module is fused share theirs. B has the columns of the weight that it is added to.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from blockwright.gpu.model.config import (
    AttentionConfig,
    ComponentConfig,
    ComponentSpec,
    EmbeddingConfig,
    HeadConfig,
    MlpConfig,
    ParallelConfig,
)
from blockwright.gpu.model.deltas import LoraTerm
from blockwright.gpu.native.library import DeltaRecord, GroupRecord, library
from blockwright.gpu.native.packing import ALIGNMENT, HALF, PANEL, SECOND

SECOND_B = 3  # place of the second product's B in a record


@dataclass(frozen=True, slots=True)
class NativeDelta:
    """A delta whose parts lie in the caller's memory: a record for each record of its component."""

    spec: ComponentSpec
    records: tuple[DeltaRecord, ...]
    memory: torch.Tensor  # keeps the addresses valid

    @property
    def panels(self) -> int:
        """Most of an A."""
        return max(max(record.panels) for record in self.records)


@dataclass(frozen=True, slots=True)
class Product:
    """One of a component's products: the roles whose weights lie in it, each with the place of its B."""

    second: bool
    roles: tuple[tuple[str, int], ...]
    gated: bool = False  # both roles in each panel of one B


def products(config: ComponentConfig, prefix: str = "") -> list[list[Product]]:
    """Of each record of a component."""
    match config:
        case EmbeddingConfig():
            return [[]]
        case HeadConfig():
            return [[Product(False, ((f"{prefix}weight", 0),))]]
        case AttentionConfig():
            first = tuple((prefix + role, place) for place, role in enumerate("qkv"))
            return [[Product(False, first), Product(True, ((f"{prefix}o", SECOND_B),))]]
        case MlpConfig():
            roles = ("gate", "up") if config.gated else ("up",)
            first = tuple((prefix + role, 0) for role in roles)
            return [[Product(False, first, config.gated), Product(True, ((f"{prefix}down", SECOND_B),))]]
        case ParallelConfig():
            return products(config.attention) + products(config.mlp, SECOND)


@dataclass(frozen=True, slots=True)
class Columns:
    """Where the terms of a product lie in its A: first column by role; all columns, padded to panels."""

    of: dict[str, int]
    total: int


def _terms(spec: ComponentSpec, product: Product) -> list[LoraTerm]:
    assert spec.delta is not None
    by_role = {term.role: term for term in spec.delta.config.lora}
    return [by_role[role] for role, _ in product.roles if role in by_role]


def _columns(spec: ComponentSpec, terms: Iterable[LoraTerm]) -> Columns:
    assert spec.delta is not None
    places: dict[tuple[object, float], int] = {}
    found, total = {}, 0
    for term in terms:
        key = (spec.delta.tensors[f"{term.role}.a"], term.scale)
        if key not in places:
            places[key] = total
            total += term.rank + term.rank % 2
        found[term.role] = places[key]
    return Columns(found, -(-total // PANEL) * PANEL)


def _packed(columns: int, width: int, element: int) -> int:
    return -(-columns // PANEL) * PANEL * -(-width * element // 4) * 4


def _sizes(spec: ComponentSpec, product: Product, element: int) -> Iterator[int]:
    """Bytes of a product's parts: A and its scales, then each B; nothing where it has no term."""
    assert spec.delta is not None
    terms = _terms(spec, product)
    if not terms:
        return
    width = spec.delta.tensors[f"{terms[0].role}.a"].shape[1]
    total = _columns(spec, terms).total
    yield _packed(total, width, element)
    yield 4 * total
    if product.gated:
        rows = spec.delta.tensors[f"{terms[0].role}.b"].shape[0]
        yield _packed(-(-rows // HALF) * PANEL, max(term.rank for term in terms), element)
    else:
        for term in terms:
            yield _packed(spec.delta.tensors[f"{term.role}.b"].shape[0], term.rank, element)


def delta_bytes(spec: ComponentSpec, dtype: torch.dtype) -> int:
    """Bytes of the whole packed form."""
    every = (size for record in products(spec.config) for p in record for size in _sizes(spec, p, dtype.itemsize))
    return sum(-(-size // ALIGNMENT) * ALIGNMENT for size in every)


def pack_delta(
    spec: ComponentSpec, tensors: dict[str, torch.Tensor], memory: torch.Tensor, dtype: torch.dtype
) -> NativeDelta:
    """Fill ``memory`` (uint8 [delta_bytes])."""
    records, offset = [], 0
    for record_products in products(spec.config):
        record = DeltaRecord()
        for product in record_products:
            views = []
            for size in _sizes(spec, product, dtype.itemsize):
                views.append(memory[offset : offset + size].zero_())
                offset += -(-size // ALIGNMENT) * ALIGNMENT
            if views:
                _fill(record, spec, product, tensors, views, dtype)
        records.append(record)
    return NativeDelta(spec, tuple(records), memory)


def _fill(
    record: DeltaRecord,
    spec: ComponentSpec,
    product: Product,
    tensors: dict[str, torch.Tensor],
    views: Sequence[torch.Tensor],
    dtype: torch.dtype,
) -> None:
    terms, second = _terms(spec, product), int(product.second)
    columns, places = _columns(spec, terms), dict(product.roles)
    a_view, scale_view, *b_views = views
    whole = torch.zeros(columns.total, tensors[f"{terms[0].role}.a"].shape[1], dtype=dtype)
    scales = scale_view.view(torch.float32)
    for term in terms:
        first = columns.of[term.role]
        whole[first : first + term.rank] = tensors[f"{term.role}.a"]
        scales[first : first + term.rank] = term.scale
    _pack(a_view, whole)
    record.a[second], record.scale[second] = a_view.data_ptr(), scale_view.data_ptr()
    record.panels[second] = columns.total // PANEL
    rank = max(term.rank for term in terms)
    for index, term in enumerate(terms):
        place = places[term.role]
        wide = rank if product.gated else term.rank
        b = torch.zeros(tensors[f"{term.role}.b"].shape[0], wide, dtype=dtype)
        b[:, : term.rank] = tensors[f"{term.role}.b"]
        view = b_views[0 if product.gated else index]
        record.b[place], record.units[place] = view.data_ptr(), -(-wide * dtype.itemsize // 4)
        first = columns.of[term.role]
        if not product.gated:
            _pack(view, b)
            record.from_[place][0] = record.from_[place][1] = first
            continue
        half = int(term.role.endswith("up"))
        _pack(view, b, HALF, half * HALF)
        record.from_[place][half] = first


def _pack(view: torch.Tensor, source: torch.Tensor, width: int = PANEL, offset: int = 0) -> None:
    columns, inner = source.shape
    library().bw_pack(view.data_ptr(), source.data_ptr(), columns, inner, source.element_size(), width, offset)


def record_array(count: int, packed: Iterable[tuple[int, NativeDelta]]) -> ctypes.Array[DeltaRecord]:
    """Of a run of ``count`` records, with deltas from their first records on; zero elsewhere."""
    array = (DeltaRecord * count)()
    for first, delta in packed:
        for i, record in enumerate(delta.records):
            array[first + i] = record
    return array


def groups(
    delta_N: np.ndarray | None, count_N: np.ndarray, attached: dict[int, ctypes.Array[DeltaRecord]]
) -> ctypes.Array[GroupRecord] | None:
    """Consecutive tokens with the same deltas; None where no row has any."""
    if delta_N is None:
        return None
    ends = np.cumsum(count_N)
    borders = [0, *(np.flatnonzero(np.diff(delta_N)) + 1).tolist(), len(delta_N)]
    found = [
        (int(ends[first] - count_N[first]), int(ends[last - 1]), ctypes.addressof(attached[number]))
        for first, last in pairwise(borders)
        if (number := int(delta_N[first]))
    ]
    return (GroupRecord * len(found))(*found)
