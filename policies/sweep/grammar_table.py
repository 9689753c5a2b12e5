"""The grammars of the running sequences whose tokens are drawn here, and which of these grammars the device has.

``memory/grammar_memory.py`` has their memory, and the grammars that are kept without a sequence.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..plain import Plain

NOTHING_OWED = -1


class GrammarTable:
    """The grammars of one worker, by key. A grammar is compiled from the start of the first sequence with it on."""

    def __init__(self) -> None:
        self._keys: dict[int, bytes] = {}  # by sequence
        self._users: dict[bytes, int] = {}  # sequences with each grammar
        # grammars that the device does not have yet -> whether they are being compiled; False: they could not be
        self._compiling: dict[bytes, bool] = {}
        self._owed: dict[int, int] = {}  # guest that waits -> leading pages that the grant reports to its home

    def key(self, s: int) -> bytes | None:
        """Return the key of a sequence's grammar; None: it has none, or does not run."""
        return self._keys.get(s)

    def add(self, s: int, key: bytes, *, new: bool) -> bool:
        """Add a sequence; return whether its grammar is to be compiled now. ``new``: the device does not have it."""
        wanted = new or not self._compiling.get(key, True)
        self._keys[s] = key
        self._users[key] = self._users.get(key, 0) + 1
        if wanted:
            self._compiling[key] = True
        return wanted

    def remove(self, s: int) -> bool:
        """Forget a sequence that has left; return whether the device has its grammar."""
        self._owed.pop(s, None)
        key = self._keys.pop(s)
        compiled = key not in self._compiling
        self._users[key] -= 1
        if not self._users[key]:
            del self._users[key]
            self._compiling.pop(key, None)
        return compiled

    def users(self) -> dict[bytes, int]:
        """Return the running sequences with each grammar."""
        return self._users.copy()

    def waits(self, s: int) -> bool:
        """Return whether the grammar of ``s`` is not compiled yet."""
        return s in self._keys and self._keys[s] in self._compiling

    def waiting(self, key: bytes) -> list[int]:
        """Return the sequences that wait for a grammar."""
        return [s for s, other in self._keys.items() if other == key] if key in self._compiling else []

    def compiling(self) -> list[bytes]:
        """Return the grammars that the device does not have yet."""
        return list(self._compiling)

    def owe(self, guest: int, cached: int) -> None:
        """Note that the home of a guest is to be granted its lease once the grammar is compiled."""
        self._owed[guest] = cached

    def ready(self, key: bytes) -> list[tuple[int, int]]:
        """Note that the device has a grammar; return its sequences, each with the pages owed, or ``NOTHING_OWED``."""
        found = [(s, self._owed.pop(s, NOTHING_OWED)) for s in self.waiting(key)]
        self._compiling.pop(key, None)
        return found

    def failed(self, key: bytes) -> list[int]:
        """Note that a grammar could not be compiled; return the sequences that wait for it."""
        if key in self._compiling:
            self._compiling[key] = False
        return self.waiting(key)

    # copies ----------------------------------------------------------------------------------------------------------

    def fork(self) -> GrammarTable:
        copy = GrammarTable()
        copy._keys, copy._users = self._keys.copy(), self._users.copy()
        copy._compiling, copy._owed = self._compiling.copy(), self._owed.copy()
        return copy

    def snapshot(self) -> dict[str, Plain]:
        return {
            "keys": [[s, key] for s, key in self._keys.items()],
            "compiling": [[key, under_way] for key, under_way in self._compiling.items()],
            "owed": [[s, cached] for s, cached in self._owed.items()],
        }

    @classmethod
    def restore(cls, data: dict[str, Plain]) -> GrammarTable:
        table = cls()
        for s, key in data["keys"]:
            table.add(s, key, new=False)
        table._compiling = dict(data["compiling"])
        table._owed = dict(data["owed"])
        return table

    def check(self, held: Mapping[int, int]) -> None:
        """Raise AssertionError unless exactly the sequences whose grammar is not compiled are held back.

        ``held``: of all live sequences, as in ``Columns``.
        """
        assert self._keys.keys() <= held.keys(), "a sequence that has left has a grammar"
        assert {s for s, flag in held.items() if flag} == {s for s in self._keys if self.waits(s)}, (
            "a sequence draws without its grammar, or waits for none"
        )
        assert self._owed.keys() <= {s for s in self._keys if self.waits(s)}, "a grant is owed to no waiting guest"
        counts: dict[bytes, int] = {}
        for key in self._keys.values():
            counts[key] = counts.get(key, 0) + 1
        assert counts == self._users, "the sequences of a grammar are counted wrongly"
