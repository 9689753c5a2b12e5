"""Workers are started before or after the limit is reached, one at a time, and go when one less would do."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockwright.policies.cluster.provisioning import (
    Decision,
    DrainOne,
    Provisioning,
    ProvisioningRules,
    StartOne,
    Wish,
    WorkerStage,
)
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


def decide(made: Provisioning, now: float, work: dict[str, float]) -> Decision | None:
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


def test_workers_that_run_always_are_started_at_once_and_never_drained() -> None:
    made = Provisioning(ProvisioningRules(floor=3, window=10.0), NAMES)
    assert decide(made, 0.0, {}) is None, "none serves yet: another would not help"
    made.up("w0", 0.0)
    starts = [decide(made, 0.0, {}) for _ in range(3)]
    assert starts == [StartOne(name, "3 workers run always") for name in ("w1", "w2")] + [None]
    assert made.wanted == 2
    for name in ("w1", "w2"):
        made.up(name, 1.0)
    scaled = fleet(floor=3, window=10.0, up=1)
    assert decide(scaled, 0.0, {}) == StartOne("w1", "3 workers run always")
    scaled.up("w1", 0.0)
    decide(scaled, 0.0, {})
    scaled.up("w2", 0.0)
    assert decide(scaled, 99.0, dict.fromkeys(NAMES[:3], 0)) is None


class Engine:
    """An engine that runs workers, at most four with the first, and follows a wish when it is asked to."""

    def __init__(self, **rules: Any) -> None:
        given = {"mode": "relief", "limit": 10.0, "window": 60.0, "places": False, "most": 4, **rules}
        self.made = Provisioning(ProvisioningRules(**given), ["w0"])
        self.made.up("w0", 0.0)
        self.there: list[str] = []

    def late(self, now: float) -> Decision | None:
        self.made.observe(now, measured=20.0)
        return decide(self.made, now, {})

    def calm(self, now: float) -> Decision | None:
        self.made.observe(now, measured=0.1)
        return decide(self.made, now, {})

    def follow(self, now: float) -> None:
        while len(self.there) < self.made.wanted:
            self.there.append(f"pod-{len(self.there)}")
            self.made.entered(self.there[-1])
            self.made.up(self.there[-1], now)
        while len(self.there) > self.made.wanted:
            self.made.left(self.there.pop(), now)


@claim("Autoscaling is a wish that grows and shrinks with the load where an engine starts workers", of="prediction")
def test_a_wish_grows_with_the_load_and_shrinks_after_it() -> None:
    engine = Engine(cool_down=5.0)
    assert engine.late(1.0) == Wish(1, "20 s measured, the limit is 10 s")
    assert engine.late(2.0) is None, "the one that is wished has not come"
    engine.follow(3.0)
    assert engine.late(7.9) is None, "it rests"
    assert engine.late(8.0) == Wish(2, "20 s measured, the limit is 10 s")
    engine.follow(9.0)
    assert engine.late(20.0) == Wish(3, "20 s measured, the limit is 10 s")
    engine.follow(20.0)
    assert engine.late(40.0) is None, "no more than most"
    assert engine.calm(99.9) is None
    assert engine.calm(100.1) == Wish(2, "one worker less would have kept latencies below 5 s for 60 s")
    assert engine.calm(100.2) is None, "one at a time"
    engine.follow(101.0)
    assert [engine.calm(161.1), engine.made.wanted] == [
        Wish(1, "one worker less would have kept latencies below 5 s for 60 s"),
        1,
    ]
    engine.follow(162.0)
    assert isinstance(engine.calm(223.0), Wish)
    engine.follow(223.0)
    assert (engine.calm(999.0), engine.made.wanted, engine.made.count(WorkerStage.ACTIVE)) == (None, 0, 1)


def test_a_wish_that_nobody_fulfils_is_withdrawn_once_it_is_not_missed() -> None:
    engine = Engine()
    assert isinstance(engine.late(1.0), Wish)
    engine.late(30.0)
    assert engine.calm(89.9) is None
    assert engine.calm(90.0) == Wish(0, "none came, and for 60 s no latency was above the limit")
    assert isinstance(engine.late(91.0), Wish)


def test_workers_that_an_engine_runs_always_are_wished_from_the_start() -> None:
    engine = Engine(floor=3)
    assert engine.made.wanted == 2
    engine.follow(1.0)
    assert engine.late(2.0) == Wish(3, "20 s measured, the limit is 10 s")
    engine.follow(3.0)
    assert engine.calm(70.0) is not None
    engine.follow(70.0)
    assert (engine.calm(999.0), engine.made.wanted) == (None, 2)


def test_a_worker_of_an_engine_that_dies_is_missed_as_if_it_had_not_come() -> None:
    engine = Engine()
    engine.late(1.0)
    engine.follow(2.0)
    engine.made.left("pod-0", 3.0)
    engine.made.left("pod-0", 3.0)
    assert (engine.made.wanted, engine.made.count(WorkerStage.ACTIVE), engine.late(4.0)) == (1, 1, None)
