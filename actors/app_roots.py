"""Folders that may become applications at run time: the ones below the roots of the setting ``app_roots``.

Links are resolved. Reads the file system and changes nothing. Open this file to see why a path or a name is refused.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..policies.nearest import nearest
from ..policies.requests.refusal import Refusal, RequestRefused

NAME = re.compile(r"[A-Za-z0-9][\w.:@/-]{0,199}", re.ASCII)


def check_name(name: str) -> None:
    """Raise RequestRefused if ``name`` cannot be a model id."""
    if not NAME.fullmatch(name) or ".." in name or "//" in name:
        message = f"name is {name[:60]!r}; give up to 200 letters, digits and . : @ / _ -, with a letter or digit first"
        raise RequestRefused(Refusal.INVALID, message, param="name")


def folder_below(roots: str, path: str) -> Path:
    """Return the folder that ``path`` names, with every link resolved. ``roots``: folders separated by commas.

    Raises RequestRefused if no root is set, and if the path is not a folder below a root. It also raises if a file in the
    folder is a link that leaves the roots, or if the path cannot be looked up.
    """
    allowed = _folders(roots)
    if not allowed:
        message = "applications cannot be added to this server: app_roots is empty; restart it with --set app_roots=FOLDER"
        raise RequestRefused(Refusal.FORBIDDEN, message, param="path")
    try:
        folder = Path(os.path.realpath(path))
        inside = Path(path).is_absolute() and any(folder.is_relative_to(root) for root in allowed)
        if inside and not folder.is_dir():
            near = _nearest(folder, allowed)
            remedy = f"did you mean {near}?" if near else f"name one below {_listed(allowed)}"
            raise _refused(f"there is no folder {path[:200]}; {remedy}")
        escaped = inside and next((f for f in folder.iterdir() if not _below(Path(os.path.realpath(f)), allowed)), None)
    except (OSError, ValueError) as error:  # too long a name, characters that no file name has, no permission
        reason = getattr(error, "strerror", None) or error
        raise _refused(
            f"path {path[:60]!r} cannot be looked up ({reason}); name a folder below {_listed(allowed)}"
        ) from None
    if not inside:
        raise _refused(
            f"path {path[:200]!r} is not below a root of app_roots, or the folder of adapters; name a folder below "
            f"{_listed(allowed)}"
        )
    if escaped:
        raise _refused(f"{escaped} is a link that leaves app_roots and the folder of adapters; put the file itself there")
    return folder


def missing_roots(roots: str) -> list[Path]:
    """Return the roots that are not folders now."""
    return [root for root in _folders(roots) if not root.is_dir()]


def _folders(roots: str) -> list[Path]:
    return [Path(os.path.realpath(os.path.expanduser(part.strip()))) for part in roots.split(",") if part.strip()]


def _below(path: Path, roots: list[Path]) -> bool:
    return any(path.is_relative_to(root) for root in roots)


def _nearest(folder: Path, roots: list[Path]) -> Path | None:
    """Return the existing folder below a root that a misspelled path may have meant, or None.

    The first name of the path that does not exist is replaced by the nearest one; the names after it are kept if they exist
    there. Nothing outside the roots is looked at.
    """
    missing = folder
    while _below(missing.parent, roots) and not missing.parent.is_dir():
        missing = missing.parent
    if not _below(missing.parent, roots) or not missing.parent.is_dir():
        return None  # the root itself is missing
    there = [one for one in missing.parent.iterdir() if _below(Path(os.path.realpath(one)), roots) and one.is_dir()]
    name = nearest(missing.name, sorted(one.name for one in there))
    if not name:
        return None
    near = missing.parent / name
    whole = near / folder.relative_to(missing)
    return whole if _below(Path(os.path.realpath(whole)), roots) and whole.is_dir() else near


def _listed(roots: list[Path]) -> str:
    return ", ".join(map(str, roots))


def _refused(message: str) -> RequestRefused:
    return RequestRefused(Refusal.INVALID, message, param="path")
