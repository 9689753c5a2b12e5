"""Stitches in a zoo: one document for each direction between two chains, named by their components.

A stitch is a component like any other, whose matrix is one file for all stitches of a direction. It belongs to no
application: the document keeps it, as long as the zoo has the applications of both chains. Loads no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ...gpu.model.config import StitchConfig
from ...policies.adaptive.stitches import StitchFigures, StitchPoint
from ..disk import Waiting, writing
from ..documents import encode, from_fields, read_document
from ..errors import ZooDamaged, ZooError
from ..layout import Layout, is_hash, tensor_header
from ..records import StoredComponent, StoredTensor, read_component
from ..zoo import Zoo
from .records import equivalence_name

ROUNDING = 1e-6  # by which a cosine may exceed 1, and a divergence lie below 0


@dataclass(frozen=True, slots=True)
class StoredStitch:
    """The stitch at one point: the identity of its component in hexadecimal digits, and its figures.

    ``least``: of least squares. ``kept``: of what was kept, which is never worse.
    """

    left: int
    entered: int
    component: str
    least: StitchFigures
    kept: StitchFigures

    @property
    def point(self) -> StitchPoint:
        return StitchPoint(self.left, self.entered)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredStitches:
    """The stitches from one chain to another.

    ``components`` and ``others`` are the two chains. ``rows`` is the hash of what they were made with, of which ``tokens``
    were trained on.
    """

    components: tuple[str, ...]
    others: tuple[str, ...]
    rows: str
    tokens: int
    stitches: tuple[StoredStitch, ...]

    def encoded(self) -> bytes:
        return encode(asdict(self))

    @property
    def by_point(self) -> dict[StitchPoint, StoredStitch]:
        return {one.point: one for one in self.stitches}


@dataclass(frozen=True, slots=True)
class MadeStitches:
    """A document with what it names: components, and tensors with their bytes."""

    document: StoredStitches
    components: Sequence[StoredComponent]
    tensors: Mapping[StoredTensor, bytes]


def store_stitches(root: Path, made: Sequence[MadeStitches], *, waiting: Waiting | None = None) -> list[Path]:
    """Store stitches, in place of earlier ones of the same chains. Return their documents. Raises ZooError."""
    with writing(root, waiting=waiting) as disk:
        layout = disk.layout
        alive = {id for chain in Zoo(root).chains().values() for id in chain.parts}
        disk.folder(layout.stitches)  # an older zoo lacks the folder
        paths = []
        for one in made:
            if not {*one.document.components, *one.document.others} <= alive:
                raise ZooError("an application was removed from the zoo meanwhile; add it and make the stitches again")
            for tensor, content in one.tensors.items():
                path = layout.tensor(tensor.hash)
                disk.folder(path.parent)
                disk.write(path, [tensor_header(tensor.dtype, tensor.shape), content])
            for component in one.components:
                disk.write(layout.component(component.id), [component.encoded()])
            disk.sync()
            paths.append(layout.stitch(equivalence_name(one.document.components, one.document.others)))
            disk.write(paths[-1], [one.document.encoded()])
        disk.sync()
    return paths


def stored_stitches(zoo: Zoo, components: Sequence[str], others: Sequence[str]) -> StoredStitches | None:
    """Return the stitches from a chain to another one; None if there are none. Raises ZooDamaged."""
    path = zoo.layout.stitch(equivalence_name(components, others))
    return read_stitches(path) if path.is_file() else None


def needed_stitches(layout: Layout, alive: set[str]) -> dict[Path, StoredStitches]:
    """Return the documents whose chains belong to applications with these components.

    A damaged document counts as unneeded: stitches can only be made again.
    """
    found = {}
    for path in sorted(layout.stitches.glob("*.json")):
        try:
            one = read_stitches(path)
        except ZooDamaged:
            continue
        if {*one.components, *one.others} <= alive:
            found[path] = one
    return found


def check_stitches(layout: Layout, path: Path) -> None:
    """Check a document, and that the zoo has its chains' components and its stitches. Raises ZooDamaged."""
    one = read_stitches(path)
    for id in sorted({*one.components, *one.others}):
        if not layout.component(id).is_file():
            raise ZooDamaged(path, "components of this zoo", f"the unknown {id}")
    for stitch in one.stitches:
        part = layout.component(stitch.component)
        if not isinstance(read_component(part).config, StitchConfig):
            raise ZooDamaged(path, "stitches", f"{stitch.component}, which is another component")


def read_stitches(path: Path) -> StoredStitches:
    """Read a document. Raises ZooDamaged if it was altered, or holds figures that cannot be."""
    found = from_fields(StoredStitches, read_document(path), path)
    for id in (*found.components, *found.others, *(one.component for one in found.stitches)):
        if not is_hash(id, 32):
            raise ZooDamaged(path, "identities of 32 hexadecimal digits", repr(id)[:40])
    if path.stem != equivalence_name(found.components, found.others):
        raise ZooDamaged(path, f"the chains of {path.stem}", "other chains")
    for one in found.stitches:
        if not (0 < one.left < len(found.components) and 0 < one.entered < len(found.others)):
            raise ZooDamaged(path, "points between components", f"{one.left} and {one.entered}")
        _check_figures(path, (one.least, one.kept))
        if not one.kept.is_no_worse(one.least):
            raise ZooDamaged(path, "figures that are no worse than least squares", "worse ones")
    return found


def _check_figures(path: Path, figures: Iterable[StitchFigures]) -> None:
    for one in figures:
        for value, most in ((one.distance, math.inf), (one.kl, math.inf), (one.similarity, 1 + ROUNDING)):
            if not (math.isfinite(value) and -ROUNDING <= value <= most):
                raise ZooDamaged(path, "figures in range", f"{value:g}")
