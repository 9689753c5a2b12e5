"""Verification of a zoo: reads everything again and compares every byte of every file with its hash.

Needs no lock. Files that a writer adds or deletes meanwhile are no fault: only what a still existing application names must
be there.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..gpu.errors import CheckpointError
from ..gpu.regular_file import open_regular
from ..gpu.weights.identity import NotFinite, hash_tensor
from ..gpu.weights.tensor_files import ITEM_BYTES, read_header
from .disk import check_zoo, stamp
from .equivalence.records import check_equivalences
from .equivalence.stitch_records import check_stitches, needed_stitches
from .errors import ZooDamaged, ZooError
from .layout import TENSOR_NAME, Layout, tensor_header
from .profiles import read_profile
from .records import StoredChain, StoredTensor, read_chain, read_component
from .source import check_links, place
from .surrogate.records import check_surrogate, needed_surrogates

Progress = Callable[[int, int], None]  # bytes hashed, bytes in all


@dataclass(frozen=True, slots=True)
class AlteredFile:
    """An altered file, and the applications that cannot be trusted because of it."""

    path: Path
    expected: str
    found: str
    chains: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of a verification.

    ``faults`` are in the order of documents, tensors, files. ``nbytes`` counts the tensors' files.
    """

    faults: tuple[AlteredFile, ...]
    chains: int
    tensors: int
    nbytes: int


def verify(root: Path, progress: Progress | None = None) -> Verified:
    """Verify a zoo. Raises ZooError if the folder is not a zoo at all."""
    layout = Layout(root)
    if not layout.mark.is_file():
        raise ZooError(f"{root} is not a zoo: it has no {layout.mark.name}; name the folder of a zoo")
    return _Verification(layout).run(progress or (lambda done, total: None))


