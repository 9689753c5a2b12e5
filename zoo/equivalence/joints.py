"""The stitches around swapped blocks of two chains, read from a zoo. Legend: D and E widths, N points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ...gpu.weights.loader import read_rows
from ...policies.adaptive.equivalence import BlockPair
from ...policies.adaptive.stitches import StitchPoint, crossings
from ...policies.model.chain import Component
from ..source import place
from ..zoo import Zoo
from .stitch_records import StoredStitches, stored_stitches


@dataclass(frozen=True, slots=True)
class Stitch:
    """A stitch: its component's identity in hexadecimal digits, ``weight`` [E, D] and ``bias`` [E]."""

    id: str
    weight: torch.Tensor
    bias: torch.Tensor

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the other chain's states for a chain's."""
        return F.linear(hidden, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class Joined:
    """The stitches around a block that is swapped, None where the widths are equal."""

    enter: Stitch | None = None
    leave: Stitch | None = None


@dataclass(frozen=True, slots=True)
class Joints:
    """The stitches ``there``, from a chain to another one, and ``back``."""

    own: Sequence[Component]
    other: Sequence[Component]
    there: dict[StitchPoint, Stitch]
    back: dict[StitchPoint, Stitch]

    def around(self, pair: BlockPair) -> Joined | None:
        """Return the stitches that a swap needs; None if there are none, or none helps."""
        needed = crossings(pair, self.own, self.other)
        if needed is None:
            return None
        found = []
        for point, stitches in zip(needed, (self.there, self.back), strict=True):
            if point is not None and point not in stitches:
                return None
            found.append(stitches[point] if point is not None else None)
        return Joined(*found)

    def turned(self) -> Joints:
        """Return the stitches as the other chain sees them."""
        return Joints(self.other, self.own, self.back, self.there)

    @property
    def ids(self) -> list[str]:
        """The identities of all stitches."""
        return [one.id for stitches in (self.there, self.back) for one in stitches.values()]


def read_joints(zoo: Zoo, own: Sequence[Component], other: Sequence[Component]) -> Joints:
    """Return the stitches that a zoo has for two chains. Raises ZooDamaged."""
    ids = [[one.id.hex() for one in chain] for chain in (own, other)]
    there, back = stored_stitches(zoo, *ids), stored_stitches(zoo, *reversed(ids))
    return Joints(own, other, *(read_stitch_weights(zoo, one) if one else {} for one in (there, back)))


def read_stitch_weights(zoo: Zoo, stored: StoredStitches) -> dict[StitchPoint, Stitch]:
    """Return the stitches of a direction by their points. The matrix is read once. Raises ZooDamaged."""
    found: dict[StitchPoint, Stitch] = {}
    known: dict[str, torch.Tensor] = {}
    for one in stored.stitches:
        tensors = zoo.component(one.component).tensors
        for tensor in tensors.values():
            if tensor.hash not in known:
                ref = place(zoo.layout, tensor)
                known[tensor.hash] = read_rows(ref, 0, ref.shape[0]).float()
        found[one.point] = Stitch(one.component, known[tensors["weight"].hash], known[tensors["bias"].hash])
    return found
