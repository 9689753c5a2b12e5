"""Packed form of a delta for the CUDA back ends, and the records by which operations find the deltas of a token.

Ranks are padded with zeros. Shifts and scales are float32. Nothing is shared between roles. Legend: R padded rank, W width
of a product, Q rows of a role, N numbers.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..backend import SLICE
from ..model.config import ComponentSpec
from . import ops
from .ops import FIELDS, RANK_UNIT, Terms

ALIGNMENT = 64  # bytes


@dataclass(frozen=True, slots=True)
class CudaDelta:
    """A delta as tensors by name, views over the caller's memory (``delta_shapes`` has the names)."""

    spec: ComponentSpec
    parts: dict[str, torch.Tensor]

    @property
    def changes(self) -> list[str]:
        """The names of its parts, which decide what is launched for it; their sizes do not."""
        return sorted(self.parts)


@dataclass(frozen=True, slots=True)
class DeltaRole:
    """One role of a product: its name in deltas, and its outputs of the product."""

    name: str
    first: int
    rows: int


def delta_shapes(spec: ComponentSpec, dtype: torch.dtype) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Return shape and type of each part of a delta's packed form, in order."""
    assert spec.delta is not None
    config, tensors = spec.delta.config, spec.delta.tensors
    found: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
    for term in config.lora:
        rank = padded(term.rank)
        found[f"{term.role}.a"] = (rank, tensors[f"{term.role}.a"].shape[1]), dtype
        found[f"{term.role}.b"] = (tensors[f"{term.role}.b"].shape[0], rank), dtype
    for role in config.biases:
        found[f"{role}.shift"] = tensors[f"{role}.bias"].shape, torch.float32
    if config.bottleneck is not None:
        width, hidden = padded(config.bottleneck.width), tensors["up"].shape[0]
        found |= {"down": ((width, hidden), dtype), "down_bias": ((width,), torch.float32)}
        found |= {"up": ((hidden, width), dtype), "up_bias": ((hidden,), torch.float32)}
    for role in ("prompt", "prefix"):
        if role in tensors:
            found[role] = tensors[role].shape, dtype
    return found


