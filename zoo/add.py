"""Adding a model to a zoo: stores missing tensors, then its components, and last the application that names them.

The model is hashed before the zoo is locked. Each tensor is copied in pieces and hashed again on the way, so that a file
that changes meanwhile is noticed and memory stays bounded.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..gpu.errors import CheckpointError
from ..gpu.model.config import ComponentConfig, TensorRef
from ..gpu.model.deltas import DeltaConfig
from ..gpu.model.fields import shown
from ..gpu.weights.adapter import is_adapter, trained_on
from ..gpu.weights.checkpoint import Checkpoint, locate
from ..gpu.weights.checkpoint_files import OF_FRONT, CheckpointFiles
from ..gpu.weights.identity import begin_hash, pieces
from ..policies.cluster.adapter_base import AmbiguousBase, WholeModel, choose_base
from .disk import Disk, Step, Waiting, writing
from .errors import StorageError, ZooError
from .layout import CHAIN, Layout, check_name, tensor_header
from .records import StoredChain, StoredComponent, StoredExit, StoredTensor, read_chain, stored_tensor
from .source import open_source
from .zoo import Zoo

Progress = Callable[[str, int, int], None]  # current activity, bytes done, bytes in all


@dataclass(frozen=True, slots=True)
class AddedModel:
    """The result of adding a model, in bytes of raw tensors, each counted once.

    ``base`` is the application that shares most with it; "" for none.
    """

    application: str
    base: str
    nbytes: int
    stored: int
    tensors: int  # number of tensors that were stored
    there: bool  # it existed under this name already, so nothing changed
    adapter: bool = False  # it is an adapter of ``base``

    @property
    def shared(self) -> float:
        """The fraction, 0 to 1, that was in the zoo before."""
        return 1 - self.stored / self.nbytes if self.nbytes else 1.0


def add(
    root: Path,
    source: str,
    name: str,
    *,
    base: str = "",
    progress: Progress | None = None,
    waiting: Waiting | None = None,
    step: Step | None = None,
) -> AddedModel:
    """Add the model of a folder, hub id or application of a zoo under ``name``. Make the zoo if there is none.

    ``base`` is the application of this zoo that the model is made from. "" means, for an adapter, the one that it names or
    the only one; for a whole model, the one that shares most with it. Adding a model again under the same name changes
    nothing, but restores missing files.

    Raises CheckpointError, ZooError and StorageError; the zoo is unchanged then.
    """
    check_name(name)
    over = _base(root, source, base)
    base = over or base
    report = progress or (lambda what, done, total: None)
    checkpoint = open_source(source, str(Zoo(root).folder(over)) if over else "")
    hashes = checkpoint.hashes(lambda done, total: report("hashing", done, total))
    wanted = {hashes[ref].hex(): ref for ref in hashes}
    tensors = {hash: stored_tensor(ref, hashes[ref]) for hash, ref in wanted.items()}
    texts = _files(checkpoint)
    with writing(root, create=True, waiting=waiting, step=step) as disk:
        layout, zoo = disk.layout, Zoo(root)
        if base:
            zoo.folder(base)  # it may have been removed meanwhile
        chain = StoredChain(
            application=name,
            base=base or zoo.nearest(tensors, besides=name),
            components=tuple(id.hex() for id in checkpoint.ids(hashes)),
            deltas=tuple(id.hex() for id in checkpoint.delta_ids(hashes)) if checkpoint.deltas else (),
            exits=_exits(checkpoint, hashes),
            model=checkpoint.config,
            generation=checkpoint.generation,
            files={file: _hash(text) for file, text in texts.items()},
            source=str(source),
        )
        there = _there(layout, chain)
        missing = {hash: ref for hash, ref in wanted.items() if not _stored(layout, tensors[hash])}
        for hash in wanted:
            disk.rely_on(layout.tensor(hash))
        _check_room(root, sum(ref.nbytes for ref in missing.values()))
        _store_tensors(disk, missing, report)
        _store_components(disk, chain, checkpoint, {ref: tensors[hash.hex()] for ref, hash in hashes.items()})
        for text in texts.values():
            _store(disk, layout.file(_hash(text)), text)
        if there:
            disk.sync()
        else:
            disk.stage_chain(chain.encoded(), {file: layout.file(hash) for file, hash in chain.files.items()})
            disk.commit_chain(name)
    new = sum(ref.nbytes for ref in missing.values())
    return AddedModel(name, chain.base, sum(t.nbytes for t in tensors.values()), new, len(missing), there, bool(over))


def _base(root: Path, source: str, base: str) -> str:
    """Return the application to put an adapter on; "" for a whole model.

    Raises ZooError if there is no such base, or several possible ones.
    """
    zoo = Zoo(root) if Layout(root).mark.is_file() else None
    names = zoo.names() if zoo is not None else []
    there = f"there are: {', '.join(names) or 'none'}"
    if base and base not in names:
        raise ZooError(f"zoo {root} has no application {shown(base)}; {there}; add the one that --base names first")
    if not is_adapter(folder := locate(source)):
        return ""
    if base:
        return base
    chains = zoo.chains() if zoo is not None else {}
    wholes = [WholeModel(name, os.path.realpath(root / "chains" / name)) for name, one in chains.items() if not one.deltas]
    try:
        chosen = choose_base(trained_on(folder), wholes)
    except AmbiguousBase as ambiguous:
        raise ZooError(f"{source} is an adapter; {ambiguous.why}; name its base with --base") from None
    if chosen is None:
        raise ZooError(f"{source} is an adapter; add the model that it was trained on first; {there}")
    return chosen.model


def _exits(checkpoint: Checkpoint, hashes: Mapping[TensorRef, bytes]) -> tuple[StoredExit, ...]:
    ids = checkpoint.exit_ids(hashes)
    return tuple(StoredExit(layers, id.hex(), checkpoint.thresholds.get(layers)) for layers, id in ids.items())


def _there(layout: Layout, chain: StoredChain) -> bool:
    """Return whether the application is there unchanged. Raises ZooError if another one has the name."""
    folder = layout.chain(chain.application)
    if not (folder / CHAIN).is_file():
        return False
    other = read_chain(folder)
    if (other.parts, other.exits, other.deltas, other.files) != (chain.parts, chain.exits, chain.deltas, chain.files):
        raise ZooError(
            f"zoo {layout.root} has another application {chain.application}, added from {shown(other.source)}; "
            "choose another name, or remove that one first"
        )
    return True


def _stored(layout: Layout, tensor: StoredTensor) -> bool:
    """Return whether a tensor's file is there, as far as its size tells."""
    path = layout.tensor(tensor.hash)
    size = len(tensor_header(tensor.dtype, tensor.shape)) + tensor.nbytes
    return path.is_file() and not path.is_symlink() and path.stat().st_size == size


