"""Assembly of the simulation that a description asks for: a cluster, and the policy that decides about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ..policies.plan.coefficients import Coefficients
from .chain_switching import ChainSwitching
from .control import SimulatedControl
from .control_step import ControlStep
from .description import Scenario
from .outages import InterruptedControl
from .simulation import ClusterPolicy, ClusterSimulation, Note
from .workload import WorkloadRequest


def simulation_of(
    scenario: Scenario,
    coefficients: Sequence[Coefficients],
    demands: Sequence[WorkloadRequest],
    *,
    jumps: bool = True,
    note: Note | None = None,
    tape: list[ControlStep] | None = None,
) -> ClusterSimulation:
    """Return the simulation that a description asks for. ``tape`` gets all steps of the controller."""
    policy: Callable[[ClusterSimulation], ClusterPolicy] | None = None
    if scenario.controlled:
        policy = partial(InterruptedControl if scenario.interrupted else SimulatedControl, tape=tape)
    elif scenario.varied and scenario.dispatch.switches:
        policy = ChainSwitching
    return ClusterSimulation(scenario, coefficients, demands, jumps=jumps, note=note, policy=policy)
