"""Stitches between two applications of a zoo, both ways: made, stored and read again."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ...gpu.errors import CheckpointError
from ...gpu.model.config import StitchConfig
from ...gpu.weights.checkpoint import Checkpoint
from ...gpu.weights.identity import begin_hash, component_id
from ...policies.adaptive.stitches import StitchPoint, stitch_points
from ...policies.model.chain import Component, Kind
from ..disk import Waiting
from ..errors import ZooDamaged
from ..family.network import ChainNetwork
from ..records import StoredComponent, StoredTensor
from ..zoo import Zoo
from .comparison import open_comparison
from .probe import Row
from .stitch_fitting import FittedStitches, Progress, StitchedPair, StitchTraining, fit
from .stitch_records import MadeStitches, StoredStitch, StoredStitches, store_stitches, stored_stitches

VALIDATION = 8  # one row in 8 is held out
NAMES = {torch.float32: "F32", torch.bfloat16: "BF16"}  # of types as they are stored

Directions = tuple[StoredStitches, StoredStitches]


@dataclass(frozen=True, slots=True)
class ZooStitching:
    """Two applications of a zoo of different widths, opened. They cannot be removed meanwhile."""

    root: Path
    names: tuple[str, str]
    checkpoints: tuple[Checkpoint, Checkpoint]
    components: tuple[list[Component], list[Component]]

    def make(
        self, rows: Sequence[Row], plan: StitchTraining, *, progress: Progress, waiting: Waiting | None = None
    ) -> Directions:
        """Make the stitches of both directions and store them. Raises ZooError.

        If the zoo holds stitches that were made with the same rows and plan, nothing is computed.
        """
        digest = hashlib.blake2b(repr((rows, plan)).encode(), digest_size=16).hexdigest()
        if (stored := self._stored()) and all(one.rows == digest for one in stored):
            return stored
        store_stitches(self.root, (), waiting=waiting)  # a zoo that cannot be written is refused before minutes of work
        held_out = rows[::VALIDATION]
        trained = [row for number, row in enumerate(rows) if number % VALIDATION]
        networks = [ChainNetwork(one) for one in self.checkpoints]
        dtype = torch.bfloat16 if {one.config.dtype for one in self.checkpoints} == {"bfloat16"} else torch.float32
        made = []
        for way in (0, 1):
            mine, theirs = self.components[way], self.components[1 - way]
            points = stitch_points(mine, theirs)
            pair = StitchedPair(networks[way], networks[1 - way], points)
            found = fit(pair, trained, held_out, plan, dtype, progress)
            document = StoredStitches(
                components=tuple(one.id.hex() for one in mine),
                others=tuple(one.id.hex() for one in theirs),
                rows=digest,
                tokens=sum(map(len, trained)),
                stitches=(),
            )
            made.append(made_stitches(document, points, found, dtype))
        store_stitches(self.root, made, waiting=waiting)
        return made[0].document, made[1].document

    def _stored(self) -> Directions | None:
        zoo, ids = Zoo(self.root), [[one.id.hex() for one in chain] for chain in self.components]
        try:
            there, back = stored_stitches(zoo, *ids), stored_stitches(zoo, *reversed(ids))
        except ZooDamaged:
            return None
        return (there, back) if there and back else None


def open_stitching(root: Path, own: str, other: str) -> ZooStitching:
    """Open two applications of a zoo. Raises ZooError, and CheckpointError if no stitch can join them."""
    opened = open_comparison(root, own, other)
    widths = [one.config.hidden for one in opened.checkpoints]
    if widths[0] == widths[1]:
        raise CheckpointError(
            f"{own} and {other} are {widths[0]} wide, both: their blocks need no stitch; compare them: blockwright zoo "
            "equivalence"
        )
    return ZooStitching(root, opened.names, opened.checkpoints, opened.components)


def made_stitches(
    document: StoredStitches, points: Sequence[StitchPoint], found: FittedStitches, dtype: torch.dtype
) -> MadeStitches:
    """Return a document without stitches with the ones that were found, and their components and tensors."""
    out, width = found.weights["weight"].shape
    config = StitchConfig(hidden=width, out=out)
    weight, content = _tensor(found.weights["weight"], dtype)
    tensors = {weight: content}
    components, stitches = list[StoredComponent](), list[StoredStitch]()
    for number, point in enumerate(points):
        bias, content = _tensor(found.weights["bias"][number], dtype)
        tensors[bias] = content
        roles = {"weight": weight, "bias": bias}
        id = component_id(Kind.STITCH, config, {role: bytes.fromhex(one.hash) for role, one in roles.items()}).hex()
        components.append(StoredComponent(id, config, roles))
        stitches.append(StoredStitch(point.left, point.entered, id, found.least[point], found.kept[point]))
    return MadeStitches(replace(document, stitches=tuple(stitches)), components, tensors)


def _tensor(values: torch.Tensor, dtype: torch.dtype) -> tuple[StoredTensor, bytes]:
    """Return a tensor as it is stored, and its bytes."""
    content = values.to(dtype).contiguous().view(torch.uint8).numpy().tobytes()
    shape, name = tuple(values.shape), NAMES[dtype]
    digest = begin_hash(name, shape)
    digest.update(content)
    return StoredTensor(digest.hexdigest(), name, shape), content
