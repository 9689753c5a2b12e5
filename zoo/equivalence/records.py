"""Measured equivalences in a zoo: one document for each chain and other chain, named by their components.

They belong to components, not to names or blocks: a new cut changes none, and other names find them again. Reads and writes
JSON alone; ``measuring.py`` makes the figures.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ...policies.adaptive.equivalence import BlockPair, EquivalenceLimits, PairFigures, refusal
from ..disk import Waiting, writing
from ..documents import encode, from_fields, read_document
from ..errors import ZooDamaged, ZooError
from ..layout import Layout, is_hash
from ..zoo import Zoo

ROUNDING = 1e-6  # by which a cosine may exceed 1


@dataclass(frozen=True, slots=True)
class StoredPair:
    """A block of a chain and the other chain's block, as identities of their components in hexadecimal digits.

    ``first`` and ``other_first`` are the places of their first components. The figures are as in ``PairFigures``.
    ``swappable``: the blocks are as wide, or stitches join them: ``enter`` comes before the second block and ``leave``
    behind it, "" where none is needed. ``counts``: the second may stand in for the first.
    """

    block: tuple[str, ...]
    equivalent: tuple[str, ...]
    first: int
    other_first: int
    similarity: float
    low: float
    swappable: bool
    counts: bool
    kl: float | None = None
    lost: float | None = None
    enter: str = ""
    leave: str = ""

    @property
    def replacement(self) -> tuple[str, ...]:
        """The components that take the place of the first block: the second, with the stitches around it."""
        return tuple(id for id in (self.enter, *self.equivalent, self.leave) if id)

    @property
    def figures(self) -> PairFigures:
        return PairFigures(self.similarity, self.low, self.kl, self.lost)

    @property
    def place(self) -> BlockPair:
        """The pair by the places of its components."""
        last, other_last = self.first + len(self.block), self.other_first + len(self.equivalent)
        return BlockPair(self.first, last, self.other_first, other_last)

    def refused(self, limits: EquivalenceLimits) -> str:
        """Return the reason why the pair does not count; empty if it counts."""
        return refusal(self.figures, limits, swappable=self.swappable)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEquivalences:
    """The blocks of one chain and another chain's blocks that were compared with them.

    ``components`` and ``others`` are the two chains. ``similarities`` are the means behind each component of the first, by
    the other's components, without the heads. ``pairs`` are in the order of the chain. ``probe`` is the hash of what was
    read, of which ``tokens`` positions were compared; ``right`` of ``prompts`` are right without a swap.
    """

    components: tuple[str, ...]
    others: tuple[str, ...]
    probe: str
    tokens: int
    prompts: int
    right: int
    limits: EquivalenceLimits
    similarities: tuple[tuple[float, ...], ...]
    pairs: tuple[StoredPair, ...]

    def encoded(self) -> bytes:
        return encode(asdict(self))


def store_equivalences(root: Path, found: Sequence[StoredEquivalences], *, waiting: Waiting | None = None) -> list[Path]:
    """Store measurements, in place of earlier ones of the same chains. Return their files. Raises ZooError."""
    with writing(root, waiting=waiting) as disk:
        alive = {id for chain in Zoo(root).chains().values() for id in chain.parts}
        disk.folder(disk.layout.equivalences)  # an older zoo lacks the folder
        paths = []
        for one in found:
            if not _named(one) <= alive:
                raise ZooError("an application was removed from the zoo while it was compared; add it and compare again")
            paths.append(disk.layout.equivalence(equivalence_name(one.components, one.others)))
            disk.write(paths[-1], [one.encoded()])
        disk.sync()
    return paths


def stored_equivalences(zoo: Zoo, components: Sequence[str], others: Sequence[str]) -> StoredEquivalences | None:
    """Return what is stored of a chain and another one; None if they were not compared. Raises ZooDamaged."""
    path = zoo.layout.equivalence(equivalence_name(components, others))
    return read_equivalences(path) if path.is_file() else None


def stitches_used(path: Path) -> set[str]:
    """Return the stitches that a document names; none for a damaged one."""
    try:
        return {id for pair in read_equivalences(path).pairs for id in (pair.enter, pair.leave) if id}
    except ZooDamaged:
        return set()


def is_needed(path: Path, alive: set[str]) -> bool:
    """Return True if all components of a document belong to applications.

    A damaged document counts as unneeded: it can only be measured again.
    """
    try:
        return _named(read_equivalences(path)) <= alive
    except ZooDamaged:
        return False


def check_equivalences(layout: Layout, path: Path) -> None:
    """Check a document and that the zoo has the components that it names. Raises ZooDamaged."""
    for id in sorted(_named(read_equivalences(path)) | stitches_used(path)):
        if not layout.component(id).is_file():
            raise ZooDamaged(path, "components of this zoo", f"the unknown {id}")


def read_equivalences(path: Path) -> StoredEquivalences:
    """Read a document. Raises ZooDamaged if it was altered, or holds figures that cannot be."""
    values = read_document(path)
    if isinstance(limits := values.get("limits"), dict):
        _check_limits(path, limits)
    found = from_fields(StoredEquivalences, values, path)
    for id in (*found.components, *found.others):
        if not is_hash(id, 32):
            raise ZooDamaged(path, "identities of 32 hexadecimal digits", repr(id)[:40])
    if path.stem != equivalence_name(found.components, found.others):
        raise ZooDamaged(path, f"the chains of {path.stem}", "other chains")
    _check_numbers(path, found)
    for pair in found.pairs:
        _check_pair(path, found, pair)
    return found


def _check_limits(path: Path, limits: dict[str, object]) -> None:
    try:
        EquivalenceLimits(**limits)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise ZooDamaged(path, "limits of a comparison", str(error)) from None


def _check_numbers(path: Path, found: StoredEquivalences) -> None:
    shape = {len(row) for row in found.similarities}
    if len(found.similarities) != len(found.components) - 1 or shape != {len(found.others) - 1}:
        raise ZooDamaged(path, f"similarities of {len(found.components) - 1} x {len(found.others) - 1}", "others")
    for value in (value for row in found.similarities for value in row):
        _check_range(path, "similarity", value, -ROUNDING, 1 + ROUNDING)
    _check_range(path, "tokens", found.tokens, 1, math.inf)
    _check_range(path, "prompts", found.prompts, 0, math.inf)
    _check_range(path, "right", found.right, 0, found.prompts)


def _check_pair(path: Path, found: StoredEquivalences, pair: StoredPair) -> None:
    places = (pair.block, pair.first, found.components), (pair.equivalent, pair.other_first, found.others)
    for id in filter(None, (pair.enter, pair.leave)):
        if not is_hash(id, 32):
            raise ZooDamaged(path, "identities of 32 hexadecimal digits", repr(id)[:40])
    for block, first, chain in places:
        if not block or first < 0 or chain[first : first + len(block)] != block:
            raise ZooDamaged(path, "blocks of its chains", f"a block of {len(block)} other components at {first}")
    _check_range(path, "similarity", pair.similarity, -ROUNDING, 1 + ROUNDING)
    _check_range(path, "the 5th percentile", pair.low, -ROUNDING, 1 + ROUNDING)
    if pair.kl is not None:
        _check_range(path, "kl", pair.kl, -ROUNDING, math.inf)
    if pair.lost is not None:
        _check_range(path, "lost", pair.lost, -100, 100)
    if pair.counts == bool(pair.refused(found.limits)):
        raise ZooDamaged(path, f"counts: {not pair.counts} by the limits", f"{pair.counts}")


def _check_range(path: Path, name: str, value: float, least: float, most: float) -> None:
    if not (math.isfinite(value) and least <= value <= most):
        raise ZooDamaged(path, f"{name} in range", f"{value:g}")


def _named(found: StoredEquivalences) -> set[str]:
    return {*found.components, *found.others}


def equivalence_name(components: Sequence[str], others: Sequence[str]) -> str:
    """Return the name of the document of a chain and another one."""
    return hashlib.blake2b("\n".join((*components, "", *others)).encode(), digest_size=16).hexdigest()
