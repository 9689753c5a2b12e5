"""The small files that a gateway on another machine gets from the head: of models, and the ones that settings name.

A file is known by its hash, so equal ones travel once, and one that changed on the way is noticed. It reads files and
decides nothing.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ...gpu.errors import CheckpointError
from ...gpu.model.config import ModelConfig
from ...gpu.regular_file import read_regular
from ...gpu.weights.checkpoint import Checkpoint
from ...gpu.weights.checkpoint_files import LONGEST_TEXT, MODULES, OF_FRONT, flattened_modules
from ...zoo.source import open_source
from ..settings.settings import Settings

PIECE = 1 << 20  # bytes of a file in one message
OF_SETTINGS = ("tls_cert", "tls_key", "profile")  # settings that name a file which a gateway reads
TURNS = "turns."  # before the model id of a turn template


@dataclass(frozen=True, slots=True)
class FolderFiles:
    """The files of one folder of a model. files: name -> hash."""

    folder: str
    files: dict[str, str]


@dataclass(frozen=True, slots=True)
class FolderListing:
    """Everything that a gateway needs of a model whose folders it does not have.

    folders: an adapter's first, its base's last. config, embeds: of the base, whose parameters say them.
    """

    folders: list[FolderFiles]
    config: ModelConfig
    embeds: bool


class FrontFiles:
    """The files that may be given away: of models that are served, and the ones that settings name.

    held: the checkpoints that are served, by model id.
    """

    def __init__(self, settings: Settings, held: Mapping[str, Checkpoint]) -> None:
        self._held = held
        self._named = {name: path for name in OF_SETTINGS if (path := settings.value(name))}
        self._named |= {f"{TURNS}{model}": path for model, path in settings.models.turns.items()}

    def named(self) -> dict[str, str]:
        """Return the hashes of the files that settings name, by setting. Raises OSError."""
        return {name: digest(self._setting(name)) for name in self._named}

    def of_model(self, folders: Collection[str]) -> FolderListing:
        """Describe the files of a model. Raises CheckpointError, OSError, PermissionError for folders of no served model."""
        self._check(folders)
        found = [FolderFiles(folder, {name: digest(raw) for name, raw in _read_all(Path(folder))}) for folder in folders]
        base = open_source(found[-1].folder)
        return FolderListing(found, base.config, base.embeds)

    def content(self, folder: str, name: str) -> bytes:
        """Return a file of a model's folder, or with no folder the one that a setting names. Raises as ``of_model`` does."""
        if not folder:
            return self._setting(name)
        self._check([folder])
        if name not in OF_FRONT:
            raise PermissionError(f"{name[:64]} is no file that a gateway needs")
        return _read(Path(folder), name)

    def _setting(self, name: str) -> bytes:
        if name not in self._named:
            raise PermissionError(f"no setting {name[:64]} names a file for gateways")
        return read_regular(Path(self._named[name]).expanduser(), LONGEST_TEXT)

    def _check(self, folders: Collection[str]) -> None:
        """Raise PermissionError for a folder of no served model: a gateway gets no other file of this machine."""
        served = {os.path.realpath(path) for one in self._held.values() for path in (one.path, one.source)}
        for folder in folders:
            if os.path.realpath(folder) not in served:
                raise PermissionError(f"{folder[:200]} is the folder of no model that is served")
        if not folders:
            raise PermissionError("a model without a folder")


def digest(raw: bytes) -> str:
    return hashlib.blake2b(raw, digest_size=32).hexdigest()


def _read_all(folder: Path) -> Iterator[tuple[str, bytes]]:
    for name in OF_FRONT:
        if (folder / name).is_file():
            yield name, _read(folder, name)


def _read(folder: Path, name: str) -> bytes:
    if name == MODULES:  # with the configurations of all modules, which lie in folders of their own
        return flattened_modules(folder)
    return read_regular(folder / name, LONGEST_TEXT)


def refused(error: Exception) -> str:
    """Return the reason in an error of reading, for the gateway that asked."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


ERRORS = (CheckpointError, OSError)  # what reading may raise
