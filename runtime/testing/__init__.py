"""Deterministic tests of actors: a cluster in one process, virtual time, faults, seeds that replay.

``Simulation`` is the entrance (``simulation.py`` has an example); ``pytest_plugin`` gives pytest a fixture. Needs no pytest.
"""

from .faults import (
    BreakLink,
    Delay,
    Drop,
    Duplicate,
    Fault,
    FaultPlan,
    HoldLane,
    Kill,
    Partition,
    Pause,
)
from .loop import Stalled
from .simulation import Simulation, Unhandled, seeds
from .trace import Trace

__all__ = [
    "BreakLink",
    "Delay",
    "Drop",
    "Duplicate",
    "Fault",
    "FaultPlan",
    "HoldLane",
    "Kill",
    "Partition",
    "Pause",
    "Simulation",
    "Stalled",
    "Trace",
    "Unhandled",
    "seeds",
]
