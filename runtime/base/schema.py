"""The schema tag of a dataclass, by which two nodes know that they mean the same one: its name and its sent fields."""

from __future__ import annotations

import dataclasses
import hashlib
from functools import cache


@cache
def field_names(kind: type) -> tuple[str, ...]:
    """Return the names of the fields that travel, in order."""
    return tuple(f.name for f in dataclasses.fields(kind) if f.init)


@cache
def schema_tag(kind: type) -> int:
    """Return 32 bits that identify a dataclass by its name and field names."""
    text = f"{kind.__qualname__}({','.join(field_names(kind))})"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest())
