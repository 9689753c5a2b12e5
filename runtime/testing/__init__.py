"""Deterministic tests of actors: a cluster in one process, virtual time, faults, seeds that replay.

``Simulation`` is the entrance (``simulation.py`` has an example); ``pytest_plugin`` gives pytest a fixture. Needs no pytest.
"""

from blockwright.runtime.testing.faults import (
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
from blockwright.runtime.testing.loop import Stalled
from blockwright.runtime.testing.simulation import Simulation, Unhandled, seeds
from blockwright.runtime.testing.trace import Trace

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
