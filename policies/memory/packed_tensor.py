"""Values that describe the packed tensors of a component or delta in a worker's memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PackedTensor:
    """A raw tensor in the form that a back end computes with; equal ids mean equal bytes."""

    id: bytes
    nbytes: int


@dataclass(frozen=True, slots=True)
class TensorPiece:
    """Bytes ``first`` to ``last - 1`` of a packed tensor of ``nbytes``, as they travel between workers."""

    id: bytes
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """The place of a packed tensor. ``fresh``: no other component had it when it was placed."""

    offset: int  # bytes, in the parameters arena
    fresh: bool


@dataclass(frozen=True, slots=True)
class WantedComponent:
    """A component or delta to be loaded."""

    id: bytes
    tensors: list[PackedTensor]


@dataclass(frozen=True, slots=True)
class Shortage:
    """The reason why a load has no room, in bytes."""

    need: int  # bytes that it would add
    lacking: int  # bytes of other parameters that must be freed first
    never: bool  # it would not fit even with nothing else here
