"""Model folders: where a worker finds the files of a checkpoint, which the controller names by their content.

Looked at are the place that was right before, the folder that the head named, and the configured folders. On the head's
machine the head's folder needs no further proof: its tensors are compared with their hashes as they are loaded, as all are.
Any other folder is hashed once before anything is loaded from it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...gpu.errors import CheckpointError
from ...gpu.model.config import ComponentSpec, TensorRef
from ...gpu.weights.adapter import open_adapter
from ...gpu.weights.checkpoint import Checkpoint
from ...policies.control.loads import LoadBlock, ModelFiles
from ...policies.model.tiers import folder_and_layers, tier_source
from ...zoo.layout import CHAIN
from ...zoo.source import open_source

REMEDY = "copy it there, or name the folder that holds it (--set model_folders=...)"
MARKS = ("config.json", "adapter_config.json", CHAIN)  # a folder with one of these may be a checkpoint
Stamp = tuple[tuple[str, int, int], ...]  # path, bytes and time of change of each file with tensors


@dataclass(frozen=True, slots=True)
class HashedFolder:
    """A source that was hashed: its files then, its content, and the hashes of its tensors."""

    stamp: Stamp
    content: bytes
    hashes: dict[TensorRef, bytes]


class ModelFolders:
    """The folders of one worker (see the module).

    folders: configured ones, which hold folders of checkpoints, or are one, or a zoo. with_head: the head is on this
    machine.
    """

    def __init__(self, folders: Sequence[str] = (), *, with_head: bool = True) -> None:
        self._folders = [Path(folder).expanduser() for folder in folders]
        self._with_head = with_head
        self._right: dict[bytes, str] = {}  # content -> the source that had it last
        self._hashed: dict[tuple[str, bytes], HashedFolder] = {}  # by source, and content of its base

    async def read(self, block: LoadBlock, page_size: int, kv_dtype: str) -> list[ComponentSpec]:
        """Read the specs of a block's components and deltas from files. Raises CheckpointError and OSError."""
        return await asyncio.to_thread(self._specs, block, page_size, kv_dtype)

    def _specs(self, block: LoadBlock, page_size: int, kv_dtype: str) -> list[ComponentSpec]:
        base = self._open(block.base) if block.base is not None else None

        def of(checkpoint: Checkpoint) -> list[ComponentSpec]:
            return checkpoint.specs_with_ids(page_size, kv_dtype, block.ids, block.first, block.hashes, block.deltas)

        checkpoint = self._open(block.checkpoint, base, block.base.content if block.base is not None else b"", of)
        return [needed for spec in of(checkpoint) for needed in spec.loads()]

    def _open(
        self,
        files: ModelFiles,
        base: Checkpoint | None = None,
        over: bytes = b"",
        fits: Callable[[Checkpoint], object] | None = None,
    ) -> Checkpoint:
        """Open the checkpoint with this content, over ``base`` with the content ``over`` if it is an adapter.

        ``fits`` raises CheckpointError for one that cannot be it. Raises CheckpointError with the content and all places
        that were looked at.
        """
        faults: dict[str, str] = {}  # by source
        for source in self._places(files):
            try:
                found = open_source(source) if base is None else open_adapter(source, base)
                if fits is not None:
                    fits(found)
                if not self._is_right(found, source, files, over):
                    raise CheckpointError(f"{source} has another content")
            except (CheckpointError, OSError) as error:
                faults[source] = str(error)
                continue
            if files.content:
                self._right[files.content] = source
            return found
        self._right.pop(files.content, None)
        raise CheckpointError(self._fault(files, faults))

    def _fault(self, files: ModelFiles, faults: Mapping[str, str]) -> str:
        content = files.content.hex() or "unknown"
        if self._with_head and len(faults) == 1:
            (only,) = faults.values()
            return f"{only} (content {content})"
        looked = []
        for source, why in faults.items():
            folder = folder_and_layers(source)[0]
            looked.append(f"'{folder}' ({why.replace(f'{folder}/', '').replace(folder, 'it')})")
        return f"no folder here has the content {content}: {', '.join(looked)}; {REMEDY}"

    def _places(self, files: ModelFiles) -> Iterator[str]:
        """Yield the sources to look at, each once."""
        seen: set[str] = set()
        for source in self._candidates(files):
            if source not in seen:
                seen.add(source)
                yield source

    def _candidates(self, files: ModelFiles) -> Iterator[str]:
        folder, layers = folder_and_layers(files.folder)
        if files.content in self._right:
            yield self._right[files.content]
        yield files.folder
        name = Path(folder).name
        for configured in self._folders:
            inside = [configured / name, *_inside(configured), *_inside(configured / "chains")]
            for one in (configured, *inside):
                if any((one / mark).is_file() for mark in MARKS):
                    yield tier_source(str(one), layers)

    def _is_right(self, found: Checkpoint, source: str, files: ModelFiles, over: bytes) -> bool:
        if not files.content or (self._with_head and source == files.folder):
            return True
        stamp, known = _stamp(found), self._hashed.get((source, over))
        if known is None or known.stamp != stamp:
            content = found.content()
            known = self._hashed[source, over] = HashedFolder(stamp, content, dict(found.known))
        found.known.update(known.hashes)
        return known.content == files.content


def _inside(folder: Path) -> list[Path]:
    try:
        return sorted(one for one in folder.iterdir() if one.is_dir())
    except OSError:  # it is not there, or not ours to read
        return []


def _stamp(checkpoint: Checkpoint) -> Stamp:
    """Return what changes when a file with tensors does."""
    every = (*checkpoint.parts, *checkpoint.deltas.values())
    paths = sorted({ref.path for _, roles in every for ref in roles.values()})
    stats = [(path, os.stat(path)) for path in paths]
    return tuple((path, stat.st_size, stat.st_mtime_ns) for path, stat in stats)
