from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockwright.policies.cluster.restart_policy import (
    HOPELESS,
    Backoff,
    EarlyDeaths,
    Plan,
    Restart,
    Restarts,
    Strategy,
    place,
)
from blockwright.tests.claims import claim

P = Restart.PERMANENT
T = Restart.TRANSIENT
X = Restart.TEMPORARY
ALL = Strategy.ONE_FOR_ALL
REST = Strategy.REST_FOR_ONE
ONE = Strategy.ONE_FOR_ONE
NOW = Backoff(initial=0.0)


def rules(strategy: Strategy, kinds=(P, P, P, P), **kwargs) -> Restarts:
    made = Restarts([("abcd"[i], kind) for i, kind in enumerate(kinds)], strategy, **{"backoff": NOW, **kwargs})
    start_all(made, 0.0)
    return made


def start_all(made: Restarts, now: float, possible=lambda name: True) -> list[str]:
    """Start what may start, in the order in which it may."""
    started = []
    while (name := made.next(now, possible)) is not None:
        made.up(name, now)
        started.append(name)
    return started


@pytest.mark.parametrize("strategy", [ONE, ALL, REST])
def test_children_start_in_the_order_in_which_they_are_listed(strategy):
    assert start_all(Restarts([(name, P) for name in "bca"], strategy), 0.0) == ["b", "c", "a"]


@pytest.mark.parametrize(
    ("strategy", "stops", "starts"),
    [(ONE, (), ["b"]), (ALL, ("d", "c", "a"), ["a", "b", "c", "d"]), (REST, ("d", "c"), ["b", "c", "d"])],
)
def test_who_goes_down_and_comes_up_with_a_child(strategy, stops, starts):
    made = rules(strategy)
    assert made.ended("b", True, 1.0, 0.5) == Plan(stop=stops)
    assert start_all(made, 1.0) == starts
    assert [made.describe(name) for name in "abcd"] == [("up", int(name in starts)) for name in "abcd"]


@pytest.mark.parametrize(
    ("kind", "abnormal", "again"), [(P, True, 1), (P, False, 1), (T, True, 1), (T, False, 0), (X, True, 0), (X, False, 0)]
)
@pytest.mark.parametrize("strategy", [ONE, ALL, REST])
def test_which_ends_bring_a_child_back(strategy, kind, abnormal, again):
    made = rules(strategy, (kind, P))
    plan = made.ended("a", abnormal, 1.0, 0.5)
    assert ("a" in start_all(made, 1.0)) == bool(again)
    assert bool(plan.stop) == (again and strategy != ONE)
    assert made.describe("a")[0] == ("up" if again else "done")


def test_who_is_dismissed_stays_away_until_it_is_asked_for():
    made = rules(ONE, (P, P))
    made.ended("a", True, 1.0, 0.5)
    made.dismiss("a")
    assert (start_all(made, 9.0), made.describe("a")) == ([], ("done", 0))
    made.ask_for("b", 9.0)
    made.ask_for("a", 9.0)
    assert (start_all(made, 9.0), made.describe("a")) == (["a"], ("up", 1))
    with pytest.raises(KeyError):
        made.ask_for("x", 9.0)


def test_siblings_that_are_done_or_temporary_stay_away_from_a_group_restart():
    made = rules(ALL, (P, T, X, P))
    assert made.ended("b", False, 1.0, 0.5) == Plan()
    assert made.ended("a", True, 2.0, 0.5) == Plan(stop=("d", "c"))
    assert start_all(made, 2.0) == ["a", "d"]


@claim("Supervisors restart children by three strategies, with limits and growing pauses", of="actor-runtime")
def test_the_limit_is_intensity_restarts_within_a_period():
    made = rules(ONE, (P,), intensity=2, period=5.0)
    for now in (1.0, 2.0):
        assert not made.ended("a", True, now, 0.5).give_up
        start_all(made, now)
    assert made.ended("a", True, 5.5, 0.5).give_up == "3 restarts within 5 s, 2 allowed; last: a"
    made = rules(ONE, (P,), intensity=2, period=5.0)
    for now in (1.0, 2.0, 6.0, 7.0, 11.0, 12.0):  # the first has left the window each time
        assert not made.ended("a", True, now, 0.5).give_up
        start_all(made, now)
    assert rules(ONE, (P,), intensity=0).ended("a", True, 1.0, 0.5).give_up


