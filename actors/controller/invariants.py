"""Invariants of the controller's state machine, checked by tests after every event. They read the whole state."""

from __future__ import annotations

from typing import Protocol

from ...policies.model.chain import Block
from .additions import Additions
from .controller_parts import ControllerParts
from .on_demand import OnDemand
from .parameter_drops import ParameterDrops


class Counted(ControllerParts, Protocol):
    """The parts of ``ControllerState`` whose counts are checked."""

    additions: Additions
    demand: OnDemand
    overload: ParameterDrops
    blocks: dict[str, tuple[Block, ...]]
    alive: int
    planned: int
    ever_ready: bool
    never_ready: dict[str, None]


def check_state(state: Counted) -> None:
    """Raise AssertionError when an invariant is broken."""
    for name, worker in state.workers.items():
        assert bool(worker.incarnation) == worker.alive, name
        assert worker.incarnation in (0, worker.last), name
        state.residency[name].check(worker.alive and not worker.condemned)
    assert state.alive == sum(worker.alive for worker in state.workers.values())
    assert list(state.blocks) == [name for name, served in state.served.items() if served.deployed]
    shown = [name for name in state.blocks if state.served[name].shown]
    state.additions.check(set(state.blocks) - set(shown))
    resident = [name for name in shown if not state.served[name].parked]
    assert state.planned == sum(len(state.served[name].planned) for name in resident)
    hopeful = {name for name in resident if not (state.served[name].ever_ready or state.served[name].on_demand)}
    assert set(state.never_ready) == hopeful
    assert state.ever_ready or not any(served.ever_ready for served in state.served.values())
    state.table.check(state.served.values())
    state.demand.check()
    state.overload.check()
