"""Steps of a simulated controller, and the end of its cluster."""

from __future__ import annotations

from typing import NamedTuple

from ..policies.control import events


class ControlStep(NamedTuple):
    """An event that the controller's state machine took, and the effects that it had."""

    at: float
    event: events.Event
    effects: list[events.Effect]


class ClusterFatalError(RuntimeError):
    """The end of a simulated cluster whose live counterpart would stop: it cannot serve what it was started for."""
