"""Service classes in a simulated workload: their shares, who goes first, ageing, and jumps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from blockwright.policies.requests.urgency import BATCH, NORMAL, URGENT, service_class
from blockwright.simulator.description import Scenario
from blockwright.simulator.workload import demands
from blockwright.tests.claims import claim

from .clusters import described, run
from .test_simulation import rounded


def mixed(seed: int, rate: float, ageing: float, count: int = 40, blocks: int = 33) -> Scenario:
    return described(
        seed=seed, workload={"urgent": 0.3, "batch": 0.3, "rate": rate, "count": count},
        instances={"blocks": blocks, "class_ageing": ageing, "ahead": seed % 2 == 0, "count": 1},
    )  # fmt: skip


def test_shares_are_drawn_and_nothing_else_changes() -> None:
    made = mixed(3, 40.0, 10.0, count=1000)
    found = demands(made.workload, made.models, made.seed, Path())
    places = [service_class(one.priority) for one in found]
    assert [round(places.count(place) / 1000, 1) for place in (URGENT, NORMAL, BATCH)] == [0.3, 0.4, 0.3]
    plain = demands(replace(made.workload, urgent=0.0, batch=0.0), made.models, made.seed, Path())
    assert plain == [replace(one, priority=0) for one in found]


@claim("Simulated service classes go by urgency, and waiting requests rise", of="simulator")
def test_urgent_requests_go_first_and_ageing_bounds_the_wait_of_others() -> None:
    waits: dict[float, dict[int, float]] = {}
    for ageing in (0.5, 0.0):
        simulation, _ = run(mixed(2, 60.0, ageing, count=120))
        waits[ageing] = dict.fromkeys((URGENT, NORMAL, BATCH), 0.0)
        for one in simulation.requests:
            place = service_class(one.demand.priority)
            waits[ageing][place] = max(waits[ageing][place], one.started - one.demand.at)
    assert waits[0.0][URGENT] < waits[0.0][NORMAL] < waits[0.0][BATCH]
    assert waits[0.5][BATCH] < waits[0.0][BATCH]


@pytest.mark.parametrize(("seed", "rate"), [(3, 60.0), (6, 60.0), (7, 200.0)])
def test_jumping_equals_stepping_where_classes_rise(seed: int, rate: float) -> None:
    made = mixed(seed, rate, 0.1)
    (jumping, one), (stepping, other) = run(made), run(made, jumps=False)
    assert rounded(one) == rounded(other)
    counters = jumping.instances[0].state.counters
    assert counters == stepping.instances[0].state.counters
    assert counters["class_rises"] > 0
    assert counters["urgent_preemptions"] > 0
