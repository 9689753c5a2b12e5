"""The files that a gateway on another machine has fetched from the head, in a private folder of this machine.

Each content is there once, under its hash; a model's folder is made of links to it. What does not have its hash is refused.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...gpu.model.config import ModelConfig
from ...runtime.base.errors import RemoteError, RuntimeFault
from ...runtime.node.node import Node
from ..supervision_tree import HEAD
from .admission import GATEWAY_ADMISSION
from .front_files import FolderListing, digest

PREFIX = "blockwright-gateway-"  # of the folders
SECONDS = 30.0  # until the next piece of a file
TRIES = 2  # of a file that changed while it was fetched


class FetchError(Exception):
    """A file that could not be fetched: one sentence. ``later``: the head may answer later."""

    def __init__(self, sentence: str, *, later: bool) -> None:
        super().__init__(sentence)
        self.later = later


@dataclass(frozen=True, slots=True)
class LocalModel:
    """The folders of a model on this machine, as ``ModelInfo.folders``, and what its parameters would say."""

    folders: tuple[str, ...]
    config: ModelConfig
    embeds: bool


class FetchedFiles:
    """The files that one gateway has fetched (see the module). folder: a private one of this machine."""

    def __init__(self, node: Node, folder: Path) -> None:
        self._node = node
        self._folder = folder
        self._fetching = asyncio.Lock()

    async def model(self, folders: Sequence[str]) -> LocalModel:
        """Fetch what is missing of a model whose folders are on the head's machine. Raises FetchError."""
        async with self._fetching:
            for last in range(1, TRIES + 1):
                said = await self._ask(list(folders))
                try:
                    made = [await self._made(one.folder, one.files) for one in said.folders]
                except _ChangedFile as changed:
                    if last == TRIES:
                        raise FetchError(f"{changed} changed while it was fetched; try again", later=True) from None
                else:
                    return LocalModel(tuple(map(str, made)), said.config, said.embeds)
            raise AssertionError("the last try returns or raises")

    async def setting(self, name: str, hash: str) -> Path:
        """Fetch the file that a setting names. Raises FetchError."""
        try:
            return await self._blob("", name, hash)
        except _ChangedFile:
            raise FetchError(f"the file of {name} changed while it was fetched; start again", later=True) from None

    async def _ask(self, folders: list[str]) -> FolderListing:
        try:
            found: FolderListing = await self._head().model_files(folders, timeout=SECONDS, returns=FolderListing)
        except RemoteError as error:
            raise FetchError(error.text, later=False) from None
        except RuntimeFault as error:
            raise FetchError(
                f"the files of the model are not here and the head does not answer ({error}); try again", later=True
            ) from None
        return found

    async def _made(self, folder: str, files: dict[str, str]) -> Path:
        """Return the folder on this machine with these files, which is named by what is in it."""
        blobs = {name: await self._blob(folder, name, hash) for name, hash in files.items()}
        listing = hashlib.blake2b(repr(sorted(files.items())).encode(), digest_size=16).hexdigest()
        made = self._folder / listing / Path(folder).name
        if not made.is_dir():
            await asyncio.to_thread(_link, made, blobs)
        return made

    async def _blob(self, folder: str, name: str, hash: str) -> Path:
        path = self._folder / f"{hash}.file"
        if path.exists():
            return path
        pieces = bytearray()
        try:
            stream: Any = self._head().content(folder, name, timeout=SECONDS, returns=bytes)
            async for piece in stream:
                pieces += piece
        except RemoteError as error:
            raise FetchError(error.text, later=False) from None
        except RuntimeFault as error:
            raise FetchError(f"{name} was not fetched: the head does not answer ({error}); try again", later=True) from None
        raw = bytes(pieces)
        if await asyncio.to_thread(digest, raw) != hash:
            raise _ChangedFile(name)
        await asyncio.to_thread(_write, path, raw)
        return path

    def _head(self) -> Any:
        return self._node.ref(f"{HEAD}/{GATEWAY_ADMISSION}")


@contextmanager
def private_folder() -> Iterator[Path]:
    """Make a folder of this process for the time of the block, and delete those of processes that were killed."""
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            held = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(held).st_uid == os.getuid():
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(left)
            finally:
                os.close(held)
    folder, held = _locked()
    try:
        yield folder
    finally:
        left = folder.with_name(f"{folder.name}.left")
        folder.rename(left)  # a thread that is still writing a file finds no folder any more
        shutil.rmtree(left, ignore_errors=True)
        os.close(held)


def _locked() -> tuple[Path, int]:
    """Return a new folder and the lock on it, which the kernel releases when this process dies."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        with suppress(FileNotFoundError):  # another process took it for one that was left, before it was locked
            held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(held, fcntl.LOCK_EX)
            if folder.is_dir():
                return folder, held
            os.close(held)


class _ChangedFile(Exception):
    """A file whose content is not the one that was announced."""


def _write(path: Path, raw: bytes) -> None:
    part = path.with_suffix(".part")
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(raw)
    part.replace(path)


def _link(folder: Path, blobs: dict[str, Path]) -> None:
    part = folder.with_name(f"{folder.name}.part")
    part.parent.mkdir(exist_ok=True)  # without its parents, which end with the process
    part.mkdir(exist_ok=True)
    for name, blob in blobs.items():
        (part / name).unlink(missing_ok=True)
        os.link(blob, part / name)
    part.replace(folder)
