"""What a component, or a delta, consists of in a worker's memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PackedTensor:
    """A raw tensor in the form that a back end computes with; equal ids mean equal bytes."""

    id: bytes
    nbytes: int


@dataclass(frozen=True, slots=True)
class TensorPiece:
    """Bytes ``first`` .. ``last - 1`` of a packed tensor of ``nbytes``, as they travel between workers."""

    id: bytes
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where a packed tensor lies. ``fresh``: nobody else had it when it was placed."""

    offset: int  # bytes, in the parameters arena
    fresh: bool


@dataclass(frozen=True, slots=True)
class WantedComponent:
    """A component or delta to be loaded."""

    id: bytes
    tensors: list[PackedTensor]


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why a load has no room. All in bytes."""

    need: int  # that it would add
    lacking: int  # that must become free of other parameters first
    never: bool  # it would not fit if nothing else were here