def test_failed_starts_count_and_waiting_does_not():
    made = rules(ONE, (P,), intensity=2)
    made.ended("a", True, 1.0, 0.5)
    for _ in range(50):
        assert made.next(1.0, lambda name: False) is None
    made.wait("a", 2.0)
    assert made.next(1.5, lambda name: True) is None
    assert made.next(2.0, lambda name: True) == "a"
    assert not made.failed("a", 2.0, 0.5).give_up
    assert made.failed("a", 2.0, 0.5).give_up


def test_what_is_lost_with_one_node_counts_once():
    made = rules(ONE, intensity=1)
    for name in "abcd":
        assert not made.ended(name, True, 1.0, 0.5, event="w1#1").give_up
    start_all(made, 1.0)
    assert made.ended("a", True, 1.1, 0.5, event="w1#2").give_up


def test_a_group_waits_for_its_first():
    made = rules(REST, intensity=9)
    made.ended("b", True, 1.0, 0.5)
    assert start_all(made, 1.0, lambda name: name != "c") == ["b"]
    assert start_all(made, 1.0) == ["c", "d"]
    one = rules(ONE, intensity=9)
    for name in "bc":
        one.ended(name, True, 1.0, 0.5)
    assert start_all(one, 1.0, lambda name: name != "b") == ["c"]


def test_a_start_that_fails_takes_the_group_back():
    made = rules(ALL, intensity=9)
    made.ended("c", True, 1.0, 0.5)
    for name in "ab":
        assert made.next(1.0, lambda name: True) == name
        made.up(name, 1.0)
    assert made.failed("c", 1.0, 0.5) == Plan(stop=("b", "a"))
    assert start_all(made, 1.0) == ["a", "b", "c", "d"]
    made = rules(REST, intensity=9)
    made.ended("b", True, 1.0, 0.5)
    assert made.failed("b", 1.0, 0.5) == Plan()
    assert start_all(made, 1.0) == ["b", "c", "d"]


def test_the_pause_grows_and_is_forgotten_after_a_quiet_period():
    made = rules(ONE, (P,), intensity=99, period=5.0, backoff=Backoff(1.0, 2.0, 3.0, 0.0))
    now, waits = 0.0, []
    for quiet in (0.0, 0.0, 0.0, 5.0):
        now += quiet
        made.ended("a", True, now, 0.5)
        due = made.due(now)
        assert due is not None
        assert made.next(due - 0.01, lambda name: True) is None
        waits.append(due - now)
        now = due
        assert start_all(made, now) == ["a"]
        assert made.due(now) is None
    assert waits == [1.0, 2.0, 3.0, 1.0]
    assert made.describe("a") == ("up", 4)


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True), st.floats(0, 5), st.floats(1, 100), st.floats(0, 0.99))
def test_a_pause_keeps_its_bounds(failures, draw, initial, factor, jitter):
    backoff = Backoff(initial, factor, 5.0, jitter)
    assert 0 <= backoff.delay(failures, draw) <= 5.0
    middle = min(5.0, initial * factor ** min(failures - 1, 100))
    assert abs(backoff.delay(failures, draw) - middle) <= jitter * middle + 1e-9


@pytest.mark.parametrize("wrong", [(-1, 2, 5, 0), (9, 2, 5, 0), (1, 0.5, 5, 0), (1, 101, 5, 0), (1, 2, 5, 1)])
def test_what_cannot_be_used_is_refused(wrong):
    with pytest.raises(ValueError, match="cannot be used; give"):
        Backoff(*wrong)
    with pytest.raises(ValueError, match="not named apart"):
        Restarts([("a", P), ("a", P)])
    for limit in ({"intensity": -1}, {"period": 0.0}):
        with pytest.raises(ValueError, match="cannot be used"):
            Restarts([("a", P)], **limit)


