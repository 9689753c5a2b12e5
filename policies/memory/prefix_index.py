"""The prefix cache's lookup: an index of published KV pages to their handles."""

from __future__ import annotations

Key = tuple[bytes, bytes, int]  # (token hash, lineage, first layer)
GONE = -1


class PrefixIndex:
    """A dict that forks in time proportional to its recent changes.

    Forks share one dict, which is never changed again, and each writes its changes into a small one of its own in front of
    it. When that has become large the two are joined, so that a fork costs a share of the changes since the last one.
    """

    def __init__(self) -> None:
        self._base: dict[Key, int] = {}
        self._shared = False  # another fork reads ``_base``
        self._changes: dict[Key, int] = {}  # in front of ``_base``; ``GONE``: removed

    def get(self, key: Key) -> int | None:
        """Return the handle of a page; None if it is not published."""
        handle = self._changes.get(key) if self._changes else None
        if handle is None:
            return self._base.get(key)
        return handle if handle != GONE else None

    def put(self, key: Key, handle: int) -> None:
        if self._shared:
            self._change(key, handle)
        else:
            self._base[key] = handle

    def remove(self, key: Key) -> None:
        assert self.get(key) is not None, "a page that is not published is removed"
        if self._shared:
            self._change(key, GONE)
        else:
            del self._base[key]

    def _change(self, key: Key, handle: int) -> None:
        self._changes[key] = handle
        if len(self._changes) > 256 + len(self._base) // 8:
            self._base = self.entries()
            self._changes = {}
            self._shared = False

    def entries(self) -> dict[Key, int]:
        """Return a copy of all entries."""
        found = self._base.copy()
        for key, handle in self._changes.items():
            if handle == GONE:
                found.pop(key, None)
            else:
                found[key] = handle
        return found

    def fork(self) -> PrefixIndex:
        copy = PrefixIndex()
        self._shared = copy._shared = True
        copy._base, copy._changes = self._base, self._changes.copy()
        return copy
