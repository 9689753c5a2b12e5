"""Packed form of a delta for the native kernels: for each product one A with all its low-rank terms, and their Bs.

Owns the order of the parts in a delta's memory. The terms of a product are consecutive columns of its A, each from an even
column on; roles of a fused module share one A. B has the columns of the weight that it is added to.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from ...backend import SLICE
from ...model.config import (
    MLP,
    AttentionConfig,
    ComponentConfig,
    ComponentSpec,
    EmbeddingConfig,
    HeadConfig,
    MlpConfig,
    ParallelConfig,
    StitchConfig,
    TensorRef,
)
from ...model.deltas import LoraTerm
from .library import BOTTLENECKS, READS, DeltaRecord, GroupRecord, library
from .packing import ALIGNMENT, HALF, PANEL

SECOND_B = 3  # place of the second product's B in a record


@dataclass(frozen=True, slots=True)
class NativeDelta:
    """A delta with its parts in the caller's memory, and one record for each record of its component."""

    spec: ComponentSpec
    records: tuple[DeltaRecord, ...]
    memory: torch.Tensor  # keeps the addresses valid

    @property
    def panels(self) -> int:
        """The number of panels of its largest A."""
        widest: int = max(columns for record in self.records for columns in list(record.columns))
        return -(-widest // PANEL)

    @property
    def bottleneck(self) -> int:
        """The number of columns of its widest bottleneck."""
        found: int = max(record.bottleneck for record in self.records)
        return found


Product = dict[str, int]  # the roles whose weights read the same rows, each with the place of its B in a record


def products(config: ComponentConfig) -> list[tuple[Product, Product]]:
    """Return for each record of a component the roles of its first and its second product."""
    match config:
        case EmbeddingConfig() | StitchConfig():
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
    """The places of a product's terms in its A: first column by role, and all columns, padded to half panels."""

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
    return TermColumns(found, -(-total // HALF) * HALF)


def _packed(columns: int, width: int, element: int, panel: int = PANEL) -> int:
    return -(-columns // panel) * panel * -(-width * element // 4) * 4


def _sizes(spec: ComponentSpec, product: Product, element: int) -> Iterator[int]:
    """Yield the bytes of a product's parts: each shift, A and its scales, then each B; nothing if it has no term."""
    assert spec.delta is not None
    for role in _biases(spec, product):
        yield -(-spec.delta.tensors[f"{role}.bias"].shape[0] // PANEL) * PANEL * 4
    if not (terms := _terms(spec, product)):
        return
    tensors, total = spec.delta.tensors, _columns(spec, terms).total
    yield _packed(total, tensors[f"{terms[0].role}.a"].shape[1], element, HALF)
    yield 4 * total
    for term in terms:
        yield _packed(tensors[f"{term.role}.b"].shape[0], term.rank, element)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _filled(spec: ComponentSpec) -> Iterator[tuple[str, TensorRef]]:
    """Yield the tensor of the virtual tokens, if there is one."""
    assert spec.delta is not None
    yield from ((role, ref) for role, ref in spec.delta.tensors.items() if role in ("prompt", "prefix"))


def delta_bytes(spec: ComponentSpec, dtype: torch.dtype) -> int:
    """Return the bytes of the whole packed form."""
    parts = [n for record in products(spec.config) for p in record for n in _sizes(spec, p, dtype.itemsize)]
    parts += [math.prod(ref.shape) * dtype.itemsize for _, ref in _filled(spec)]
    parts += [size for _, size in _bottleneck_sizes(spec, dtype)]
    return sum(map(_aligned, parts))


def pack_delta(
    spec: ComponentSpec, tensors: Mapping[str, torch.Tensor], memory: torch.Tensor, dtype: torch.dtype
) -> Generator[int, None, NativeDelta]:
    """Fill ``memory`` (uint8 [delta_bytes]), about a slice in each step. Yield the bytes of each step."""
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
                yield from _fill(record, second, spec, product, tensors, views[len(shifted) :], dtype)
        records.append(record)
    for role, _ in _filled(spec):
        place = memory[offset : offset + tensors[role].numel() * dtype.itemsize].view(dtype)
        yield from _virtual(records[0], spec, tensors[role], place)
        offset += _aligned(place.nbytes)
    parts = {}
    for role, size in _bottleneck_sizes(spec, dtype):
        parts[role] = memory[offset : offset + size]
        offset += _aligned(size)
    if parts:
        yield from _bottleneck(records[0], spec, tensors, parts, dtype)
    return NativeDelta(spec, tuple(records), memory)


def _fill(
    record: DeltaRecord,
    second: int,
    spec: ComponentSpec,
    product: Product,
    tensors: Mapping[str, torch.Tensor],
    views: Sequence[torch.Tensor],
    dtype: torch.dtype,
) -> Iterator[int]:
    terms = _terms(spec, product)
    columns = _columns(spec, terms)
    a_view, scale_view, *b_views = views
    scales = scale_view.view(torch.float32).zero_()
    for term, view in zip(terms, b_views, strict=True):
        first, place = columns.of[term.role], product[term.role]
        scales[first : first + term.rank] = term.scale
        yield from _pack(view, [(0, tensors[f"{term.role}.b"])], tensors[f"{term.role}.b"].shape[0], dtype)
        record.b[place], record.units[place] = view.data_ptr(), -(-term.rank * dtype.itemsize // 4)
        record.from_[place] = first
    parts = [(columns.of[term.role], tensors[f"{term.role}.a"]) for term in terms]
    yield from _pack(a_view, parts, columns.total, dtype, halves=True)
    record.a[second], record.scale[second] = a_view.data_ptr(), scale_view.data_ptr()
    record.columns[second] = columns.total


def _bottleneck_sizes(spec: ComponentSpec, dtype: torch.dtype) -> Iterator[tuple[str, int]]:
    """Yield the role and the bytes of each of its parts, if there is a bottleneck."""
    assert spec.delta is not None
    if spec.delta.config.bottleneck is not None:
        for role in ("down", "up"):
            rows, width = spec.delta.tensors[role].shape
            yield role, _packed(rows, width, dtype.itemsize)
            yield f"{role}_bias", -(-rows // PANEL) * PANEL * 4


def _bottleneck(
    record: DeltaRecord,
    spec: ComponentSpec,
    tensors: Mapping[str, torch.Tensor],
    parts: Mapping[str, torch.Tensor],
    dtype: torch.dtype,
) -> Iterator[int]:
    """Pack a bottleneck. The columns of ``down`` are padded to whole panels; the padding has no effect."""
    assert spec.delta is not None
    config = spec.delta.config.bottleneck
    assert config is not None
    for role in ("down", "up"):
        yield from _pack(parts[role], [(0, tensors[role])], len(tensors[role]), dtype)
        _shift(parts[f"{role}_bias"], tensors[f"{role}_bias"], None, dtype)
    for role, view in parts.items():
        setattr(record, role, view.data_ptr())
    record.bottleneck, record.up_units = -(-config.width // PANEL) * PANEL, -(-config.width * dtype.itemsize // 4)
    record.activation, record.reads = BOTTLENECKS[config.activation], READS[config.reads]
    record.bottleneck_scale = config.scale


def _shift(view: torch.Tensor, bias: torch.Tensor, replaced: torch.Tensor | None, dtype: torch.dtype) -> None:
    """Write a bias (less the replaced one) as float32, from values of the model's type, with zeros behind it."""
    floats = view.view(torch.float32).zero_()
    floats[: bias.numel()] = bias.to(dtype).float()
    if replaced is not None:
        floats[: bias.numel()] -= replaced.to(dtype).float()


def _pack(
    view: torch.Tensor, parts: Sequence[tuple[int, torch.Tensor]], rows: int, dtype: torch.dtype, *, halves: bool = False
) -> Iterator[int]:
    """Pack a matrix of ``rows`` rows, whole panels at once. Each part begins at its row, with zeros between."""
    width = parts[0][1].shape[1]
    row = -(-width * dtype.itemsize // 4) * 4
    step = max(1, SLICE // (row * PANEL)) * PANEL
    for first in range(0, rows, step):
        source = torch.zeros(min(step, rows - first), width, dtype=dtype)
        for begin, part in parts:
            low, high = max(begin, first), min(begin + len(part), first + len(source))
            if low < high:
                source[low - first : high - first] = part[low - begin : high - begin]
        library().bw_pack(view.data_ptr() + first * row, source.data_ptr(), *source.shape, dtype.itemsize, halves)
        yield source.nbytes


def _virtual(record: DeltaRecord, spec: ComponentSpec, raw_PQ: torch.Tensor, place: torch.Tensor) -> Iterator[int]:
    """Pack the rows of virtual tokens in the model's type. In a prefix, key and value of a head are put together."""
    assert spec.delta is not None
    rows_PQ = place.view(raw_PQ.shape)
    layout = spec.component.kv
    step = max(1, SLICE // (4 * raw_PQ.shape[1]))
    for first in range(0, len(raw_PQ), step):
        raw = raw_PQ[first : first + step]
        if layout is not None:
            raw = raw.view(len(raw), 2, layout.kv_heads, layout.head_dim).transpose(1, 2).flatten(1)
        rows_PQ[first : first + step] = raw
        yield raw.nbytes
    rows_PQ.mul_(spec.delta.config.prompt_factor)
    record.filled, record.virtual_ = place.data_ptr(), len(raw_PQ)


@dataclass(frozen=True, slots=True)
class AttachedDeltas:
    """The deltas of one number in a run: a record for each record of the run, zero where there is no delta."""

    records: ctypes.Array[DeltaRecord]
    of_group: tuple[int, int]  # address of the records, most virtual tokens of any record

    @classmethod
    def of(cls, count: int, packed: Iterable[tuple[int, NativeDelta]]) -> AttachedDeltas:
        """Return the records of a run of ``count`` records, given deltas and their first records."""
        array = (DeltaRecord * count)()
        for first, delta in packed:
            for i, record in enumerate(delta.records):
                array[first + i] = record
        return cls(array, (ctypes.addressof(array), max(record.virtual_ for record in array)))


def groups(
    delta_N: np.ndarray | None, count_N: np.ndarray, attached: Mapping[int, AttachedDeltas]
) -> ctypes.Array[GroupRecord] | None:
    """Return groups of consecutive tokens with the same deltas; None if no row has any."""
    if delta_N is None:
        return None
    ends = np.cumsum(count_N)
    borders = [0, *(np.flatnonzero(np.diff(delta_N)) + 1).tolist(), len(delta_N)]
    found = [
        GroupRecord(int(ends[first] - count_N[first]), int(ends[last - 1]), *attached[number].of_group)
        for first, last in pairwise(borders)
        if (number := int(delta_N[first]))
    ]
    return (GroupRecord * len(found))(*found)