def test_a_child_goes_to_the_first_candidate_that_is_up():
    assert place(["w1", "w2", "w3"], {"w3", "w2"}) == "w2"
    assert place(["w1"], {"w2"}) is None
    assert place([], {"w2"}) is None
    assert rules(ONE).upcoming("a") == 1
    assert Restarts([("a", P)]).upcoming("a") == 0


@given(
    st.sampled_from([ONE, ALL, REST]),
    st.lists(st.sampled_from([P, T, X]), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans(), st.floats(0, 2)), max_size=30),
)
def test_whatever_happens_everybody_is_up_or_done_in_the_end(strategy, kinds, steps):
    """No child is forgotten, and nothing starts before its time."""
    made, now = rules(strategy, kinds, intensity=1000, backoff=Backoff()), 0.0
    for index, abnormal, fails, pause in steps:
        name = "abcd"[index % len(kinds)]
        if made.describe(name)[0] == "up":
            plan = made.ended(name, abnormal, now, 0.5)
            assert list(plan.stop) == sorted(plan.stop, reverse=True)
        now += pause
        if fails and (wanted := made.next(now, lambda name: True)) is not None:
            made.failed(wanted, now, 0.5)
    while (due := made.due(now)) is not None or made.next(now, lambda name: True) is not None:
        now = due if due is not None else now
        start_all(made, now)
    states = {name: made.describe(name)[0] for name in "abcd"[: len(kinds)]}
    for name, kind in zip(states, kinds, strict=False):
        assert states[name] == "up" or (states[name] == "done" and kind != P)


@claim("Processes are restarted at once, then with growing pauses, by one restart policy", of="faults")
def test_processes_are_restarted_at_once_then_with_growing_pauses_and_never_given_up():
    """The pauses of workers (docs/operations.md): none, 0.25, 0.5, 1, 2, 4, 4, ... seconds; none again after a long life."""
    backoff = Backoff(initial=0.25, maximum=4.0, jitter=0.0, at_once=1)
    made = Restarts([("w0", P)], intensity=None, period=10.0, backoff=backoff)
    start_all(made, 0.0)
    now, pauses = 50.0, []
    for _ in range(50):
        assert made.ended("w0", True, now, 0.5) == Plan()
        due = made.due(now) or now
        pauses.append(due - now)
        now = due
        assert start_all(made, now) == ["w0"]
    assert pauses[:8] == [0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 4.0, 4.0]
    assert set(pauses[8:]) == {4.0}
    made.ended("w0", True, now + 10.0, 0.5)
    assert start_all(made, now + 10.0) == ["w0"]


@pytest.mark.parametrize(
    ("causes", "lived", "proven", "some_last", "hopeless"),
    [
        (["hung"] * (HOPELESS - 1), 1.0, False, False, False),
        (["hung"] * HOPELESS, 1.0, False, False, True),
        (["hung"] * HOPELESS, 1.0, False, True, True),
        (["hung"] * HOPELESS, 1.0, True, False, False),
        (["exited -9"] * HOPELESS, 1.0, True, False, False),
        (["exited 70"] * HOPELESS, 1.0, True, False, True),
        (["exited 70"] * HOPELESS, 1.0, True, True, False),
        ([*["exited 70"] * 4, "exited 0", *["exited 70"] * 4], 1.0, True, False, False),
        (["exited 70"] * HOPELESS, 10.0, False, False, False),
    ],
)
def test_what_dies_young_again_and_again_is_hopeless(causes, lived, proven, some_last, hopeless):
    deaths = EarlyDeaths()
    for cause in causes:
        deaths.died(lived, cause)
    assert deaths.lasted == (lived >= deaths.youth)
    assert deaths.hopeless(proven=proven, some_last=some_last) == HOPELESS * hopeless


def test_a_child_lasts_by_the_life_that_it_lives_or_by_one_before():
    deaths = EarlyDeaths()
    assert [deaths.lasts(since, 100.0) for since in (None, 91.0, 90.0)] == [False, False, True]
    deaths.died(deaths.youth, "exited 0")
    assert deaths.lasts(None, 100.0)
