"""Reads everything in a zoo again and compares it with what was stored: every byte of every file counts.

Needs no lock. What a writer adds or deletes meanwhile is no fault: only what an application that is still there names must
be there.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from blockwright.gpu.errors import CheckpointError
from blockwright.gpu.weights.identity import hash_tensor
from blockwright.gpu.weights.tensor_files import ITEM_BYTES, read_header
from blockwright.zoo.documents import read_document
from blockwright.zoo.errors import ZooDamaged, ZooError
from blockwright.zoo.layout import CHAIN, TENSOR_NAME, Layout, data_offset, tensor_header
from blockwright.zoo.records import StoredChain, StoredTensor, read_chain, read_component
from blockwright.zoo.source import check_links, place

Progress = Callable[[int, int], None]  # bytes hashed, bytes in all


@dataclass(frozen=True, slots=True)
class Fault:
    """A file that is not as it was stored, and the applications that cannot be trusted therefore."""

    path: Path
    expected: str
    found: str
    chains: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verified:
    """faults: in the order of documents, tensors, files. nbytes: of tensors that were hashed."""

    faults: tuple[Fault, ...]
    chains: int
    tensors: int
    nbytes: int


def verify(root: Path, progress: Progress | None = None) -> Verified:
    """Raises ZooError when the folder is no zoo at all."""
    layout = Layout(root)
    if not layout.mark.is_file():
        raise ZooError(f"{root} is no zoo, it has no {layout.mark.name}; name the folder of a zoo")
    return _Verification(layout).run(progress or (lambda done, total: None))


class _Verification:
    """One run. Who needs a file is collected on the way: chains, then components, then tensors and files."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.faults: list[Fault] = []
        self.needed: dict[Path, set[str]] = defaultdict(set)  # by which applications
        self.claims: dict[Path, StoredTensor] = {}  # what components say of them

    def run(self, progress: Progress) -> Verified:
        chains = self._chains()
        self._mark(chains)
        self._components(chains)
        present = sorted(path for folder in self.layout.tensors.glob("*") for path in folder.glob("*"))
        total = sum(path.lstat().st_size for path in present)
        hashed = 0
        for path in present:
            size = self._tensor(path)
            hashed += size
            progress(hashed, total)
        for path in sorted(self.layout.files.glob("*")):
            self._file(path)
        self._missing()
        return Verified(tuple(self.faults), len(chains), len(present), hashed)

    def _chains(self) -> dict[str, StoredChain]:
        found = {}
        for folder in sorted(self.layout.chains.glob("*")):
            try:
                chain = read_chain(folder)
                check_links(self.layout, chain)
            except (ZooError, OSError) as error:
                if folder.exists():
                    self._fault(folder / CHAIN, error, {folder.name})
                continue
            found[folder.name] = chain
            for hash in chain.files.values():
                self.needed[self.layout.file(hash)].add(folder.name)
        return found

    def _mark(self, chains: Iterable[str]) -> None:
        try:
            read_document(self.layout.mark)
        except (ZooError, OSError) as error:
            self._fault(self.layout.mark, error, set(chains))

    def _components(self, chains: dict[str, StoredChain]) -> None:
        for name, chain in chains.items():
            for id in chain.components:
                self.needed[self.layout.component(id)].add(name)
        for path in sorted(self.layout.components.glob("*")):
            users = self.needed.get(path, set())
            try:
                for tensor in read_component(path).tensors.values() if users else ():
                    self.needed[self.layout.tensor(tensor.hash)] |= users
                    self.claims[self.layout.tensor(tensor.hash)] = tensor
            except (ZooError, OSError) as error:
                if path.exists():
                    self._fault(path, error, users)

    def _tensor(self, path: Path) -> int:
        """Bytes that were hashed."""
        users = self.needed.get(path, set())
        try:
            tensors = read_header(path)
            ref = tensors.get(TENSOR_NAME)
            if path.is_symlink() or len(tensors) != 1 or ref is None or ref.dtype not in ITEM_BYTES:
                raise ZooDamaged(path, f"a file with one tensor, called {TENSOR_NAME}", ", ".join(tensors) or "none")
            header = tensor_header(ref.dtype, ref.shape)
            with path.open("rb") as file:
                if file.read(len(header)) != header or ref.offset != data_offset(ref.dtype, ref.shape):
                    raise ZooDamaged(path, f"the header of {ref.dtype} {list(ref.shape)}", "another header")
            if (size := path.stat().st_size) != len(header) + ref.nbytes:
                raise ZooDamaged(path, f"{len(header) + ref.nbytes} bytes", f"{size}")
            if (found := hash_tensor(ref).hex()) != path.stem:
                raise ZooDamaged(path, f"the hash {path.stem}", found)
            if path in self.claims:
                place(self.layout, self.claims[path])
        except (CheckpointError, OSError) as error:
            if path.exists():
                self._fault(path, error, users)
            return 0
        return ref.nbytes

    def _file(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32)).hexdigest()
            if path.is_symlink() or found != path.name:
                raise ZooDamaged(path, f"the hash {path.name}", "a link" if path.is_symlink() else found)
        except (ZooError, OSError) as error:
            if path.exists():
                self._fault(path, error, self.needed.get(path, set()))

    def _missing(self) -> None:
        for path, users in sorted(self.needed.items()):
            there = {name for name in users if (self.layout.chain(name) / CHAIN).exists()}
            if there and not path.exists():
                self._fault(path, ZooDamaged(path, "a file", "none"), there)

    def _fault(self, path: Path, error: Exception, users: set[str]) -> None:
        if isinstance(error, ZooDamaged):
            fault = Fault(error.path, error.expected, error.found, tuple(sorted(users)))
        else:
            fault = Fault(path, "what was stored", str(error), tuple(sorted(users)))
        self.faults.append(fault)
