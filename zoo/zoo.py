"""Zoo, a content-addressed store of models, as its readers see it: applications, their components, and what they share.

Reads JSON alone, without a lock: the files that an application names exist before it, and are not deleted while it exists.
``add.py`` and ``remove.py`` make changes, ``verify.py`` checks tensors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ..gpu.model.deltas import DeltaConfig
from ..gpu.model.fields import shown
from ..gpu.weights.checkpoint import component_of
from ..policies.model.chain import Block, Component
from ..policies.model.partition import cut_blocks
from .disk import check_zoo, stamp
from .errors import ZooDamaged, ZooError
from .layout import CHAIN, Layout
from .records import StoredChain, StoredComponent, StoredTensor, read_chain, read_component

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Listing:
    """Sizes of an application in bytes of raw tensors. ``owned`` counts the ones that no other application needs."""

    application: str
    base: str
    nbytes: int
    owned: int

    @property
    def shared(self) -> float:
        """The shared fraction, 0 to 1."""
        return 1 - self.owned / self.nbytes if self.nbytes else 0.0


@dataclass(frozen=True, slots=True)
class ListedBlock:
    """Components ``first`` .. ``last`` (exclusive) of an application, and the other applications with them at this depth."""

    block: Block
    first: int
    last: int
    others: tuple[str, ...]


class Zoo:
    """The zoo in folder ``root``. Raises ZooError if the folder is not a zoo."""

    def __init__(self, root: str | Path) -> None:
        self.layout = Layout(Path(root))
        check_zoo(self.layout)
        self._parts: dict[Path, StoredComponent] = {}

    def names(self) -> list[str]:
        """Return the names of all applications."""
        return sorted(folder.name for folder in self.layout.chains.iterdir() if (folder / CHAIN).is_file())

    def folder(self, name: str) -> Path:
        """Return the folder of an application, from which a server can serve it. Raises ZooError if there is none."""
        folder = self.layout.chain(name)
        if not (folder / CHAIN).is_file():
            there = ", ".join(self.names()) or "none"
            raise ZooError(f"zoo {self.layout.root} has no application {shown(name)}; there are: {there}")
        return folder

    def chain(self, name: str) -> StoredChain:
        return self._settled(lambda: read_chain(self.folder(name)))

    def chains(self) -> dict[str, StoredChain]:
        """Return all applications."""
        return self._settled(lambda: {name: read_chain(self.layout.chain(name)) for name in self.names()})

    def component(self, id: str) -> StoredComponent:
        """Return a component. Raises ZooDamaged if it is missing."""
        return self._read(self.layout.component(id))

    def delta(self, id: str) -> StoredComponent:
        """Return a delta. Raises ZooDamaged if it is missing."""
        return self._read(self.layout.delta(id))

    def _read(self, path: Path) -> StoredComponent:
        if path not in self._parts:
            self._parts[path] = read_component(path)
        return self._parts[path]

    def tensors(self, chain: StoredChain) -> dict[str, StoredTensor]:
        """Return the tensors that an application needs, each once, by hash."""
        parts = (*map(self.component, chain.parts), *map(self.delta, filter(None, chain.deltas)))
        return {tensor.hash: tensor for part in parts for tensor in part.tensors.values()}

    def listings(self) -> list[Listing]:
        return self._settled(self._listings)

    def _listings(self) -> list[Listing]:
        chains = self.chains()
        needs = {name: self.tensors(chain) for name, chain in chains.items()}
        holders = Counter(hash for tensors in needs.values() for hash in tensors)
        return [
            Listing(
                name,
                chains[name].base,
                sum(tensor.nbytes for tensor in tensors.values()),
                sum(tensor.nbytes for hash, tensor in tensors.items() if holders[hash] == 1),
            )
            for name, tensors in needs.items()
        ]

    def blocks(self, name: str) -> list[ListedBlock]:
        """Return the blocks of an application. It is cut only where the applications of the zoo differ."""
        return self._settled(lambda: self._blocks(name))

    def components(self, name: str) -> list[Component]:
        """Return the components of an application. Raises ZooError."""
        return self._settled(lambda: self._components(self.chain(name)))

    def _blocks(self, name: str) -> list[ListedBlock]:
        self.folder(name)
        components = {other: self._components(chain) for other, chain in self.chains().items()}
        found, first = [], 0
        for block in cut_blocks(components)[name]:
            last = first + len(block.components)
            others = (o for o, parts in components.items() if o != name and tuple(parts[first:last]) == block.components)
            found.append(ListedBlock(block, first, last, tuple(others)))
            first = last
        return found

    def nearest(self, tensors: Mapping[str, StoredTensor], besides: str) -> str:
        """Return the application that shares most bytes with these tensors, the smallest one among equals; "" for none.

        Adapters are left out, because each is made from another application itself.
        """
        best, least = "", (0, 0)
        for name, chain in self.chains().items():
            if name == besides or any(chain.deltas):
                continue
            own = self.tensors(chain)
            shared = sum(tensors[hash].nbytes for hash in own.keys() & tensors.keys())
            near = (-shared, sum(tensor.nbytes for tensor in own.values()))
            if shared and near < least:
                best, least = name, near
        return best

    def _settled(self, read: Callable[[], T]) -> T:
        """Return the result of a read of several files, repeated if applications were added or removed during it."""
        while True:
            before = [stamp(self.layout.chain(name)) for name in self.names()]
            try:
                return read()
            except ZooDamaged:
                if before == [stamp(self.layout.chain(name)) for name in self.names()]:
                    raise

    def _components(self, chain: StoredChain) -> list[Component]:
        found = []
        for id, delta in zip(chain.components, chain.deltas or [""] * len(chain.components), strict=True):
            stored = self.component(id)
            assert not isinstance(stored.config, DeltaConfig), "it would not have been read"
            component = component_of(stored.config, bytes.fromhex(id), stored.nbytes)
            found.append(component.adapted(bytes.fromhex(delta), self.delta(delta).nbytes) if delta else component)
        return found
