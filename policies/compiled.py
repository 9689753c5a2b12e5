"""Chooses between the compiled and the interpreted form of the policies, module by module the same sources.

The one module of this layer that looks outside: at the files of its own folder, and at ``BLOCKWRIGHT_COMPILED`` (0:
interpreted).
"""

from __future__ import annotations

import os
import sys
from hashlib import sha256
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

LIBRARY = "blockwright_policies__mypyc"  # what the compiled modules share
ROOMS = ("memory", "model", "plan", "sweep")


def fingerprint(folder: Path) -> str:
    """Of the sources below ``policies/`` that are compiled, and of this interpreter."""
    digest = sha256(sys.version.encode())
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


def use_compiled(path: list[str]) -> bool:
    """Put the compiled modules before the sources in a package's search ``path``. Whether they are used."""
    place = compiled_folder(Path(path[0]))
    if place is None:
        return False
    if LIBRARY not in sys.modules:
        library = next(p for suffix in EXTENSION_SUFFIXES if (p := place / f"{LIBRARY}{suffix}").exists())
        spec = spec_from_file_location(LIBRARY, library, loader=ExtensionFileLoader(LIBRARY, str(library)))
        assert spec is not None
    assert spec.loader is not None
        module = module_from_spec(spec)
        sys.modules[LIBRARY] = module
        spec.loader.exec_module(module)
    path.insert(0, str(place))
    return True
