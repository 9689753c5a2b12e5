"""Records of components and applications in a zoo's JSON files. Reads; writes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..gpu.model.config import ComponentConfig, GenerationDefaults, ModelConfig, TensorRef
from ..gpu.model.deltas import DeltaConfig
from ..gpu.model.fields import shown
from ..gpu.weights.checkpoint import KINDS
from ..gpu.weights.tensor_files import ITEM_BYTES
from ..policies.model.confidence import Threshold
from .documents import encode, from_fields, read_document
from .errors import ZooDamaged
from .layout import CHAIN, is_hash, tensor_bytes

DELTA = "delta"
CONFIGS: dict[str, type[ComponentConfig | DeltaConfig]] = {kind.value: config for config, kind in KINDS.items()}
CONFIGS[DELTA] = DeltaConfig


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A stored tensor. ``hash`` is over type, shape and bytes (``gpu/weights/identity.py``), in hexadecimal digits."""

    hash: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return tensor_bytes(self.dtype, self.shape)


@dataclass(frozen=True, slots=True)
class StoredComponent:
    """A stored component or delta. ``id`` is in hexadecimal digits; ``tensors`` are by role.

    With a ``DeltaConfig`` it is the delta of an adapter for one component.
    """

    id: str
    config: ComponentConfig | DeltaConfig
    tensors: dict[str, StoredTensor]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def encoded(self) -> bytes:
        tensors = {role: asdict(tensor) for role, tensor in self.tensors.items()}
        kind = DELTA if isinstance(self.config, DeltaConfig) else KINDS[type(self.config)].value
        return encode({"id": self.id, "kind": kind, "config": asdict(self.config), "tensors": tensors})


@dataclass(frozen=True, slots=True)
class StoredExit:
    """An exit of a stored family: its layers, the identity of its head in hexadecimal digits, and its rule for ``auto``."""

    layers: int
    head: str
    auto: Threshold | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredChain:
    """A stored application.

    ``base`` is the application that it is made from, which may have been removed since; "" for none. ``components`` are
    identities in order, in hexadecimal digits. ``deltas`` has one entry for each component, "" where an adapter changes
    nothing; it is empty if there is no delta. ``exits`` are a family's, lowest first. ``files`` maps names to hashes.
    ``source`` is where it was added from.
    """

    application: str
    base: str
    components: tuple[str, ...]
    deltas: tuple[str, ...] = ()
    exits: tuple[StoredExit, ...] = ()
    model: ModelConfig
    generation: GenerationDefaults
    files: dict[str, str]
    source: str

    @property
    def parts(self) -> tuple[str, ...]:
        """The identities of all its components: the chain's, and the heads of its exits."""
        return (*self.components, *(one.head for one in self.exits))

    def encoded(self) -> bytes:
        """Return the document. Without exits it is as earlier releases write and read it."""
        values = asdict(self)
        return encode(values if self.exits else {name: value for name, value in values.items() if name != "exits"})


def stored_tensor(ref: TensorRef, hash: bytes) -> StoredTensor:
    return StoredTensor(hash.hex(), ref.dtype, ref.shape)


def read_component(path: Path) -> StoredComponent:
    """Read a component or a delta. Raises ZooDamaged and OSError."""
    return component_from(read_document(path), path)


def component_from(values: dict[str, Any], path: Path) -> StoredComponent:
    """Return the component or delta of a document; ``path`` is its place in a zoo. Raises ZooDamaged."""
    if (id := values.get("id")) != path.stem:
        raise ZooDamaged(path, f"component {path.stem}", shown(id))
    kind = values.get("kind")
    if not isinstance(kind, str) or kind not in CONFIGS:
        raise ZooDamaged(path, f"a kind of {', '.join(CONFIGS)}", shown(kind))
    if (kind == DELTA) != (path.parent.name == "deltas"):
        raise ZooDamaged(path, "a delta" if kind != DELTA else "a component", kind)
    tensors = values.get("tensors")
    if not isinstance(tensors, dict):
        raise ZooDamaged(path, "tensors by role", shown(tensors))
    found = {role: from_fields(StoredTensor, tensor, path) for role, tensor in tensors.items()}
    _check_hashes(path, (tensor.hash for tensor in found.values()), 64)
    for tensor in found.values():
        if tensor.dtype not in ITEM_BYTES:
            raise ZooDamaged(path, f"a type of {', '.join(ITEM_BYTES)}", shown(tensor.dtype))
    config: Any = from_fields(CONFIGS[kind], values.get("config"), path)
    return StoredComponent(path.stem, config, found)


def read_chain(folder: Path) -> StoredChain:
    """Read the application in a folder of a zoo. Raises ZooDamaged and OSError."""
    return chain_from(read_document(folder / CHAIN), folder)


def chain_from(values: dict[str, Any], folder: Path) -> StoredChain:
    """Return the application of a document; ``folder`` is its place in a zoo. Raises ZooDamaged."""
    path = folder / CHAIN
    chain = from_fields(StoredChain, values, path)
    if chain.application != folder.name:
        raise ZooDamaged(path, f"application {folder.name}", shown(chain.application))
    _check_hashes(path, chain.parts, 32)
    _check_hashes(path, filter(None, chain.deltas), 32)
    if chain.deltas and len(chain.deltas) != len(chain.components):
        raise ZooDamaged(path, f"{len(chain.components)} deltas", f"{len(chain.deltas)}")
    _check_hashes(path, chain.files.values(), 64)
    return chain


def _check_hashes(path: Path, hashes: Iterable[str], digits: int) -> None:
    """Check that these are hashes, because they become names of files."""
    for hash in hashes:
        if not is_hash(hash, digits):
            raise ZooDamaged(path, f"hashes of {digits} hexadecimal digits", shown(hash))
