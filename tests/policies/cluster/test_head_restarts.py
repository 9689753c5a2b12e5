"""Restarts of heads: when a keeper starts another one, and when it ends all."""

from __future__ import annotations

import signal

import pytest

from blockwright.policies.cluster.head_restarts import MOST, PERIOD, EndAll, HeadRestarts, StartNext

KILLED = -signal.SIGKILL


@pytest.mark.parametrize("status", [0, 1, 2, 130])
def test_a_head_that_ended_by_itself_is_the_end_of_all(status: int) -> None:
    assert HeadRestarts(300.0, 2.0).ended(status, 5.0) == EndAll(status)


def test_a_head_that_a_signal_ended_is_followed_by_another() -> None:
    assert HeadRestarts(300.0, 2.0).ended(KILLED, 5.0) == StartNext()


def test_without_grace_the_heads_end_is_everybodys() -> None:
    assert HeadRestarts(0.0, 2.0).ended(KILLED, 5.0) == EndAll(KILLED)


def test_a_signal_that_was_passed_on_ends_all_until_another_head_began() -> None:
    restarts = HeadRestarts(300.0, 2.0, passed={signal.SIGHUP})
    assert restarts.ended(-signal.SIGHUP, 5.0) == EndAll(-signal.SIGHUP)
    assert restarts.ended(KILLED, 5.0) == StartNext()
    restarts.began()
    assert isinstance(restarts.ended(-signal.SIGHUP, 6.0), StartNext)


def test_heads_that_end_again_and_again_are_followed_ever_later_and_given_up_at_last() -> None:
    restarts = HeadRestarts(300.0, 2.0)
    pauses = [0.0, 0.25, 0.5, 1.0, 2.0]
    assert [restarts.ended(KILLED, float(n)) for n in range(MOST)] == [StartNext(pause) for pause in pauses]
    given_up = restarts.ended(KILLED, float(MOST))
    assert given_up == EndAll(1, f"{MOST + 1} heads ended within {PERIOD:g} s; the last one by signal 9")


def test_heads_that_end_seldom_are_not() -> None:
    restarts = HeadRestarts(300.0, 2.0)
    assert all(restarts.ended(KILLED, n * PERIOD) == StartNext() for n in range(3 * MOST))


class Looked(HeadRestarts):
    """Restarts that know when they were asked last."""

    now = 0.0


def looked(restarts: Looked, until: float, *, stopped: bool) -> str:
    """Look at a head as often as a keeper does, until a time; return what the last look said."""
    said = ""
    while (now := restarts.now + restarts.look_every) <= until:
        restarts.now = now
        said = restarts.lost(now, stopped=stopped)
    return said


def test_a_stopped_head_is_replaced_after_the_silence_and_a_hung_one_much_later() -> None:
    restarts = Looked(300.0, 2.0)
    assert looked(restarts, 100.0, stopped=True) == ""  # it has yet to come up
    restarts.heard(100.0)
    assert looked(restarts, 102.0, stopped=True) == ""
    assert looked(restarts, 103.0, stopped=True) == "it was stopped"
    assert looked(restarts, 110.0, stopped=False) == ""
    assert looked(restarts, 111.0, stopped=False) == "it has hung for 11 s"
    restarts.heard(111.0)
    assert looked(restarts, 113.0, stopped=True) == ""
    restarts.began()
    assert looked(restarts, 500.0, stopped=True) == ""


def test_a_long_silence_makes_a_hung_head_wait_longer() -> None:
    restarts = Looked(300.0, 4.0)
    restarts.heard(0.0)
    assert looked(restarts, 20.0, stopped=False) == ""
    assert looked(restarts, 22.0, stopped=False) == "it has hung for 22 s"


@pytest.mark.parametrize("stopped", [False, True])
def test_a_pause_of_the_keeper_too_is_no_silence_of_the_head(stopped: bool) -> None:
    """The machine slept, or a container was paused: the head had no more time than the keeper."""
    restarts = Looked(300.0, 2.0)
    restarts.heard(0.0)
    assert restarts.lost(3600.0, stopped=stopped) == ""
    restarts.heard(3600.5)
    assert restarts.lost(3601.0, stopped=stopped) == ""


def test_without_grace_nothing_is_replaced() -> None:
    restarts = HeadRestarts(0.0, 2.0)
    restarts.heard(0.0)
    assert restarts.lost(1e6, stopped=True) == ""


def test_heads_are_rolled_once_they_are_up_and_only_where_members_outlive_them() -> None:
    assert HeadRestarts(0.0, 2.0).no_roll == "orphan_grace is 0, so all would end with it"
    restarts = HeadRestarts(300.0, 2.0)
    assert (restarts.no_roll, restarts.is_up) == ("", False)
    restarts.heard(1.0)
    assert restarts.is_up
    restarts.began()
    assert not restarts.is_up
