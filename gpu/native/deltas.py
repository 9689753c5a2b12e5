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
    MLP,
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
from blockwright.gpu.native.packing import ALIGNMENT, PANEL

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
        found: int = max(panels for record in self.records for panels in list(record.panels))
        return found


Product = dict[str, int]  # the roles whose weights read the same rows, each with the place of its B in a record


def products(config: ComponentConfig) -> list[tuple[Product, Product]]:
    """Of each record of a component: of its first and its second product."""
    match config:
        case EmbeddingConfig():
            return [({}, {})]
        case HeadConfig():
            return [({"weight": 0}, {})]
        case AttentionConfig():
            return [({"q": 0, "k": 1, "v": 2}, {"o": SECOND_B})]
        case MlpConfig():
            return [({"gate": 0, "up": 1} if config.gated else {"up": 0}, {"down": SECOND_B})]
        case ParallelConfig():
            ((first, second),) = products(config.mlp)
            mine = ({MLP + role: place for role, place in product.items()} for product in (first, second))
            return [*products(config.attention), (next(mine), next(mine))]


@dataclass(frozen=True, slots=True)
class TermColumns:
    """Where the terms of a product lie in its A: first column by role; all columns, padded to panels."""

    of: dict[str, int]
    total: int


def _terms(spec: ComponentSpec, product: Product) -> list[LoraTerm]:
    assert spec.delta is not None
    by_role = {term.role: term for term in spec.delta.config.lora}
    return [by_role[role] for role in product if role in by_role]


def _biases(spec: ComponentSpec, product: Product) -> list[str]:
    assert spec.delta is not None
    return [role for role in product if role in spec.delta.config.biases]


def _columns(spec: ComponentSpec, terms: Iterable[LoraTerm]) -> TermColumns:
    assert spec.delta is not None
    places: dict[tuple[object, float], int] = {}
    found, total = {}, 0
    for term in terms:
        key = (spec.delta.tensors[f"{term.role}.a"], term.scale)
        if key not in places:
            places[key] = total
            total += term.rank + term.rank % 2
        found[term.role] = places[key]
    return TermColumns(found, -(-total // PANEL) * PANEL)


def _packed(columns: int, width: int, element: int) -> int:
    return -(-columns // PANEL) * PANEL * -(-width * element // 4) * 4


def _sizes(spec: ComponentSpec, product: Product, element: int) -> Iterator[int]:
    """Bytes of a product's parts: each shift, A and its scales, then each B; nothing where it has no term."""
    assert spec.delta is not None
    for role in _biases(spec, product):
        yield -(-spec.delta.tensors[f"{role}.bias"].shape[0] // PANEL) * PANEL * 4
    if not (terms := _terms(spec, product)):
        return
    tensors, total = spec.delta.tensors, _columns(spec, terms).total
    yield _packed(total, tensors[f"{terms[0].role}.a"].shape[1], element)
    yield 4 * total
    for term in terms:
        yield _packed(tensors[f"{term.role}.b"].shape[0], term.rank, element)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def delta_bytes(spec: ComponentSpec, dtype: torch.dtype) -> int:
    """Bytes of the whole packed form."""
    record_products = products(spec.config)
    return sum(_aligned(n) for record in record_products for p in record for n in _sizes(spec, p, dtype.itemsize))


def pack_delta(
    spec: ComponentSpec, tensors: dict[str, torch.Tensor], memory: torch.Tensor, dtype: torch.dtype
) -> NativeDelta:
    """Fill ``memory`` (uint8 [delta_bytes])."""
    records, offset = [], 0
    for record_products in products(spec.config):
        record = DeltaRecord()
        for second, product in enumerate(record_products):
            views = []
            for size in _sizes(spec, product, dtype.itemsize):
                views.append(memory[offset : offset + size])
                offset += _aligned(size)
            shifted = _biases(spec, product)
            for role, view in zip(shifted, views, strict=False):
                _shift(view, tensors[f"{role}.bias"], tensors.get(f"{role}.replaced"), dtype)
                record.shift[product[role]] = view.data_ptr()
            if views[len(shifted) :]:
                _fill(record, second, spec, product, tensors, views[len(shifted) :], dtype)
        records.append(record)
    return NativeDelta(spec, tuple(records), memory)


def _fill(
    record: DeltaRecord,
    second: int,
    spec: ComponentSpec,
    product: Product,
    tensors: dict[str, torch.Tensor],
    views: Sequence[torch.Tensor],
    dtype: torch.dtype,
) -> None:
    terms = _terms(spec, product)
    columns = _columns(spec, terms)
    a_view, scale_view, *b_views = views
    a_RD = torch.zeros(columns.total, tensors[f"{terms[0].role}.a"].shape[1], dtype=dtype)
    scales = scale_view.view(torch.float32).zero_()
    for term, view in zip(terms, b_views, strict=True):
        first, place = columns.of[term.role], product[term.role]
        a_RD[first : first + term.rank] = tensors[f"{term.role}.a"]
        scales[first : first + term.rank] = term.scale
        _pack(view, tensors[f"{term.role}.b"].to(dtype).contiguous())
        record.b[place], record.units[place] = view.data_ptr(), -(-term.rank * dtype.itemsize // 4)
        record.from_[place] = first
    _pack(a_view, a_RD)
    record.a[second], record.scale[second] = a_view.data_ptr(), scale_view.data_ptr()
    record.panels[second] = columns.total // PANEL


def _shift(view: torch.Tensor, bias: torch.Tensor, replaced: torch.Tensor | None, dtype: torch.dtype) -> None:
    """As float32, of values of the model's type; zeros behind it."""
    floats = view.view(torch.float32).zero_()
    floats[: bias.numel()] = bias.to(dtype).float()
    if replaced is not None:
        floats[: bias.numel()] -= replaced.to(dtype).float()


def _pack(view: torch.Tensor, source: torch.Tensor) -> None:
    rows, width = source.shape
    library().bw_pack(view.data_ptr(), source.data_ptr(), rows, width, source.element_size())


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
        GroupRecord(int(ends[first] - count_N[first]), int(ends[last - 1]), ctypes.addressof(attached[number]))
        for first, last in pairwise(borders)
        if (number := int(delta_N[first]))
    ]
    return (GroupRecord * len(found))(*found)
