"""The settings of sources: where workers find models that do not lie where the head has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from .part import BYTES, COUNT, SettingsPart


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings(SettingsPart):
    """The folders, the store and the origin of workers."""

    model_folders: Annotated[
        str,
        "folders on a worker's machine, separated by commas, that hold the models which it does not find where the head has "
        "them",
    ] = ""
    store: Annotated[
        str,
        "folder on a worker's machine that keeps what came from other workers or the origin, made if there is none; empty: "
        "nothing is kept",
    ] = ""
    store_size: Annotated[int, "bytes of the store; 0: what its disk has", BYTES, COUNT] = 0
    origin: Annotated[
        str,
        "zoo from which workers load, by hash, what no folder, store or other worker of theirs has: "
        "http://HOST:PORT or https://HOST (blockwright zoo serve, or an object store), or a folder; a model that is no "
        "folder here may be named by its name there",
    ] = ""

    @property
    def folders(self) -> list[str]:
        """The folders in which workers look for models."""
        return [part.strip() for part in self.model_folders.split(",") if part.strip()]
