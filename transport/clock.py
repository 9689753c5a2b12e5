"""The clock protocol that transport and runtime use for deadlines, timeouts and heartbeats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    def now(self) -> float:
        """Return the seconds since an arbitrary zero; the value never decreases."""

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call back once when ``now() >= when``, unless cancelled."""
