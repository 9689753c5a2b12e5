"""Workers are started before or after the limit is reached, one at a time, and go when one less would do."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockwright.policies.cluster.provisioning import DrainOne, Provisioning, ProvisioningRules, StartOne, WorkerStage
from blockwright.tests.claims import claim

NAMES = ["w0", "w1", "w2", "w3"]


def fleet(mode: str = "relief", up: int = 1, **rules: Any) -> Provisioning:
    """Four workers, ``up`` of which serve since time 0."""
    made = Provisioning(ProvisioningRules(mode=mode, limit=10.0, **rules), NAMES)
    made.up("w0", 0.0)
    for name in NAMES[1:up]:
        made.observe(0.0, measured=99.0, predicted=99.0)
        assert isinstance(decide(made, 0.0, {}), StartOne)
        made.up(name, 0.0)
    return made


def decide(made: Provisioning, now: float, work: dict[str, float]) -> StartOne | DrainOne | None:
    return made.decide(now, lambda: work)


@claim("Autoscaling starts a worker because of forecasts, before requests are late", of="prediction")
@pytest.mark.parametrize(
    ("mode", "observed", "starts"),
    [
        ("relief", {"measured": 10.0}, False),  # above the limit, not at it
        ("relief", {"measured": 10.1}, True),
        ("relief", {"predicted": 99.0}, False),
        ("preemptive", {"predicted": 9.9}, False),
        ("preemptive", {"predicted": 10.0}, True),
        ("preemptive", {"predicted": float("inf")}, True),  # it ends nowhere within the horizon
        ("preemptive", {"measured": 99.0, "predicted": 1.0}, False),
        ("preemptive", {"measured": 10.1}, True),  # no forecast has come
        ("off", {"measured": 99.0, "predicted": 99.0}, False),
    ],
)
def test_what_starts_a_worker(mode: str, observed: dict[str, float], starts: bool) -> None:
    made = fleet(mode)
    made.observe(1.0, **observed)
    found = decide(made, 1.0, {"w0": 1})
    assert (isinstance(found, StartOne) and found.worker == "w1" and "the limit is 10 s" in found.why) is starts
    assert decide(made, 1.0, {"w0": 1}) is None, "what was observed starts one worker"


def test_measured_latencies_count_where_no_forecast_comes_any_more() -> None:
    made = fleet("preemptive")
    made.observe(5.0, predicted=1.0)
    for now, starts in ((15.0, False), (15.1, True)):
        made.observe(now, measured=11.0)
        assert isinstance(decide(made, now, {}), StartOne) is starts


def test_one_start_at_a_time_then_a_rest() -> None:
    made, impatient = fleet(cool_down=5.0), fleet(overlap=True)
    for one in (made, impatient):
        for now in (1.0, 2.0):
            one.observe(now, measured=20.0)
            decide(one, now, {})
    assert (made.count(WorkerStage.STARTING), impatient.count(WorkerStage.STARTING)) == (1, 2)
    made.up("w1", 4.0)
    for now, starts in ((8.9, False), (9.0, True)):
        made.observe(now, measured=20.0)
        assert isinstance(decide(made, now, {}), StartOne) is starts


def test_no_more_than_there_are() -> None:
    made = fleet(up=4)
    made.observe(1.0, measured=99.0)
    assert (decide(made, 1.0, {}), made.count(WorkerStage.ACTIVE)) == (None, 4)


def test_the_newest_with_least_work_goes_after_a_calm_window() -> None:
    made = fleet(up=3)
    work = {"w0": 2, "w1": 1, "w2": 1}
    made.observe(30.0, measured=3.4)  # a third less workers: 5.1 s
    assert decide(made, 89.9, work) is None
    made.observe(89.9, measured=3.3)
    found = decide(made, 90.0, work)
    assert found == DrainOne("w2", "one worker less would have kept latencies below 5 s for 60 s")
    assert decide(made, 999.0, work) is None, "one at a time"
    made.gone("w2", 100.0)
    assert decide(made, 159.9, work) is None, "the window counts anew with these workers"
    assert decide(made, 160.0, {"w0": 0}) == DrainOne("w0", found.why), "w1 may not go"
    made.gone("w0", 170.0)
    assert (decide(made, 999.0, {"w1": 0}), made.count(WorkerStage.ACTIVE)) == (None, 1), "the least stays"


def test_forecasts_and_ages_keep_workers() -> None:
    for observed in ({"predicted": 3.0}, {"measured": 3.0}):
        made = fleet("preemptive", up=2)
        made.observe(59.0, **observed)
        assert decide(made, 100.0, {"w1": 0}) is None
        assert decide(made, 119.0, {"w1": 0}) is not None


def test_who_dies_while_it_starts_is_given_up_in_the_end() -> None:
    made = fleet(cool_down=7.0)
    made.observe(1.0, measured=20.0)
    assert decide(made, 1.0, {}) is not None
    made.down("w1", 2.0)
    made.down("w1", 3.0)
    assert decide(made, 3.0, {}) is None, "its supervisor starts it again"
    made.down("w1", 4.0)
    assert decide(made, 4.0, {}) == DrainOne("w1", "it died 3 times before it served")
    made.gone("w1", 5.0)
    for now, starts in ((11.9, False), (12.0, True)):
        made.observe(now, measured=20.0)
        assert isinstance(decide(made, now, {}), StartOne) is starts


def test_deaths_of_those_that_served() -> None:
    made = fleet(up=2)
    made.down("w1", 1.0)
    assert (made.stage["w1"], made.count(WorkerStage.ACTIVE)) == (WorkerStage.STARTING, 1)
    made.observe(2.0, measured=20.0)
    assert decide(made, 2.0, {}) == StartOne("w2", "20 s measured, the limit is 10 s")
    made.up("w1", 3.0)
    assert made.count(WorkerStage.ACTIVE) == 2
    for name in ("w0", "w1"):
        made.down(name, 3.5)
    made.observe(3.6, measured=20.0)
    assert decide(made, 3.6, {}) is None, "none serves: what lacks is not one more"
    made.down("w3", 4.0)  # news of one that is off
    assert made.stage["w3"] is WorkerStage.OFF


@given(st.lists(st.tuples(st.sampled_from(["up", "down", "gone", "calm", "loud", "late"]), st.integers(0, 3)), max_size=60))
def test_the_number_of_workers_keeps_its_bounds(moves: list[tuple[str, int]]) -> None:
    made, now = fleet("relief", least=1), 0.0
    for move, n in moves:
        now += 61.0 if move == "late" else 1.0
        name = NAMES[n]
        if move == "up":
            made.up(name, now)
        elif move == "down":
            made.down(name, now)
        elif move == "gone" and made.stage[name] is WorkerStage.DRAINING:
            made.gone(name, now)
        else:
            made.observe(now, measured=20.0 if move == "loud" else 0.1)
        before = dict(made.stage)
        assert all(made.count(stage) == [*before.values()].count(stage) for stage in WorkerStage)
        assert made.draining.keys() == {name for name, stage in before.items() if stage is WorkerStage.DRAINING}
        match decide(made, now, dict.fromkeys(NAMES, 0)):
            case StartOne(worker):
                assert before[worker] is WorkerStage.OFF
            case DrainOne(worker, why):
                assert "died" in why or (before[worker] is WorkerStage.ACTIVE and made.count(WorkerStage.ACTIVE) >= 1)


def test_who_can_be_spared_is_not_asked_all_the_time() -> None:
    """It costs a look at all routes, and decisions are made after each heartbeat."""
    made, asked = fleet("relief", up=2, least=1), list[float]()

    def nobody(now: float) -> dict[str, float]:
        asked.append(now)
        return {}

    for now in (100.0 + n / 4 for n in range(12)):
        assert made.decide(now, partial(nobody, now)) is None
    assert asked == [100.0, 101.0, 102.0]
