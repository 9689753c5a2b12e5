"""Nearest folder of a checkpoint, which a misspelled path may have meant."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ...policies.nearest import nearest

NEAR = 0.8  # likeness, 0 to 1, of each name on the path
REVISION = "@"  # part of a hub checkpoint's name, but not of a folder's


def near_folder(path: Path) -> Path | None:
    """Return the checkpoint or adapter at a path that is like ``path`` in every part; None if there is none."""
    if REVISION in path.name:
        return None
    found = Path(*path.parts[:0]) if not path.is_absolute() else Path(path.anchor)
    *folders, last = path.parts[1:] if path.is_absolute() else path.parts or ("",)
    try:
        for name in folders:
            if not (found / name).is_dir():
                name = nearest(name, (one.name for one in _folders(found)), NEAR)
                if not name:
                    return None
            found /= name
        name = nearest(last, (one.name for one in _folders(found) if next(one.glob("*config.json"), None)), NEAR)
    except OSError:  # a folder without read permission
        return None
    return found / name if name else None


def _folders(parent: Path) -> Iterator[Path]:
    return (one for one in sorted(parent.iterdir()) if one.is_dir())
