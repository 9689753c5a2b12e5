"""The event trace of a simulation: two runs are the same when their traces are.

Owns the record and its digest. A line holds only what is the same in every process: times, names, sizes; no addresses, ids
of objects or hashes of strings.
"""

from __future__ import annotations

import hashlib

from ..base import envelope

_NAMES = {value: name for name, value in vars(envelope).items() if name.isupper() and type(value) is int}


class Trace:
    """``add`` while it runs; ``lines`` and ``digest`` to look at it."""

    def __init__(self) -> None:
        self._events: list[tuple[float, tuple[object, ...]]] = []
        self.sealed = False  # nothing counts any more: the simulation is being taken down

    def add(self, now: float, *what: object) -> None:
        if not self.sealed:
            self._events.append((now, what))

    def lines(self) -> list[str]:
        """Return ``"time what..."``, one line for each event."""
        return [f"{now:.9f} {' '.join(map(str, what))}" for now, what in self._events]

    @property
    def digest(self) -> str:
        """Hexadecimal; equal for equal runs."""
        return hashlib.sha256("\n".join(self.lines()).encode()).hexdigest()

    def __len__(self) -> int:
        return len(self._events)


def message_name(body: bytes) -> str:
    """Return the name of the kind of a control message, from its first bytes."""
    if len(body) > 1 and body[0] & 0xF0 == 0x90:
        return _NAMES.get(body[1], f"tag {body[1]}")
    return "?"
