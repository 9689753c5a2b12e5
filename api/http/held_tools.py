"""The memory of what is held of the calls of tools."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

MOST, MOST_BYTES = 256, 8 << 20  # of tools of requests, of their grammars and schemas


@dataclass(frozen=True, slots=True)
class HeldTools:
    """The Lark grammar of a call of some tools; "": none can be held. ``names``: of the tools that it has.

    ``lasts``: a call goes on until the turn ends. ``ignored``: places in the request whose schemas are not held.
    ``schemas``: of the arguments, as JSON, by place of the tool; "": any object.
    """

    grammar: str
    lasts: bool
    names: tuple[str, ...]
    ignored: tuple[str, ...]
    schemas: tuple[str, ...]

    @property
    def size(self) -> int:
        """The length of its texts."""
        return len(self.grammar) + sum(map(len, self.schemas))


class HeldToolsMemory:
    """The latest of them, by a digest of the tools and of the turn template."""

    def __init__(self) -> None:
        self._found: OrderedDict[bytes, HeldTools] = OrderedDict()
        self._bytes = 0

    def get(self, key: bytes) -> HeldTools | None:
        """Return what was found for a digest, or None."""
        if (found := self._found.get(key)) is not None:
            self._found.move_to_end(key)
        return found

    def add(self, key: bytes, found: HeldTools) -> None:
        """Remember what was found, and forget the oldest where there are too many."""
        old = self._found.pop(key, None)
        self._bytes += found.size - (old.size if old is not None else 0)
        self._found[key] = found
        while len(self._found) > MOST or (self._bytes > MOST_BYTES and len(self._found) > 1):
            _, gone = self._found.popitem(last=False)
            self._bytes -= gone.size
