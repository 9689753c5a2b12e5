"""The address of the head for workers on other machines: how it listens there, and the join text that it writes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ..gpu.whole_file import write_whole
from ..runtime.cluster.join_text import WORKER, JoinTexts
from ..runtime.cluster.key_folder import read_keys
from ..runtime.node.node import Node
from ..transport.address import split_key
from ..transport.curve import NodeKeys
from ..transport.errors import KeysError
from .settings.errors import SettingsError
from .settings.joining import JoinSettings

LASTING = 30 * 86400  # seconds for which the text of ``join_file`` is valid


def head_options(joining: JoinSettings) -> dict[str, Any]:
    """Return the options of ``ClusterHead``; none if it listens for its own processes alone. Raises SettingsError."""
    if not joining.listen:
        return {}
    keys = _keys(joining)
    return {"listen": joining.listen, "keys": keys, "join_texts": JoinTexts(keys, joining.revoked)}


def write_join_text(head: Node, joining: JoinSettings) -> str:
    """Write a join text for workers if a file is wanted, and return where they reach the head. Raises SettingsError."""
    where = split_key(head.endpoint)[0]
    if joining.join_file:
        path = Path(joining.join_file).expanduser()
        text = JoinTexts(_keys(joining)).issue([where], WORKER, int(time.time()) + LASTING)
        try:
            write_whole(path, f"{text.pack()}\n".encode(), 0o600)
        except OSError as error:
            reason = error.strerror or str(error)
            raise SettingsError(
                f"join_file: {path} cannot be written ({reason}); name a file in a folder to write to"
            ) from None
    return where


def _keys(joining: JoinSettings) -> NodeKeys:
    try:
        return read_keys(Path(joining.head_keys).expanduser())
    except KeysError as error:
        raise SettingsError(f"head_keys: {error}") from None
