"""Device profiles of applications (``blockwright profile``), named by the hash of their content.

A profile belongs to components, not to a name: it stays valid under other names, and is deleted with the last application
that has them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .disk import Waiting, writing
from .documents import encode, read_document
from .errors import ZooDamaged
from .zoo import Zoo


@dataclass(frozen=True, slots=True)
class StoredProfile:
    """A stored profile.

    ``components`` are the identities of the measured chain, in hexadecimal digits. ``profile`` is the document.
    """

    path: Path
    components: tuple[str, ...]
    profile: dict[str, Any]


def add_profile(root: Path, name: str, profile: dict[str, Any], *, waiting: Waiting | None = None) -> Path:
    """Store a profile for the components of application ``name``. Return its file. Raises ZooError."""
    with writing(root, waiting=waiting) as disk:
        document = encode({"components": list(Zoo(root).chain(name).components), "profile": profile})
        disk.folder(disk.layout.profiles)  # an older zoo lacks the folder
        path = disk.layout.profile(_hash(document))
        disk.write(path, [document])
        disk.sync()
    return path


def profiles_of(zoo: Zoo, name: str) -> list[StoredProfile]:
    """Return the profiles that fit the application's components."""
    components = zoo.chain(name).components
    found = [read_profile(path) for path in sorted(zoo.layout.profiles.glob("*.json"))]
    return [profile for profile in found if profile.components == tuple(components)]


def read_profile(path: Path) -> StoredProfile:
    """Read a profile. Raises ZooDamaged if it was altered."""
    values = read_document(path)
    components, profile = values.get("components"), values.get("profile")
    if _hash(path.read_bytes()) != path.stem or not isinstance(components, list) or not isinstance(profile, dict):
        raise ZooDamaged(path, f"a profile with the hash {path.stem}", "another document")
    return StoredProfile(path, tuple(map(str, components)), profile)


def _hash(document: bytes) -> str:
    return hashlib.blake2b(document, digest_size=16).hexdigest()