def padded(rank: int) -> int:
    return -(-rank // RANK_UNIT) * RANK_UNIT


def delta_bytes(spec: ComponentSpec, dtype: torch.dtype) -> int:
    """Return the bytes of the whole packed form."""
    return sum(_span(shape, kind) for shape, kind in delta_shapes(spec, dtype).values())


def _span(shape: Sequence[int], kind: torch.dtype) -> int:
    return -(-math.prod(shape) * kind.itemsize // ALIGNMENT) * ALIGNMENT


def pack_delta(
    spec: ComponentSpec, tensors: Mapping[str, torch.Tensor], memory: torch.Tensor, dtype: torch.dtype
) -> Generator[int, None, CudaDelta]:
    """Fill ``memory`` (uint8 [delta_bytes]), about a slice in each step. Yield the bytes of each step."""
    assert spec.delta is not None
    config, parts = spec.delta.config, dict[str, torch.Tensor]()
    offset = 0
    for name, (shape, kind) in delta_shapes(spec, dtype).items():
        place = memory[offset : offset + math.prod(shape) * kind.itemsize].view(kind).view(shape)
        offset += _span(shape, kind)
        parts[name] = place
        if name.endswith(".shift"):
            role = name.removesuffix(".shift")
            place.copy_(tensors[f"{role}.bias"].to(dtype).float())
            if (replaced := tensors.get(f"{role}.replaced")) is not None:
                place.sub_(replaced.to(dtype).float().to(place.device))
            yield place.nbytes
            continue
        place.zero_()  # of the padding
        raw = tensors[name]
        step = max(1, SLICE // (4 * math.prod(raw.shape[1:])))
        for first in range(0, len(raw), step):
            some = raw[first : first + step].to(dtype)  # values of the model's type, whatever the part's
            place[(slice(first, first + len(some)), *(slice(size) for size in some.shape[1:]))] = some.to(place.device, kind)
            yield some.nbytes
        if name == "prompt":
            place.mul_(config.prompt_factor)
        if name == "up_bias" and config.bottleneck is not None:
            place.mul_(config.bottleneck.scale)
    return CudaDelta(spec, parts)


Attached = Mapping[int, Mapping[int, CudaDelta]]  # deltas by number, then by place in the run


class Records:
    """Records of a run's deltas, written to the card when deltas are attached. ``memory`` must stay while they are used."""

    def __init__(self, deltas: Attached, device: torch.device) -> None:
        self._deltas, self._device = deltas, device
        self._numbers = max(deltas, default=0) + 1
        self.memory: list[torch.Tensor] = []
        self.columns = 0  # most columns of low-rank terms

    def terms(self, place: int, roles: Sequence[DeltaRole]) -> Terms | None:
        """Return what deltas add to a product, None if nothing."""
        found = np.zeros((self._numbers, len(roles), FIELDS), dtype=np.int64)
        columns, any_term = 0, False
        for number in range(self._numbers):
            delta, column = self._deltas.get(number, {}).get(place), 0
            for i, role in enumerate(roles):
                record = found[number, i]
                record[ops.FIRST], record[ops.ROWS] = role.first, role.rows
                if delta is None:
                    continue
                if (shift := delta.parts.get(f"{role.name}.shift")) is not None:
                    record[ops.SHIFT], any_term = shift.data_ptr(), True
                if (a := delta.parts.get(f"{role.name}.a")) is not None:
                    record[ops.A], record[ops.B] = a.data_ptr(), delta.parts[f"{role.name}.b"].data_ptr()
                    record[ops.RANK], record[ops.COLUMN] = a.shape[0], column
                    record[ops.SCALE] = _bits(_scale(delta, role.name))
                    column, any_term = column + a.shape[0], True
            columns = max(columns, column)
        return self._upload(found, columns, roles) if any_term else None

    def bottlenecks(self, place: int, width: int) -> tuple[Terms, int] | None:
        """Return a component's bottlenecks as terms, and the address of what each reads; None if there is none."""
        found = np.zeros((self._numbers, 1, FIELDS), dtype=np.int64)
        found[:, :, ops.ROWS] = width
        reads_N, columns = np.zeros(self._numbers, dtype=np.int32), 0
        for number, deltas in self._deltas.items():
            delta = deltas.get(place)
            if delta is None or "down" not in delta.parts:
                continue
            assert delta.spec.delta is not None
            assert delta.spec.delta.config.bottleneck is not None
            config, parts = delta.spec.delta.config.bottleneck, delta.parts
            record = found[number, 0]
            record[ops.A], record[ops.B] = parts["down"].data_ptr(), parts["up"].data_ptr()
            record[ops.RANK], record[ops.SCALE] = parts["down"].shape[0], _bits(config.scale)
            record[ops.SHIFT], record[ops.LOW_BIAS] = parts["up_bias"].data_ptr(), parts["down_bias"].data_ptr()
            record[ops.ACTIVATION] = ops.ACTIVATIONS[config.activation]
            reads_N[number] = ops.READS[config.reads]
            columns = max(columns, parts["down"].shape[0])
        if not columns:
            return None
        reads = torch.from_numpy(reads_N).to(self._device)
        self.memory.append(reads)
        return self._upload(found, columns, [DeltaRole("", 0, width)]), reads.data_ptr()

    def virtual(self, place: int, role: str) -> int:
        """Return the address of (address, count) of each number's virtual tokens, 0 if there are none."""
        found = np.zeros((self._numbers, 2), dtype=np.int64)
        for number, deltas in self._deltas.items():
            if (delta := deltas.get(place)) is not None and (rows := delta.parts.get(role)) is not None:
                found[number] = rows.data_ptr(), rows.shape[0]
        if not found.any():
            return 0
        self.memory.append(torch.from_numpy(found).to(self._device))
        return self.memory[-1].data_ptr()

    def _upload(self, found: np.ndarray, columns: int, roles: Sequence[DeltaRole]) -> Terms:
        self.memory.append(torch.from_numpy(found).to(self._device))
        self.columns = max(self.columns, columns)
        return Terms(self.memory[-1].data_ptr(), len(roles), columns, max(role.rows for role in roles))


def _scale(delta: CudaDelta, role: str) -> float:
    assert delta.spec.delta is not None
    return next(term.scale for term in delta.spec.delta.config.lora if term.role == role)


def _bits(value: float) -> int:
    return int(np.float64(value).view(np.int64))
