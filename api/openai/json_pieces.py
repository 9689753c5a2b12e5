"""Writing of JSON in pieces, because Python's own writer holds the interpreter lock to its end.

A list of a few million numbers takes most of a second. Written in pieces, other threads run between them.
"""

from __future__ import annotations

import json
from typing import Any

_PIECE = 1024  # items of a list; this number takes about a millisecond


def written(value: Any) -> str:
    """Return what ``json.dumps`` returns for dictionaries, lists and plain values."""
    nested = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if len(nested) <= _PIECE and not any(isinstance(one, dict | list) for one in nested):
        return json.dumps(value)
    if isinstance(value, dict):
        return "{" + ", ".join([f"{json.dumps(key)}: {written(inner)}" for key, inner in value.items()]) + "}"
    if len(value) > _PIECE:
        return "[" + ", ".join([written(value[i : i + _PIECE])[1:-1] for i in range(0, len(value), _PIECE)]) + "]"
    return "[" + ", ".join([written(one) for one in value]) + "]"
