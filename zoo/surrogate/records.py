"""Stored surrogates: one document for each block and smaller block, named by the identities of their components.

A surrogate belongs to a block's content, not to names: other applications with the block have it, too, and it goes with the
last of them. Reads and writes JSON alone.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ..documents import encode, from_fields, read_document
from ..errors import ZooDamaged
from ..layout import Layout, is_hash
from ..records import read_component
from ..zoo import Zoo

ROUNDING = 1e-6  # by which a cosine may exceed 1
PRUNED, EQUIVALENT = "pruned", "equivalent"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSurrogate:
    """A surrogate with its measurements. ``block`` and ``surrogate`` are components, in hexadecimal digits.

    ``made``: "pruned", or "equivalent" if it was known as an equivalent block. ``probe``: hash of what was read, of which
    ``tokens`` positions were compared. ``similarity``: mean cosine of the vocabulary probabilities behind both blocks;
    ``low``: its 5th percentile. ``kl``: divergence of the chain's output, in nats. ``agreement``: share of positions with
    the same likeliest token. Seconds and bytes are of the block and of the surrogate; the seconds are of one row, on a
    device with ``numerics`` and a number of ``threads``.
    """

    block: tuple[str, ...]
    surrogate: tuple[str, ...]
    made: str
    probe: str
    tokens: int
    similarity: float
    low: float
    kl: float
    agreement: float
    block_seconds: float
    seconds: float
    numerics: str
    threads: int
    block_bytes: int
    nbytes: int

    @property
    def time_ratio(self) -> float:
        return self.seconds / self.block_seconds

    @property
    def byte_ratio(self) -> float:
        return self.nbytes / self.block_bytes

    def place(self, chain: Sequence[str]) -> tuple[int, int] | None:
        """Return where the block begins and ends in a chain; None if the chain has it not."""
        size = len(self.block)
        firsts = (i for i in range(len(chain) - size + 1) if tuple(chain[i : i + size]) == self.block)
        first = next(firsts, -1)
        return (first, first + size) if first >= 0 else None

    def encoded(self) -> bytes:
        return encode(asdict(self))


def surrogate_name(block: Sequence[str], surrogate: Sequence[str]) -> str:
    """Return the name of the document of a block and its surrogate."""
    return hashlib.blake2b("\n".join((*block, "", *surrogate)).encode(), digest_size=16).hexdigest()


def stored_surrogates(zoo: Zoo) -> list[StoredSurrogate]:
    """Return all surrogates of a zoo. Raises ZooDamaged."""
    found = []
    for path in sorted(zoo.layout.surrogates.glob("*.json")):
        try:
            found.append(read_surrogate(path))
        except ZooDamaged:
            if path.exists():  # it was not deleted meanwhile
                raise
    return found


def surrogates_of(zoo: Zoo, name: str) -> list[StoredSurrogate]:
    """Return the surrogates of blocks of an application, the longest blocks first; an adapter has none. Raises ZooError."""
    application = zoo.chain(name)
    chain = () if any(application.deltas) else application.components
    found = [one for one in stored_surrogates(zoo) if one.place(chain) is not None]
    return sorted(found, key=lambda one: (-len(one.block), one.place(chain), -one.similarity))


def needed_surrogates(layout: Layout, alive: set[str]) -> dict[Path, StoredSurrogate]:
    """Return the surrogates whose blocks belong to applications. A damaged document counts as unneeded."""
    found = {}
    for path in sorted(layout.surrogates.glob("*.json")):
        try:
            one = read_surrogate(path)
        except ZooDamaged:
            continue
        if alive.issuperset(one.block):
            found[path] = one
    return found


def check_surrogate(layout: Layout, path: Path) -> None:
    """Check a document, and that the zoo has the components that it names, with their bytes. Raises ZooDamaged."""
    found = read_surrogate(path)
    for ids, nbytes in ((found.block, found.block_bytes), (found.surrogate, found.nbytes)):
        for id in ids:
            if not layout.component(id).is_file():
                raise ZooDamaged(path, "components of this zoo", f"the unknown {id}")
        stored = sum(read_component(layout.component(id)).nbytes for id in ids)
        if stored != nbytes:
            raise ZooDamaged(path, f"{stored} bytes", f"{nbytes}")


def read_surrogate(path: Path) -> StoredSurrogate:
    """Read a document. Raises ZooDamaged if it was altered, or holds figures that cannot be."""
    found = from_fields(StoredSurrogate, read_document(path), path)
    for id in (*found.block, *found.surrogate):
        if not is_hash(id, 32):
            raise ZooDamaged(path, "identities of 32 hexadecimal digits", repr(id)[:40])
    if path.stem != surrogate_name(found.block, found.surrogate) or not found.block or not found.surrogate:
        raise ZooDamaged(path, f"the blocks of {path.stem}", "other blocks")
    if found.made not in (PRUNED, EQUIVALENT):
        raise ZooDamaged(path, f"{PRUNED} or {EQUIVALENT}", repr(found.made)[:40])
    for name, value, least, most in _ranges(found):
        if not (math.isfinite(value) and least <= value <= most):
            raise ZooDamaged(path, f"{name} in range", f"{value:g}")
    return found


def _ranges(found: StoredSurrogate) -> Iterator[tuple[str, float, float, float]]:
    for name in ("similarity", "low"):
        yield name, getattr(found, name), -ROUNDING, 1 + ROUNDING
    yield "agreement", found.agreement, 0, 1
    yield "kl", found.kl, -ROUNDING, math.inf
    for name in ("tokens", "threads", "block_bytes"):
        yield name, getattr(found, name), 1, math.inf
    yield "nbytes", found.nbytes, 1, found.block_bytes - 1
    for name in ("block_seconds", "seconds"):
        yield name, getattr(found, name), 1e-9, math.inf