def _check_room(root: Path, nbytes: int) -> None:
    room = os.statvfs(root)
    if nbytes > (free := room.f_bavail * room.f_frsize):
        raise StorageError(f"zoo {root} needs {nbytes} bytes more and {free} are free there; free some room on that disk")


def _store_tensors(disk: Disk, missing: dict[str, TensorRef], report: Progress) -> None:
    total, done = sum(ref.nbytes for ref in missing.values()), 0

    def content(hash: str, ref: TensorRef) -> Iterator[bytes | memoryview]:
        nonlocal done
        yield tensor_header(ref.dtype, ref.shape)
        digest = begin_hash(ref.dtype, ref.shape)
        try:
            for piece in pieces(ref):
                digest.update(piece)
                yield piece
                done += len(piece)
                report("storing", done, total)
        except OSError as error:  # an error of the model's file; the zoo's errors are raised where it is written
            raise ZooError(f"{ref.path} cannot be read ({error.strerror}); check the model's files") from None
        if digest.hexdigest() != hash:
            raise ZooError(f"{ref.path}: tensor {ref.name} has changed while it was added; add it again when it is complete")

    for hash, ref in missing.items():
        path = disk.layout.tensor(hash)
        disk.folder(path.parent)
        disk.write(path, content(hash, ref))


def _store_components(
    disk: Disk, chain: StoredChain, checkpoint: Checkpoint, tensors: dict[TensorRef, StoredTensor]
) -> None:
    def store(path: Path, id: str, config: ComponentConfig | DeltaConfig, roles: dict[str, TensorRef]) -> None:
        used = {role: tensors[ref] for role, ref in roles.items()}
        _store(disk, path, StoredComponent(id, config, used).encoded())

    for id, part in zip(chain.components, checkpoint.parts, strict=True):
        store(disk.layout.component(id), id, *part)
    for one in chain.exits:
        store(disk.layout.component(one.head), one.head, checkpoint.parts[-1][0], checkpoint.exits[one.layers])
    for place, change in checkpoint.deltas.items():
        store(disk.layout.delta(chain.deltas[place]), chain.deltas[place], *change)


def _store(disk: Disk, path: Path, content: bytes) -> None:
    """Write a file, unless it is there with this content."""
    disk.rely_on(path)
    if not path.is_file() or path.read_bytes() != content:
        disk.write(path, [content])


def _files(checkpoint: Checkpoint) -> dict[str, bytes]:
    """Return the files of a model's folders that are read when it is served; an adapter's own override its base's."""
    folders = dict.fromkeys((checkpoint.source, checkpoint.path))
    for path in (folder / name for folder in folders for name in OF_FRONT):
        if path.is_symlink() and not path.is_file():
            raise ZooError(f"{path} is a link that leads to no file; mend it, or download the checkpoint again")
    try:
        return CheckpointFiles(*folders).flattened(OF_FRONT)
    except CheckpointError as error:
        raise ZooError(str(error)) from None


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=32).hexdigest()
