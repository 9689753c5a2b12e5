"""Chooses between the compiled and the interpreted form of the policies, module by module the same sources.

The one module of this layer that looks outside: at the files of its own folder, and at ``BLOCKWRIGHT_COMPILED`` (0:
interpreted). ``setup.py`` makes the compiled form.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from hashlib import sha256
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

LIBRARY = "blockwright_policies__mypyc"  # what the compiled modules share
ROOMS = ("memory", "model", "plan", "prediction", "sweep")
SUFFIX = EXTENSION_SUFFIXES[0]


def fingerprint(folder: Path) -> str:
    """Of the sources below ``policies/`` that are compiled.

    Not of the interpreter: the names of the compiled files tell its ABI. With its exact build in here a wheel would be
    compiled for nobody but the machine where it was made.
    """
    digest = sha256()
    for room in ROOMS:
        for path in sorted((folder / room).glob("*.py")):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def compiled_folder(folder: Path) -> Path | None:
    """Where the compiled form of the sources in ``folder`` lies: None if there is none, it is stale, or it is not wanted."""
    place = folder / "_compiled"
    if os.environ.get("BLOCKWRIGHT_COMPILED") == "0" or not (place / "sources.txt").exists():
        return None
    return place if (place / "sources.txt").read_text() == fingerprint(folder) else None


class CompiledFinder:
    """Import hook: modules of which ``place`` holds a compiled form are loaded from there, all others as always."""

    def __init__(self, place: Path) -> None:
        self.files = {path.name.removesuffix(SUFFIX): path for path in place.glob(f"*{SUFFIX}")}

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in self.files:
            return None
        if name != LIBRARY:
            import_module(LIBRARY)  # the compiled modules are parts of it
        return spec_from_file_location(name, self.files[name])


def use_compiled(folder: str) -> bool:
    """Import the policies in ``folder`` in their compiled form from now on. Whether there is one that fits."""
    place = compiled_folder(Path(folder))
    if place is None:
        return False
    finder = CompiledFinder(place)
    if LIBRARY not in finder.files:
        return False
    sys.meta_path.insert(0, finder)
    return True
