"""Removing an application from a zoo, and garbage collection (``zoo gc``) of everything that no application needs.

An application that is being served is held (``source.Hold``) and cannot be removed, so files that a server may read again
are never deleted. ``gc`` and all other writers exclude each other, so a model that is being added is not garbage.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..gpu.regular_file import open_regular
from .disk import Disk, Step, Waiting, writing
from .equivalence.records import is_needed, stitches_used
from .equivalence.stitch_records import needed_stitches
from .errors import ZooDamaged, ZooError
from .layout import CHAIN
from .profiles import read_profile
from .surrogate.records import needed_surrogates
from .zoo import Zoo

_OURS = re.compile(r"[0-9a-f]{64}(\.safetensors)?|[0-9a-f]{32}\.json")


@dataclass(frozen=True, slots=True)
class Freed:
    """The number of files that ``gc`` deleted, and their bytes."""

    files: int
    nbytes: int


def remove(root: Path, name: str, *, waiting: Waiting | None = None, step: Step | None = None) -> None:
    """Remove an application. Its tensors stay until ``gc``.

    Raises ZooError if there is no such application, or while it is served.
    """
    with writing(root, waiting=waiting, step=step) as disk:
        folder = disk.layout.chain(name)
        if not folder.is_dir():
            Zoo(root).folder(name)  # raises an error that lists the applications
        with _alone(folder):
            disk.remove_chain(name)


def gc(root: Path, *, waiting: Waiting | None = None, step: Step | None = None) -> Freed:
    """Delete what no application needs: components, deltas, tensors, files, profiles, equivalences, surrogates, stitches.

    A surrogate is needed as long as an application has its block. Foreign files stay.

    Raises ZooDamaged if an application's needs cannot be read.
    """
    with writing(root, waiting=waiting, step=step) as disk:
        zoo, layout = Zoo(root), disk.layout
        chains = zoo.chains().values()
        parts = {id for chain in chains for id in chain.parts}
        surrogates = needed_surrogates(layout, parts)
        stand_ins = {id for one in surrogates.values() for id in one.surrogate}
        equivalences = {path: is_needed(path, parts) for path in sorted(layout.equivalences.glob("*.json"))}
        stitches = needed_stitches(layout, parts)
        joints = {one.component for document in stitches.values() for one in document.stitches}
        joints |= {id for path, needed in equivalences.items() if needed for id in stitches_used(path)}
        components = {layout.component(id) for id in parts | stand_ins | joints}
        deltas = {layout.delta(id) for chain in chains for id in filter(None, chain.deltas)}
        tensors = {layout.tensor(hash) for chain in chains for hash in zoo.tensors(chain)}
        tensors |= {layout.tensor(one.hash) for id in stand_ins for one in zoo.component(id).tensors.values()}
        tensors |= {layout.tensor(hash) for hash in _tensors_of(zoo, joints)}
        files = {layout.file(hash) for chain in chains for hash in chain.files.values()}
        profiles = sorted(layout.profiles.glob("*.json"))
        alive = {chain.components for chain in chains}
        garbage = [  # documents before what they name, so that none ever names a deleted file
            *(path for path in profiles if not _useful(path, alive)),
            *(path for path, needed in equivalences.items() if not needed),
            *(path for path in sorted(layout.surrogates.glob("*.json")) if path not in surrogates),
            *(path for path in sorted(layout.stitches.glob("*.json")) if path not in stitches),
            *_others(layout.components, components),
            *_others(layout.deltas, deltas),
            *(path for folder in sorted(layout.tensors.iterdir()) for path in _others(folder, tensors)),
            *_others(layout.files, files),
        ]
        return _delete(disk, garbage)


def _tensors_of(zoo: Zoo, stitches: Collection[str]) -> Iterator[str]:
    """Yield the tensors of stitches. A damaged stitch needs none: it can only be made again."""
    for id in stitches:
        with contextlib.suppress(ZooDamaged):
            yield from (tensor.hash for tensor in zoo.component(id).tensors.values())


def _useful(profile: Path, alive: Collection[tuple[str, ...]]) -> bool:
    """Return whether an application has the profile's components.

    A damaged profile counts as useless: it can only be measured again.
    """
    try:
        return read_profile(profile).components in alive
    except ZooDamaged:
        return False


def _others(folder: Path, needed: Collection[Path]) -> list[Path]:
    """Return unneeded files with names of ours. Foreign files stay."""
    return [path for path in sorted(folder.iterdir()) if path not in needed and _OURS.fullmatch(path.name)]


def _delete(disk: Disk, paths: list[Path]) -> Freed:
    nbytes = 0
    for path in paths:
        nbytes += path.lstat().st_size
        disk.delete(path)
    return Freed(len(paths), nbytes)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the application exclusively. A folder without a document cannot be held, so it is free."""
    try:
        fd = open_regular(folder / CHAIN)
    except FileNotFoundError:
        yield
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise ZooError(f"application {folder.name} is being served from {folder}; stop serving it first") from None
    finally:
        os.close(fd)
