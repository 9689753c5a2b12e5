"""Simulated and live runs of one event log give the same decisions: what the controller's state machine and the memory actor
decide is a function of what they were told, on a live cluster as in the simulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest

from blockwright.policies.control import events
from blockwright.policies.control.drop_events import (
    DropParameters,
    MemoryGroups,
    MemoryLacks,
    MemoryOrder,
    RequestsSwitched,
    RestoreParameters,
    RoutesLeft,
)
from blockwright.policies.control.memory_decisions import MemoryDecisions
from blockwright.policies.control.state import ControllerState
from blockwright.policies.overload.pool_reading import PoolReading
from blockwright.simulator import control, memory_drops
from blockwright.simulator.control_step import ControlStep
from blockwright.tests.actors.memory import test_memory_actors
from blockwright.tests.claims import claim
from blockwright.tests.serving import house
from blockwright.tests.serving.game import Game
from blockwright.tests.serving.test_serving_overload import Dropping
from blockwright.tests.simulator import test_control, test_parameter_drops

from .clusters import run

Recorded = tuple[tuple[Any, ...], dict[str, Any], list[ControlStep]]  # how a state machine was made, and its steps


class Reading(NamedTuple):
    """What the memory actor read, and its orders."""

    at: float
    reported: MemoryGroups | None
    readings: Mapping[str, PoolReading]
    orders: list[MemoryOrder]


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Recorded]:
    """All state machines of controllers made in a test, live and simulated."""
    made: list[Recorded] = []

    class Recording(ControllerState):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            made.append(((list(arguments[0]), *arguments[1:]), options, []))
            self.steps = made[-1][2]

        def handle(self, event: events.Event, now: float) -> list[events.Effect]:
            effects = super().handle(event, now)
            self.steps.append(ControlStep(now, event, effects))
            return effects

    monkeypatch.setattr(house, "ControllerState", Recording)
    monkeypatch.setattr(control, "ControllerState", Recording)
    return made


def replay(recorded: Recorded, kinds: set[type[Any]]) -> None:
    """Tell a fresh state machine of the simulator the same; ``kinds`` of events must have been among them."""
    arguments, options, steps = recorded
    state = ControllerState(*arguments, **options)
    assert kinds <= {type(step.event) for step in steps}
    for number, step in enumerate(steps):
        assert state.handle(step.event, step.at) == step.effects, f"step {number}: {step.event}"
        state.check()


@claim("Simulated and live runs of one event log give the same decisions", of="simulator")
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("game", [Game, Dropping])
def test_the_log_of_a_live_controller_gives_the_same_decisions_in_the_simulator(
    game: type[Game], seed: int, recorded: list[Recorded]
) -> None:
    """Live actors over the simulated runtime, with deaths, lost messages, loads and drops."""
    assert game(seed).play().violation is None
    kinds: set[type[Any]] = {events.WorkerUp, events.Loaded, events.KvCapacity, events.WorkerHeartbeat}
    replay(recorded[0], kinds | ({DropParameters, RoutesLeft} if game is Dropping else set()))


SIMULATED: dict[str, tuple[Callable[[], object], set[type[Any]]]] = {
    "demand": (
        lambda: run(
            test_control.three(deaths=[{"instance": "i", "at": 3.2}], loading={"disk": 8000}),
            arrivals=test_control.requests((0.0, "m0"), (1.0, "m1"), (3.0, "m2"), (5.0, "m0")),
        ),
        {events.ApplicationsWanted, events.UsageAnswer, events.LoadRefused, events.WorkerDown},
    ),
    "pipelines": (
        lambda: run(
            test_control.piped(deaths=[{"instance": "i.1", "at": 3.2}], loading={"disk": 8000}),
            arrivals=test_control.requests((0.0, "m0"), (1.0, "m1"), (3.0, "m2"), (5.0, "m0")),
        ),
        {events.ApplicationsWanted, events.UsageAnswer, events.LoadRefused, events.WorkerDown},
    ),
    "copies": (
        lambda: run(test_control.three(**test_control.COPIED), arrivals=test_control.CROWD),
        {events.Pressed, events.Idle, events.Observed},
    ),
    "scaled drops": (
        lambda: test_parameter_drops.run(
            test_parameter_drops.scaled(test_parameter_drops.described(), limit=4.0),
            test_parameter_drops.burst(0.0, 30) + test_parameter_drops.LATER,
        ),
        {DropParameters, RestoreParameters, MemoryLacks, events.Observed, events.Vacated, events.WorkerStopped},
    ),
    "drops": (
        lambda: test_parameter_drops.run(
            test_parameter_drops.described(), test_parameter_drops.burst(0.0, 30) + test_parameter_drops.LATER
        ),
        {DropParameters, RestoreParameters, RoutesLeft, RequestsSwitched},
    ),
}


@pytest.mark.parametrize("name", SIMULATED)
def test_the_log_of_a_simulated_controller_gives_the_same_decisions_again(name: str, recorded: list[Recorded]) -> None:
    play, kinds = SIMULATED[name]
    play()
    (one,) = recorded
    replay(one, kinds)


@pytest.mark.parametrize("live", [True, False], ids=["live", "simulated"])
def test_equal_readings_give_the_orders_of_the_live_memory_actor(live: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A burst and its end, with the live memory actor and in the simulator."""
    made: list[tuple[tuple[Any, ...], list[Reading]]] = []

    class Recording(MemoryDecisions):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append((arguments, []))

        def read(self, now: float, reported: MemoryGroups | None, readings: Mapping[str, PoolReading]) -> list[MemoryOrder]:
            orders = super().read(now, reported, readings)
            made[0][1].append(Reading(now, reported, dict(readings), orders))
            return orders

    monkeypatch.setattr("blockwright.actors.memory.cluster.MemoryDecisions", Recording)
    monkeypatch.setattr(memory_drops, "MemoryDecisions", Recording)
    if live:
        test_memory_actors.test_asleep_without_load_a_drop_in_a_burst_a_restore_after_it_and_asleep_again()
    else:
        SIMULATED["drops"][0]()
    ((arguments, steps),) = made
    again = MemoryDecisions(*arguments)
    kinds = {type(order) for step in steps for order in step.orders}
    assert kinds >= {DropParameters, RestoreParameters}
    for step in steps:
        assert again.read(step.at, step.reported, step.readings) == step.orders
