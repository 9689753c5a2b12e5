"""The clock protocol: deadlines, timeouts and heartbeats of transport and runtime all ask one ``Clock``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    def now(self) -> float:
        """Seconds from an arbitrary zero; never goes back."""

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call back once when ``now() >= when``, unless cancelled."""
