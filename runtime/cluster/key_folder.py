"""The key folder of a head: its CURVE pair, kept between its lives. Only its owner may read the secret key."""

from __future__ import annotations

import os
from pathlib import Path

from ...transport.curve import NodeKeys
from ...transport.errors import KeysError

PUBLIC = "head.public"
SECRET = "head.secret"
_MADE_BY = "blockwright keys new"


def make_keys(folder: Path) -> NodeKeys:
    """Make a pair and store it; make the folder if missing. Raises KeysError: there is one, or the folder is no use."""
    keys = NodeKeys.generate()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, key, mode in ((SECRET, keys.secret, 0o600), (PUBLIC, keys.public, 0o644)):
            with open(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(key + b"\n")
    except OSError as error:
        if isinstance(error, FileExistsError) and folder.is_dir():
            raise KeysError(f"{folder} has keys already; use them, or name another folder") from None
        raise KeysError(f"keys cannot be written to {folder} ({error.strerror}); name a folder to write to") from None
    return keys


def read_keys(folder: Path) -> NodeKeys:
    """Return the pair of a folder. Raises KeysError."""
    try:
        public, secret = ((folder / name).read_bytes().strip() for name in (PUBLIC, SECRET))
    except OSError as error:
        reason = error.strerror or "it is no file"
        raise KeysError(f"{folder} holds no keys to read ({error.filename}: {reason}); run: {_MADE_BY} {folder}") from None
    try:
        return NodeKeys(public, secret)
    except KeysError as error:
        raise KeysError(f"the keys in {folder} cannot be used: {error}; name another folder, or run: {_MADE_BY}") from None
