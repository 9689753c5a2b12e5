"""Choice between the compiled and the interpreted form of the policies; both come from the same sources.

This module alone in its layer looks outside: at the files of its own folder, and at ``BLOCKWRIGHT_COMPILED`` (0:
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

LIBRARY = "blockwright_policies__mypyc"  # shared by the compiled modules
ROOMS = ("drafts", "memory", "model", "plan", "prediction", "sweep")
SUFFIX = EXTENSION_SUFFIXES[0]


def fingerprint(folder: Path) -> str:
    """Return a hash of the sources below ``policies/`` that are compiled.

    The interpreter is not part of it: the compiled files' names tell its ABI. With its exact build in the hash, a wheel
    would fit only the machine where it was built.
    """
    digest = sha256()
    for room in ROOMS:
        for path in sorted((folder / room).glob("*.py")):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def compiled_folder(folder: Path) -> Path | None:
    """Return the folder of the compiled form of the sources in ``folder``, or None.

    None means that there is none, that it is stale, or that it is not wanted.
    """
    place = folder / "_compiled"
    if os.environ.get("BLOCKWRIGHT_COMPILED") == "0" or not (place / "sources.txt").exists():
        return None
    return place if (place / "sources.txt").read_text() == fingerprint(folder) else None


class CompiledFinder:
    """Import hook that loads a module from ``place`` if its compiled form is there, and as usual otherwise."""

    def __init__(self, place: Path) -> None:
        self.files = {path.name.removesuffix(SUFFIX): path for path in place.glob(f"*{SUFFIX}")}

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in self.files:
            return None
        if name != LIBRARY:
            import_module(LIBRARY)  # the compiled modules are parts of it
        return spec_from_file_location(name, self.files[name])


def use_compiled(folder: str) -> bool:
    """Import the policies in ``folder`` in their compiled form from now on. Return whether there is one that fits."""
    place = compiled_folder(Path(folder))
    if place is None:
        return False
    finder = CompiledFinder(place)
    if LIBRARY not in finder.files:
        return False
    sys.meta_path.insert(0, finder)
    return True
