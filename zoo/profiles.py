"""Device profiles of applications (``blockwright profile``), named by the hash of what was measured.

One is of components, not of a name: it stays good under other names, and goes with the last application that has them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .disk import Step, Waiting, writing
from .documents import encode, read_document
from .errors import ZooDamaged
from .zoo import Zoo


@dataclass(frozen=True, slots=True)
class StoredProfile:
    """``components``: identities of the chain that was measured, in hexadecimal digits; ``profile``: the document."""

    path: Path
    components: tuple[str, ...]
    profile: dict[str, Any]


def add_profile(
    root: Path, name: str, profile: dict[str, Any], *, waiting: Waiting | None = None, step: Step | None = None
) -> Path:
    """Store it for what application ``name`` consists of; its file. Raises ZooError."""
    with writing(root, waiting=waiting, step=step) as disk:
        document = encode({"components": list(Zoo(root).chain(name).components), "profile": profile})
        disk.folder(disk.layout.profiles)  # a zoo of before there were any has none
        path = disk.layout.profile(_hash(document))
        disk.write(path, [document])
        disk.sync()
    return path


def profiles_of(zoo: Zoo, name: str) -> list[StoredProfile]:
    """Those that fit what the application consists of."""
    components = zoo.chain(name).components
    found = [read_profile(path) for path in sorted(zoo.layout.profiles.glob("*.json"))]
    return [profile for profile in found if profile.components == tuple(components)]


def read_profile(path: Path) -> StoredProfile:
    """Raises ZooDamaged for what is not as it was stored."""
    values = read_document(path)
    components, profile = values.get("components"), values.get("profile")
    if _hash(path.read_bytes()) != path.stem or not isinstance(components, list) or not isinstance(profile, dict):
        raise ZooDamaged(path, f"a profile with the hash {path.stem}", "another document")
    return StoredProfile(path, tuple(map(str, components)), profile)


def _hash(document: bytes) -> str:
    return hashlib.blake2b(document, digest_size=16).hexdigest()
