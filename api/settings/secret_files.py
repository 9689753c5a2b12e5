"""Warnings about files that hold secrets and that every user of the machine may read."""

from __future__ import annotations

import os
import shlex
import stat
import tomllib
from pathlib import Path

from ...gpu.regular_file import read_plain
from ...runtime.cluster.key_folder import SECRET

KEYS = ("api_keys", "admin_keys")  # settings that hold secrets


def open_to_all(path: Path, holds: str) -> str:
    """Return a sentence if every user may read a file that ``holds`` a secret, else (or without a file) an empty text."""
    try:
        found = os.stat(path).st_mode
    except OSError:  # reported by the code that reads the file
        return ""
    mode = stat.S_IMODE(found)
    if stat.S_ISDIR(found) or not mode & stat.S_IROTH:
        return ""
    remedy = f"chmod 600 {shlex.quote(str(path))}"
    return f"{path} holds {holds} and every user of this machine may read it (mode {mode:03o}); {remedy}"


def warnings_of(key_file: str | None, config: str | None, tls_key: str, head_keys: str = "") -> list[str]:
    """Return a warning for each of a server's files that holds a secret and that all users may read."""
    found = []
    if key_file:
        found.append(open_to_all(Path(key_file), "API keys"))
    if config and _has_keys(Path(config)):
        found.append(open_to_all(Path(config), "API keys"))
    if tls_key:
        found.append(open_to_all(Path(tls_key).expanduser(), "the private key of tls_cert"))
    if head_keys:
        found.append(open_to_all(Path(head_keys).expanduser() / SECRET, "the secret key of the head"))
    return [warning for warning in found if warning]


def _has_keys(config: Path) -> bool:
    return any(tomllib.loads(read_plain(config)).get(name) for name in KEYS)