class _Verification:
    """One run. The users of each file are collected on the way: chains, then components, then tensors and files."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.faults: list[AlteredFile] = []
        self.needed: dict[Path, set[str]] = defaultdict(set)  # file -> applications that need it
        # folders of applications, with their stamps when they were read
        self.read: dict[Path, tuple[int, int, int] | None] = {}
        self.claims: dict[Path, StoredTensor] = {}  # the tensors as components describe them

    def run(self, progress: Progress) -> Verified:
        chains = self._chains()
        self._check(self.layout.mark, lambda path: check_zoo(self.layout), chains)
        self._surrogates(chains)
        self._components()
        sizes = {path: found[2] for path in self.layout.tensors.glob("*/*") if (found := stamp(path))}
        total, done = sum(sizes.values()), 0
        for path, size in sorted(sizes.items()):
            self._check(path, self._tensor, self.needed.get(path, ()))
            done += size
            progress(done, total)
        for path in sorted(self.layout.profiles.glob("*.json")):
            self._check(path, read_profile, ())
        for path in sorted(self.layout.equivalences.glob("*.json")):
            self._check(path, lambda path: check_equivalences(self.layout, path), ())
        for path in sorted(self.layout.surrogates.glob("*.json")):
            self._check(path, lambda path: check_surrogate(self.layout, path), ())
        for path in sorted(self.layout.stitches.glob("*.json")):
            self._check(path, lambda path: check_stitches(self.layout, path), ())
        for path in sorted(self.layout.files.glob("*")):
            self._check(path, self._file, self.needed.get(path, ()))
        self._missing()
        return Verified(tuple(self.faults), len(chains), len(sizes), total)

    def _chains(self) -> dict[str, StoredChain]:
        found = {}

        def look(folder: Path) -> None:
            self.read[folder] = stamp(folder)
            chain = read_chain(folder)
            check_links(self.layout, chain)
            found[folder.name] = chain

        for folder in sorted(self.layout.chains.glob("*")):
            self._check(folder, look, {folder.name})
        for name, chain in found.items():
            deltas = map(self.layout.delta, filter(None, chain.deltas))
            files = map(self.layout.file, chain.files.values())
            for path in (*map(self.layout.component, chain.parts), *deltas, *files):
                self.needed[path].add(name)
        alive = {id: name for name, chain in found.items() for id in chain.parts}
        for document in needed_stitches(self.layout, set(alive)).values():
            users = {alive[document.components[-1]], alive[document.others[-1]]}
            for one in document.stitches:
                self.needed[self.layout.component(one.component)] |= users
        return found

    def _surrogates(self, chains: Mapping[str, StoredChain]) -> None:
        """Count the components of surrogates as needed by the applications that have their blocks."""
        parts = {id for chain in chains.values() for id in chain.parts}
        for one in needed_surrogates(self.layout, parts).values():
            users = {name for name, chain in chains.items() if one.place(chain.components) is not None}
            for id in one.surrogate:
                self.needed[self.layout.component(id)] |= users

    def _components(self) -> None:
        def look(path: Path) -> None:
            users = self.needed.get(path, set())
            for tensor in read_component(path).tensors.values() if users else ():
                self.needed[self.layout.tensor(tensor.hash)] |= users
                self.claims[self.layout.tensor(tensor.hash)] = tensor

        for path in sorted((*self.layout.components.glob("*"), *self.layout.deltas.glob("*"))):
            self._check(path, look, self.needed.get(path, ()))

    def _tensor(self, path: Path) -> None:
        tensors = read_header(path)
        ref = tensors.get(TENSOR_NAME)
        if path.is_symlink() or len(tensors) != 1 or ref is None or ref.dtype not in ITEM_BYTES:
            raise ZooDamaged(path, f"a file with one tensor, called {TENSOR_NAME}", ", ".join(tensors) or "none")
        header = tensor_header(ref.dtype, ref.shape)
        with open(open_regular(path), "rb") as file:
            if file.read(len(header)) != header:
                raise ZooDamaged(path, f"the header of {ref.dtype} {list(ref.shape)}", "another header")
        if (size := path.stat().st_size) != len(header) + ref.nbytes:
            raise ZooDamaged(path, f"{len(header) + ref.nbytes} bytes", f"{size}")
        try:
            found, garbage = hash_tensor(ref), None
        except NotFinite as error:  # added by an older version, if its hash is right
            found, garbage = error.hash, error
        if found.hex() != path.stem:
            raise ZooDamaged(path, f"the hash {path.stem}", found.hex())
        if garbage is not None:
            raise ZooDamaged(path, "finite values", "NaN or infinity, or 1.8e19 and more")
        if path in self.claims:
            place(self.layout, self.claims[path])

    def _file(self, path: Path) -> None:
        with open(open_regular(path), "rb") as file:
            found = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32)).hexdigest()
        if path.is_symlink() or found != path.name:
            raise ZooDamaged(path, f"the hash {path.name}", "a link" if path.is_symlink() else found)

    def _check(self, path: Path, look: Callable[[Path], object], users: Iterable[str]) -> None:
        """Check a file, and again if it was replaced meanwhile. A deleted one is no fault here."""
        while True:
            before = stamp(path)
            try:
                look(path)
                return None
            except (CheckpointError, OSError) as error:
                if before is not None and stamp(path) == before:
                    return self._fault(path, error, users)
                if stamp(path) is None:
                    return None

    def _missing(self) -> None:
        """Report missing files that are needed by applications that have existed all the time."""
        for path, users in sorted(self.needed.items()):
            if not path.exists():
                folders = [self.layout.chain(name) for name in users]
                if there := [folder.name for folder in folders if stamp(folder) == self.read[folder]]:
                    self._fault(path, ZooDamaged(path, "a file", "none"), there)

    def _fault(self, path: Path, error: Exception, users: Iterable[str]) -> None:
        if isinstance(error, ZooDamaged):
            fault = AlteredFile(error.path, error.expected, error.found, tuple(sorted(users)))
        else:
            fault = AlteredFile(path, "what was stored", str(error), tuple(sorted(users)))
        self.faults.append(fault)
